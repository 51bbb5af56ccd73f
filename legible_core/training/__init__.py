"""Training legible models: recipe, data, optimiser, pressures, guard, loop."""
