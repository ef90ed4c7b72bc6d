"""Attention over sequences of any lengths on a GPU, by PyTorch's kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from toolkit.models.unpadded import attention
from toolkit.models.unpadded.packing import Packing, Rows

pytestmark = pytest.mark.gpu
RATE = 0.25
LENGTHS = (64, 3, 1, 40, 17, 33)
KERNELS = {torch.bfloat16: "flash", torch.float16: "flash", torch.float32: "efficient"}
ROUNDING = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 1e-5}


def packing(causal: bool = False) -> Packing:
    longest = max(LENGTHS)
    mask = torch.arange(longest) < torch.tensor(LENGTHS)[:, None]
    rows = Rows.of(mask.cuda())
    assert rows is not None
    return Packing(rows, rows, causal, None, {})


def heads(dtype: torch.dtype, size: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = [torch.randn(1, 4, sum(LENGTHS), size, device="cuda", dtype=dtype) for _ in range(3)]
    return [each.requires_grad_() for each in made]


def close(found: list[torch.Tensor], expected: list[torch.Tensor], dtype: torch.dtype) -> None:
    for one, other in zip(found, expected, strict=True):
        difference = (one.float() - other.float()).abs().max() / other.float().abs().max()
        assert difference < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", KERNELS)
@pytest.mark.parametrize("size", [8, 64, 80, 192])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_in_one_call_is_that_of_each_sequence(causal, size, dtype, monkeypatch):
    def computed(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        output = attention.attend(nn.Module(), *inputs, packing(causal))[0]
        return [output, *torch.autograd.grad((output.float() ** 2).sum(), inputs)]

    inputs = heads(dtype, size)
    assert attention.choose(torch.device("cuda"), dtype, 0.0, True, 64, size) == KERNELS[dtype]
    found = computed(inputs)
    monkeypatch.setattr(attention, "choose", lambda *_: "split")
    close(found, computed([each.detach().float().requires_grad_() for each in inputs]), dtype)


@pytest.mark.parametrize("dtype", KERNELS)
def test_dropout_of_attention_has_its_rate_and_its_gradient(dtype):
    expected = "split" if dtype == torch.float32 else "flash"
    assert attention.choose(torch.device("cuda"), dtype, RATE, True, 64, 64) == expected
    close(*with_dropout(dtype), dtype)


def test_the_kernel_for_float32_drops_other_weights_in_its_backward_pass(monkeypatch):
    """So it is not used with dropout; when this fails, torch has mended it."""
    monkeypatch.setattr(attention, "choose", lambda *_: "efficient")
    found, expected = with_dropout(torch.float32)
    close(found[:1], expected[:1], torch.float32)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one - other).abs().max() / other.abs().max() > 0.1


def test_sources_of_equal_length_are_attended_to_by_padded_targets():
    """Rows without padding know no device of their own."""
    targets, sources = packing().keys, Rows(None, [8] * len(LENGTHS), 8)
    query = heads(torch.bfloat16)[0]
    key, value = (torch.randn(1, 4, sources.total, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    crossed = Packing(sources, targets, False, None, {})
    found = attention.attend(nn.Module(), query, key, value, crossed)[0]
    parts = zip(query.split(LENGTHS, 2), key.split(8, 2), value.split(8, 2), strict=True)
    expected = [nn.functional.scaled_dot_product_attention(*each).transpose(1, 2) for each in parts]
    close([found], [torch.cat(expected, 1)], torch.bfloat16)


def with_dropout(dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Returns output and gradients with dropout, and those of the same weights dropped by hand.

    With the unit matrix as values, the output shows which weights were dropped; their rate is checked here.
    """
    packed = packing()
    query, key, value = heads(dtype)
    ones = torch.cat([torch.eye(length, 64) for length in LENGTHS]).expand(1, 4, -1, -1).to(query)

    def attended(values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return attention.attend(nn.Module(), query, key, values, packed, RATE)[0]

    kept = [part[0, :, :, :length] > 0 for part, length in zip(
        attended(ones).transpose(1, 2).split(LENGTHS, 2), LENGTHS, strict=True
    )]  # fmt: skip
    count, share = sum(map(torch.numel, kept)), sum(map(torch.sum, kept)) / sum(map(torch.numel, kept))
    assert abs(share - (1 - RATE)) < 4 * (RATE * (1 - RATE) / count) ** 0.5
    assert not torch.equal(
        kept[0], attention.attend(nn.Module(), query, key, ones, packed, RATE)[0][0, :64].transpose(0, 1) > 0
    )
    output = attended(value)
    found = [output, *torch.autograd.grad((output.float() ** 2).sum(), (query, key, value))]
    inputs = [each.detach().float().requires_grad_() for each in (query, key, value)]
    parts = []
    for mask, *part in zip(kept, *(each.split(LENGTHS, 2) for each in inputs), strict=True):
        weights = (part[0][0] @ part[1][0].mT / 8).softmax(-1) * mask / (1 - RATE)
        parts.append((weights @ part[2][0]).transpose(0, 1))
    expected = torch.cat(parts)[None]
    return found, [expected, *torch.autograd.grad((expected**2).sum(), inputs)]
