"""New: distributed/tensor/__init__."""
