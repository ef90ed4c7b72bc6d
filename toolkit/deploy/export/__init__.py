"""Exports a finished run for others: `toolkit export`."""
