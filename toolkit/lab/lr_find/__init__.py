"""Finds a learning rate: trains while the rate rises, and reads the curve of the loss."""
