"""Checks a machine before a run starts on it: its files, disks, memory, GPUs and connections."""
