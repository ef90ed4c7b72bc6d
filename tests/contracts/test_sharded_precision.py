"""FSDP2 in 16 bits, exchanges by micro-batch and by window, and the bytes that processes hold and send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sharded_runs
from launching import fork
from runs import weights
from tolerances import FLOAT64

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

KINDS = ("translation", "vit", "whisper")
SPLIT = ("fsdp", "chunked", "tensor", "tensor_chunked")
ON_TWO = (
    "llama/float64/fsdp", "llama/float64/window", "llama/float64/recomputed", "llama/bf16/ddp", "llama/bf16/fsdp",
    "llama/bf16/window", "llama/bf16/recomputed", "llama/float32/fsdp", "llama/float32/window",
    *(f"{kind}/bf16/fsdp" for kind in KINDS),
    *(f"llama/float64/{name}" for name in ("segments", "nested", "tensor_chunked")),
    *(f"{name}/float64/chunked" for name in ("llama", "lora", "frozen")),
    *(f"wide/bf16/{name}" for name in ("fsdp", "chunked")), *(f"wide/float32/{name}" for name in SPLIT),
    *(f"llama/bf16/{name}" for name in ("segments", "nested", "chunked")),
)  # fmt: skip
ALONE = (
    "llama/float64",
    "lora/float64",
    "frozen/float64",
    *(f"{name}/{precision}" for name in ("llama", *KINDS) for precision in ("float32", "bf16")),
)


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    fork([Path(sharded_runs.__file__), folder, *ON_TWO], 2, timeout=1200)
    sharded_runs.main(folder, *ALONE)
    return folder


def run(output: Path, name: str) -> Path:
    return output / name.replace("/", "-of-")


def distance(one: Path, other: Path) -> float:
    """Returns the 2-norm of the differences of all weights."""
    first, second = weights(one), weights(other)
    return sum(float((value.double() - second[name].double()).square().sum()) for name, value in first.items()) ** 0.5


def result(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["result"]


@pytest.mark.parametrize("name", [name for name in ON_TWO if "float64" in name])
def test_shards_train_like_one_process(output, name):
    one, other = weights(run(output, name.rpartition("/")[0])), weights(run(output, name))
    assert max(float((one[name] - value).abs().max()) for name, value in other.items()) <= FLOAT64


@pytest.mark.parametrize(("name", "how"), [*((name, "fsdp") for name in ("llama", *KINDS)), ("llama", "chunked")])
def test_16_bits_are_as_near_to_float32_as_autocast_of_one_process(output, name, how):
    autocast = distance(run(output, f"{name}/bf16"), run(output, f"{name}/float32"))
    assert 0 < distance(run(output, f"{name}/bf16/{how}"), run(output, f"{name}/float32")) <= 1.15 * autocast


def test_recomputed_segments_and_losses_in_chunks_hold_less(output):
    """Bytes that are counted: the layers of a segment are freed again, and logits are never whole."""
    named = [name for name in ON_TWO if "float64" not in name]
    peak = {name: max(result(run(output, name))["counted_peak_bytes"]) for name in named}
    assert max(peak["llama/bf16/segments"], peak["llama/bf16/nested"]) < 0.95 * peak["llama/bf16/fsdp"]
    for plain, chunked in (("bf16/fsdp", "bf16/chunked"), ("float32/fsdp", "float32/chunked"),
                           ("float32/tensor", "float32/tensor_chunked")):  # fmt: skip
        assert peak[f"wide/{chunked}"] < 0.8 * peak[f"wide/{plain}"], chunked


def test_processes_hold_shards_and_send_16_bits(output):
    names = ("bf16/ddp", "bf16/fsdp", "bf16/window", "bf16/recomputed", "float32/fsdp", "float32/window")
    figures = {name: result(run(output, f"llama/{name}")) for name in names}
    peak = {name: max(each["counted_peak_bytes"]) for name, each in figures.items()}
    assert all(len(each["counted_peak_bytes"]) == 2 for each in figures.values())
    assert peak["bf16/fsdp"] <= 0.6 * peak["bf16/ddp"]
    assert peak["bf16/recomputed"] < peak["bf16/fsdp"] < peak["bf16/window"]
    assert peak["bf16/fsdp"] < peak["float32/fsdp"] < peak["float32/window"]
    parameters = figures["bf16/ddp"]["trainable_parameters"] * 4 / 2 * 5  # bytes of a share, for five steps
    sent = {name: each["exchange_bytes"] / parameters for name, each in figures.items() if "ddp" not in name}
    # Of three micro-batches: gathered twice each, in halves in 16 bits; gradients after each, or once.
    expected = {"bf16/fsdp": 3 + 3, "bf16/window": 3 + 1, "bf16/recomputed": 3 + 3, "float32/fsdp": 6 + 3,
                "float32/window": 6 + 1}  # fmt: skip
    assert sent == pytest.approx(expected, rel=0.02)


def test_groups_of_shards_exchange_once_per_window(tmp_path):
    names = [f"llama/float64/{strategy}" for strategy in ("hsdp", "hsdp_all", "fsdp_tensor_all")]
    mixed = [f"llama/bf16/{strategy}" for strategy in ("hsdp", "fsdp_tensor", "fsdp_context", "fsdp_pipeline")]
    fork([Path(sharded_runs.__file__), tmp_path, *names, *mixed], 4, timeout=900)
    sharded_runs.main(tmp_path, *(f"llama/{precision}" for precision in ("float64", "float32", "bf16")))
    far = {name: distance(run(tmp_path, name), run(tmp_path, "llama/float32")) for name in ("llama/bf16", *mixed)}
    assert max(far.values()) <= 1.15 * far["llama/bf16"], far
    one = weights(run(tmp_path, "llama/float64"))
    for other in names:
        found = weights(run(tmp_path, other))
        assert max(float((one[name] - value).abs().max()) for name, value in found.items()) <= FLOAT64, other
