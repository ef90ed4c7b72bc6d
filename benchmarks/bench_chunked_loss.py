"""Time and memory of a language model's loss in chunks of tokens, against that of whole logits.

    python benchmarks/bench_chunked_loss.py [--pairs 5] [--cpu-time]

Forward and backward pass of the head and its cross entropy alone: 4,096 tokens of width 512, and a vocabulary of
128,000. Memory is the peak above the weight, its gradient and the hidden states.
"""

from __future__ import annotations

import statistics
from typing import Any

from pairs import Clock, calling, compared, interleave, parser, read_options, write

PLAIN, CHUNKED = "whole logits", "in chunks"
PASSES = 3


def passes(chunked: bool, classes: int, width: int, tokens: int) -> dict[str, Any]:
    """Runs the passes of a side, and returns the fastest one's seconds and the peak of memory."""
    import torch
    from torch import nn

    from toolkit.api.batch import logits_at_labels
    from toolkit.models.chunked import chunk_head
    from toolkit.system.memory import peak_memory_bytes
    from toolkit.tasks.tokens import labelled_positions, token_losses

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(width, classes, bias=False)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    torch.manual_seed(0)
    model, hidden = Head(), torch.randn(1, tokens, width, requires_grad=True)
    if chunked:
        chunk_head(model)
    labels = torch.randint(classes, (1, tokens))
    batch: Any = {"inputs": {}, "labels": labels, "labelled": labelled_positions(labels)}
    model.head.weight.grad, hidden.grad = torch.zeros_like(model.head.weight), torch.zeros_like(hidden)
    before, seconds, clock = peak_memory_bytes(hidden.device), [], Clock()
    for _ in range(PASSES):
        begin = clock.now()
        with logits_at_labels(batch):
            loss = token_losses(model.head(hidden), labels, labelled=batch["labelled"])
        loss.backward()
        seconds.append(clock.now() - begin)
    return {"seconds": min(seconds), "mib": (peak_memory_bytes(hidden.device) - before) / 2**20}


def main() -> None:
    """Measures both sides."""
    options = read_options(parser(__doc__, pairs=5))
    classes, width, tokens = (2000, 16, 600) if options.quick else (128_000, 512, 4096)
    sizes = {"classes": classes, "width": width, "tokens": tokens}
    sides = [calling(name, passes, chunked=name == CHUNKED, **sizes) for name in (PLAIN, CHUNKED)]
    runs = interleave(sides, options)
    memory = {name: statistics.median(run["mib"] for run in each) for name, each in runs.items()}
    figures: dict[str, Any] = {**compared(runs, PLAIN, CHUNKED), "mib": memory}
    write("chunked_loss", "chunked loss", "a loss in chunks of tokens, against whole logits", figures, options)


if __name__ == "__main__":
    main()
