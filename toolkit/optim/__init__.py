"""Optimizers and learning-rate schedules, chosen by name in the YAML."""
