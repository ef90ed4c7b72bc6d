"""Output files of a run: facts, results, plots and reports."""
