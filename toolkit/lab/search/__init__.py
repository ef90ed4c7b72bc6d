"""Searches settings: points of a space are trained as processes, and an Optuna study says which point comes next.

`space` reads what may change and has the methods, which say how points are drawn and when a trial is pruned; `trials`
starts a process for each trial, in which `worker` trains, and `population` does the same for population based training.
"""
