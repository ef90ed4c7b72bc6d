"""Puts everything that a run reads into one folder, for machines without a network."""
