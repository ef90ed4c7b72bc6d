"""A finished run as a server: JSON over HTTP, with requests answered in common batches."""
