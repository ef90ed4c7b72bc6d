"""New: data/batching/__init__."""
