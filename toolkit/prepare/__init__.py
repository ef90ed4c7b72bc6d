"""The inputs of a run: rows, processor, and values for settings of `auto`."""
