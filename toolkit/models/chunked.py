"""Cross entropy of a language model's head in chunks of tokens, so that its logits are never in memory as a whole.

The sum of losses finds its gradient in the forward pass, chunk by chunk, with no further product; losses of single
tokens compute their chunks again in the backward pass. Any head will do: with a bias, tied to the embeddings, with
adapters, scaled or capped logits.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partialmethod
from itertools import repeat
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from toolkit.api.batch import IGNORE_INDEX, needed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from toolkit.config.sections import Config

CHUNK, MOST = 512, 2**25
"""Most tokens whose logits are in memory at once, and most of these logits."""
LARGE = 32_000
"""Size of a vocabulary from which `train.chunked_loss: auto` is true."""


def is_chosen(cfg: Config, config: PreTrainedConfig) -> bool:
    """Resolves `train.chunked_loss` for a model: heads of split models have their own losses."""
    if cfg.train.chunked_loss != "auto":
        return cfg.train.chunked_loss
    split = cfg.parallel.splits_weights or cfg.parallel.backend == "deepspeed"
    excluded = split or cfg.train.torch_compile or cfg.train.ddp_find_unused_parameters
    return not excluded and getattr(config.get_text_config(), "vocab_size", 0) >= LARGE


def chunk_head(model: Any) -> None:
    """Lets a model's head defer its logits in passes that need them at labels (see `Deferred`)."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    drops = isinstance(head, nn.Module) and any(isinstance(part, nn.Dropout) and part.p for part in head.modules())
    if isinstance(head, nn.Module) and not drops:
        head.forward = MethodType(_forward, head)


def _forward(head: nn.Module, hidden: Tensor) -> Any:
    if needed() is None:
        return type(head).forward(head, hidden)
    return Deferred(head, hidden)


