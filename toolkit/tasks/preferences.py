"""Losses of preferences, of the log-probabilities of answers, and of reward models.

Arguments of each loss are `outputs` `[N, 2, 2]`, for both texts of a row their log-probability (or score) and number of
tokens; `labels` `[N, 3]`, 1 or 0 and the log-probabilities of both before training; and the options of the recipe
`preference`. Each returns a scalar, the sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

REFERENCED = ("dpo", "ipo", "kto")
"""Losses that compare the model with the one that it was before training."""


def _log_ratios(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns by how much the log-probability of each answer has grown, `[N, texts]`, per token if so configured."""
    moved = outputs[..., 0] - labels[:, 1:]
    return moved / outputs[..., 1].clamp(min=1) if options.length_normalized else moved


def _per_token(outputs: Tensor) -> Tensor:
    """Returns the mean log-probability of the tokens of each answer, `[N, texts]`."""
    return outputs[..., 0] / outputs[..., 1].clamp(min=1)


def _log_sigmoid(values: Tensor) -> Tensor:
    from torch.nn.functional import logsigmoid

    return logsigmoid(values)


def dpo(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of direct preference optimisation, equation 7 of Rafailov et al. 2023.

    With label smoothing, that of conservative DPO (Mitchell 2023).
    """
    chosen, rejected = _log_ratios(outputs, labels, options).unbind(1)
    logits, smoothing = options.beta * (chosen - rejected), options.label_smoothing
    return -(_log_sigmoid(logits) * (1 - smoothing) + _log_sigmoid(-logits) * smoothing).sum()


def ipo(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of identity preference optimisation, equation 17 of Azar et al. 2023."""
    chosen, rejected = _log_ratios(outputs, labels, options).unbind(1)
    return ((chosen - rejected - 1 / (2 * options.beta)) ** 2).sum()


def orpo(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of odds ratio preference optimisation, equation 6 of Hong et al. 2024.

    The likelihood of an answer is the geometric mean of those of its tokens.
    """
    chosen, rejected = _per_token(outputs).unbind(1)
    odds = [each - (-each.expm1()).log() for each in (chosen, rejected)]
    return (-chosen - options.beta * _log_sigmoid(odds[0] - odds[1])).sum()


def simpo(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of simple preference optimisation, equation 6 of Meng et al. 2024."""
    chosen, rejected = _per_token(outputs).unbind(1)
    return -_log_sigmoid(options.beta * (chosen - rejected) - options.simpo_gamma).sum()


def kto(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of Kahneman-Tversky optimisation, equation 8 of Ethayarajh et al. 2024.

    The reference point is the mean of `beta` times the growth of log-probabilities of the second texts, completions of
    other prompts, of the whole window; it has no gradient and is at least 0.
    """
    own, others = (options.beta * _log_ratios(outputs, labels, options)).unbind(1)
    point = others.detach().mean().clamp(min=0) if len(others) else 0.0
    good = labels[:, 0]
    values = good * options.desirable_weight * (1 - (own - point).sigmoid())
    return (values + (1 - good) * options.undesirable_weight * (1 - (point - own).sigmoid())).sum()


def reward(outputs: Tensor, labels: Tensor, options: Any) -> Tensor:
    """Returns the summed loss of Bradley and Terry's model, equation 1 of Ouyang et al. 2022 (arXiv 2203.02155)."""
    return -_log_sigmoid(outputs[:, 0, 0] - outputs[:, 1, 0]).sum()


LOSSES: Mapping[str, Callable[[Tensor, Tensor, Any], Tensor]] = {
    "dpo": dpo, "ipo": ipo, "orpo": orpo, "simpo": simpo, "kto": kto, "reward": reward,
}  # fmt: skip
