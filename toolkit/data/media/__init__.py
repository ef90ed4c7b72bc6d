"""New: data/media/__init__."""
