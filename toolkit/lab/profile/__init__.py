"""Profiles steps of a run: where their time goes, and what to change."""