class Deferred:
    """Logits `[..., vocabulary]` that are not computed yet: the hidden states, the head, and what follows it.

    Conversions and arithmetic with numbers, or with a number for each class, are deferred, too. Anything else computes
    the logits.
    """

    def __init__(self, head: Any, hidden: Tensor) -> None:
        self._head, self._hidden = head, hidden
        self._further: tuple[Callable[[Tensor], Tensor], ...] = ()
        self._as_float = False
        self._best: Tensor | None = None
        device = hidden.device.type
        self._autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        self.shape = torch.Size((*hidden.shape[:-1], getattr(head, "out_features", None) or head.weight.shape[0]))
        self.dtype = self.computed = self._autocast[1] if self._autocast[2] else head.weight.dtype
        self.device = hidden.device

    def of(self, hidden: Tensor) -> Tensor:
        """Returns the logits of some hidden states `[n, size]`."""
        device, dtype, enabled = self._autocast
        with torch.autocast(device, dtype, enabled):
            logits: Tensor = type(self._head).forward(self._head, hidden)
        logits = logits.float() if self._as_float else logits
        for change in self._further:
            logits = change(logits)
        return logits

    @property
    def linear(self) -> Any:
        """The head if it is a plain product and nothing but a conversion follows it, otherwise None."""
        return self._head if type(self._head) is nn.Linear and not self._further else None

    @property
    def tokens(self) -> int:
        """The number of tokens of a chunk."""
        return max(1, min(CHUNK, MOST // self.shape[-1]))

    def cross_entropy(self, targets: Tensor, reduction: str = "sum", label_smoothing: float = 0.0) -> Tensor:
        """Returns the cross entropy with targets `[n]` of the flattened positions, as `torch.nn.functional` does."""
        hidden = self._hidden.flatten(0, -2)
        trained = [parameter for parameter in self._head.parameters() if parameter.requires_grad]
        if not torch.is_grad_enabled():
            losses = self.losses(hidden, targets, label_smoothing, keep_best=True)
            return losses.sum() if reduction == "sum" else losses
        # The gradient that is found in the forward pass is not scaled yet, so that it could vanish in float16.
        early = reduction == "sum" and hidden.dtype != torch.float16
        loss: Tensor = _Chunked.apply(self, early, label_smoothing, hidden, targets, *trained)
        return loss.sum() if reduction == "sum" and not early else loss

    def losses(self, hidden: Tensor, targets: Tensor, label_smoothing: float, keep_best: bool = False) -> Tensor:
        """Returns the cross entropy `[n]` of each position without gradients; may keep the likeliest classes."""
        losses, best = [], []
        for part, own in zip(hidden.split(self.tokens), targets.split(self.tokens), strict=True):
            logits = self.of(part)
            losses.append(cross_entropy(logits, own, reduction="none", label_smoothing=label_smoothing))
            best += [logits.argmax(-1)] if keep_best else []
        self._best = torch.cat(best).view(self.shape[:-1]) if keep_best else None
        return torch.cat(losses)

    def argmax(self, dim: int = -1) -> Tensor:
        """Returns the likeliest classes, `[...]`."""
        if self._best is None:
            with torch.no_grad():
                best = [self.of(part).argmax(dim) for part in self._hidden.flatten(0, -2).split(self.tokens)]
            self._best = torch.cat(best).view(self.shape[:-1])
        return self._best

    def whole(self) -> Tensor:
        """Returns the logits."""
        return self.of(self._hidden.flatten(0, -2)).view(self.shape)

    def _then(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Deferred:
        made = copy(self)
        made._further, made.dtype = (*self._further, change), dtype or self.dtype
        return made

    def float(self) -> Deferred:
        """Defers a conversion to float32."""
        if not self._further:
            made = copy(self)
            made._as_float, made.dtype = True, torch.float32
            return made
        return self._then(lambda logits: logits.float(), torch.float32)

    def to(self, *given: Any, **named: Any) -> Any:
        """Defers a conversion to another type."""
        dtype = next((each for each in (*given, *named.values()) if isinstance(each, torch.dtype)), None)
        return self._then(lambda logits: logits.to(*given, **named), dtype)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        first, *others = given
        deferred = function in ELEMENTWISE and isinstance(first, Deferred) and not named
        if deferred and all(map(first._of_classes, others)):
            rest = [each.flatten() if isinstance(each, Tensor) and each.dim() else each for each in others]
            return first._then(lambda logits: function(logits, *rest))
        whole = [each.whole() if isinstance(each, Deferred) else each for each in given]
        return function(*whole, **(named or {}))

    def _of_classes(self, value: Any) -> bool:
        """Whether a value is a number, or has one for each class."""
        return value.numel() in (1, self.shape[-1]) if isinstance(value, Tensor) else isinstance(value, int | float)

    def _operator(self, function: Any, other: Any) -> Any:
        return self.__torch_function__(function, (), (self, other))

    __mul__ = __rmul__ = partialmethod(_operator, torch.mul)
    __add__ = __radd__ = partialmethod(_operator, torch.add)
    __sub__ = partialmethod(_operator, torch.sub)
    __truediv__ = partialmethod(_operator, torch.div)

    def __getitem__(self, place: Any) -> Tensor:
        return self.whole()[place]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole(), name)


ELEMENTWISE = (torch.mul, torch.div, torch.add, torch.sub, torch.tanh)
"""Operations that are deferred, with a `Deferred` first."""


class _Chunked(torch.autograd.Function):
    """The cross entropy of deferred logits; see the module."""

    @staticmethod
    def forward(
        ctx: Any, logits: Deferred, early: bool, smoothing: float, hidden: Tensor,
        targets: Tensor, *trained: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.logits, ctx.early, ctx.smoothing, ctx.trained = logits, early, smoothing, trained
        if early:
            ctx.gradients, loss = _differentiated(ctx, hidden, targets, None)
            return loss
        ctx.save_for_backward(hidden, targets)
        return logits.losses(hidden, targets, smoothing)

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        (weight,) = given
        if ctx.early:
            found = [None if each is None else each.mul_(weight.to(each.dtype)) for each in ctx.gradients]
        else:
            hidden, targets = ctx.saved_tensors
            found, _ = _differentiated(ctx, hidden, targets, weight)
        return None, None, None, found[0], None, *found[1:]


def _differentiated(
    ctx: Any, hidden: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[list[Tensor | None], Tensor]:
    """Returns the gradients by the hidden states and the parameters, and the summed loss, weighted by token."""
    add_chunk: Callable[..., Tensor] = _by_autograd if ctx.logits.linear is None else _of_product
    of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[3] else None
    of_trained, total, tokens = [torch.zeros_like(each) for each in ctx.trained], torch.zeros(()), ctx.logits.tokens
    sides = (repeat(None) if each is None else each.split(tokens) for each in (weights, of_hidden))
    for place, chunk in enumerate(zip(hidden.split(tokens), targets.split(tokens), *sides, strict=False)):
        loss = add_chunk(ctx, *chunk, of_trained)
        total = total + loss if place else loss
    return [of_hidden, *of_trained], total


def _by_autograd(
    ctx: Any, hidden: Tensor, targets: Tensor, weights: Tensor | None, of_hidden: Tensor | None, sums: list[Tensor]
) -> Tensor:
    """Returns the loss of a chunk; writes the gradient by its hidden states, and adds those by parameters to `sums`."""
    with torch.enable_grad():
        given = hidden.detach().requires_grad_(of_hidden is not None)
        losses = cross_entropy(ctx.logits.of(given), targets, reduction="none", label_smoothing=ctx.smoothing)
        loss = (losses if weights is None else losses * weights).sum()
    asked = [*(() if of_hidden is None else (given,)), *ctx.trained]
    found = list(torch.autograd.grad(loss, asked)) if asked else []
    if of_hidden is not None:
        of_hidden.copy_(found.pop(0))
    for sum_of, one in zip(sums, found, strict=True):
        sum_of += one
    return loss.detach()


def _of_product(
    ctx: Any, hidden: Tensor, targets: Tensor, weights: Tensor | None, of_hidden: Tensor | None, sums: list[Tensor]
) -> Tensor:
    """Does the same for a head that is one product: the probabilities become the gradient in place."""
    head, smoothing, classes = ctx.logits.linear, ctx.smoothing, ctx.logits.shape[-1]
    logits = ctx.logits.of(hidden)
    known, places = (targets != IGNORE_INDEX).to(logits.dtype), targets.clamp(min=0)[:, None]
    right, mean = logits.gather(1, places)[:, 0], logits.mean(-1) if smoothing else 0.0
    highest = logits.amax(-1, keepdim=True)
    likely = logits.sub_(highest).exp_()
    size = likely.sum(-1, keepdim=True)
    losses = (size.log() + highest)[:, 0] - (1 - smoothing) * right - smoothing * mean
    given = known if weights is None else known * weights
    gradient = likely.div_(size).scatter_add_(1, places, torch.full_like(places, smoothing - 1, dtype=likely.dtype))
    gradient = (gradient.sub_(smoothing / classes) if smoothing else gradient).mul_(given[:, None])
    # As in the backward pass of the product, which is in the precision of its inputs.
    exact = gradient.to(ctx.logits.computed)
    if of_hidden is not None:
        of_hidden.copy_(exact @ head.weight.to(exact.dtype))
    for parameter, sum_of in zip(ctx.trained, sums, strict=True):
        if parameter is not head.weight:
            sum_of += exact.sum(0)
        elif sum_of.dtype == exact.dtype:
            sum_of.addmm_(exact.T, hidden.detach().to(exact.dtype))
        else:
            sum_of += exact.T @ hidden.detach().to(exact.dtype)
    return (losses * given).sum()
