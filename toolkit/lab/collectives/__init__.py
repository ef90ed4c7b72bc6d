"""Measures what collective operations between the processes of a run cost on this machine."""
