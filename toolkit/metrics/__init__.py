"""Metrics: `evaluate.Metric` subclasses over installed libraries; nothing is fetched and no file is written.

Importing `evaluate` takes seconds, so import the modules here where they are used. `answers` and `likelihood` are
free of it.
"""
