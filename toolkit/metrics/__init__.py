"""Metrics as pure functions over installed libraries: nothing is fetched and no file is written.

Each module has one function, `<problem>_scores(...) -> dict[str, float]`, and the `Score`s that say how to read what it
returns. `adapter` turns a function into an `evaluate.Metric` for those who want one; nothing here needs `evaluate`.
"""
