"""New: lab/certify/reproduce."""
