"""Finds a micro-batch: the largest that fits the memory, and the smallest that is nearly as fast as any."""
