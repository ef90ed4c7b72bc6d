"""Measures the effect of settings on memory, time and quality, on your own model, rows and machine.

`variants` says what is compared, `running` gives each run a process of its own, in which `worker` trains and measures,
and `summary` sets the variants against the first one.
"""
