"""Heads for classification and regression: labels, targets, losses and scores of each problem type.

For every modality the model returns logits `[B, N]`, which the head interprets.
"""

from toolkit.tasks.heads.head import Head
from toolkit.tasks.heads.multi_label import MultiLabel
from toolkit.tasks.heads.regression import Regression
from toolkit.tasks.heads.single_label import SingleLabel

HEADS: dict[str, type[Head]] = {head.problem_type: head for head in (SingleLabel, MultiLabel, Regression)}
"""Heads by problem type, with the names of transformers."""
