"""One file per group of `legible` commands; each exposes `register(app)`."""
