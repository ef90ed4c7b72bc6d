"""The order of rows, and how windows become micro-batches."""
