"""The workbench: a web process without torch, a worker process with it, and SQL between them."""
