"""Measures the effect of settings on memory, time and quality, on your own model, rows and machine.

`variants` defines the variants, `runs` starts a process for each run, which trains and measures, `statistics` compares
the variants with the first one, `report` collects what was found, and `page` and `pictures` show it.
"""
