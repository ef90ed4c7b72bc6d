"""How a training scales with the number of its processes."""
