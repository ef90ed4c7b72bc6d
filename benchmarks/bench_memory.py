"""Peak memory and time of one step with activations stored, recomputed in some layers, and recomputed in all.

    python benchmarks/bench_memory.py [--layers 12] [--hidden 256] [--rows 16] [--length 256]

Each variant runs the forward and backward pass of a randomly initialised BERT in a separate process. Peak memory is
that of the process (or the GPU) above the memory in use before the first pass, with model, gradients and inputs
allocated. The gradient norm is compared with that of the first variant.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch

VARIANTS = ("none", "every_2_layers", "full")
PASSES = 3


def measure(setting: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Runs one variant in this process and returns its peak memory, seconds per pass and gradient norm."""
    from accelerate import Accelerator
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from toolkit.config.sections import TrainConfig
    from toolkit.models.activations import spare_activations
    from toolkit.system.memory import peak_memory_bytes

    device = Accelerator().device
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "bert", vocab_size=1000, hidden_size=arguments.hidden, num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64, intermediate_size=4 * arguments.hidden,
        max_position_embeddings=arguments.length,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_config(config).to(device).train()
    spare_activations(model, TrainConfig(activation_checkpointing=setting))
    ids = torch.randint(0, 1000, (arguments.rows, arguments.length), device=device)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # so that gradients do not count as activations
    baseline, seconds = peak_memory_bytes(device), []
    for _ in range(PASSES):
        torch.manual_seed(1)
        model.zero_grad(set_to_none=False)
        start = time.perf_counter()
        model(input_ids=ids).logits.square().sum().backward()
        norm = float(torch.stack([p.grad.double().square().sum() for p in model.parameters()]).sum().sqrt())
        seconds.append(time.perf_counter() - start)
    return {"peak_mib": (peak_memory_bytes(device) - baseline) / 2**20, "seconds": min(seconds), "norm": norm}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("hidden", 256), ("rows", 16), ("length", 256)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.variant, arguments)))
        return
    found = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, *sys.argv[1:], "--variant", variant]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[variant] = json.loads(done.stdout.splitlines()[-1])
    kept = found["none"]
    print(f"{'activation_checkpointing':26}{'peak MiB':>10}{'of none':>9}{'seconds':>9}{'of none':>9}{'gradient':>11}")
    for variant, figures in found.items():
        memory, seconds = figures["peak_mib"], figures["seconds"]
        print(
            f"{variant:26}{memory:10.0f}{memory / kept['peak_mib']:9.2f}{seconds:9.2f}{seconds / kept['seconds']:9.2f}"
            f"{abs(figures['norm'] / kept['norm'] - 1):11.1e}"
        )


if __name__ == "__main__":
    main()
