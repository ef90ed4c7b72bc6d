"""New: lab/jobs/__init__."""
