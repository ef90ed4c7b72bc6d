"""Measures the effect of settings on memory, time and quality, on your own model, rows and machine.

`variants` defines the variants, `running` starts a process for each run, in which `worker` trains and measures, and
`summary` compares the variants with the first one.
"""
