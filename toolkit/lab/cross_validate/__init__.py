"""Trains on all but one of several folds of the training rows, for each fold in turn: `toolkit cross-validate`."""
