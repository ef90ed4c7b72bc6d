"""New: prepare/__init__."""
