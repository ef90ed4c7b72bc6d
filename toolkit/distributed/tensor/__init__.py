"""Tensor parallelism: plans, split layers, and a split vocabulary."""
