"""Scores of answers that need no training: `toolkit baseline`."""
