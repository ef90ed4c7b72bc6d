"""Metrics as pure functions over installed libraries: nothing is downloaded and no file is written.

Each module has one function, `<problem>_scores(...) -> dict[str, float]`, and the `Score`s that describe its results.
`adapter` turns a function into an `evaluate.Metric`; nothing else here needs `evaluate`.
"""
