"""What stages of an encoder-decoder would cost beside those of a decoder, counted without training in stages.

    python benchmarks/bench_stages.py

Micro-batches of 4 sample rows, as the recipes make them, are counted for models of the shapes of T5-base, Whisper-small
and a Llama of their hidden size and number of layers, with their complete vocabulary:

- waiting: the share of a window of 8 micro-batches in which a stage waits under 1F1B, from the operations of each layer
  (twice as many in the backward pass) and the best cut for the average micro-batch. `bubble` is the share of equal
  passes, `cut` of the average micro-batch, `lengths` if all layers grew alike with a micro-batch, `all` as it is.
- sent: bytes of a micro-batch over all borders, in float32 and both directions. The decoder's stages pass on the
  encoder's output. Beside it, those of a decoder with the same hidden size and number of tokens.
- generation: the decoder's passes of each batch that is evaluated, in runs of two shipped configurations, and the
  tokens of its longest reference, of which a good model takes as many passes.
- memory: the counted peak of a T5-base under FSDP2 on 4 processes in float32 (`tracking.count_memory`), and the least
  that the largest of 4 stages holds for the same rows per step: weights, gradients, state of AdamW, and saved
  activations of the micro-batches under way.

Nothing depends on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from pairs import RESULTS, ROOT, cpu

from toolkit.system.environment import checkout, versions

MIB, WINDOW, ROWS, EPOCHS, BYTES = 2**20, 8, 4, 8, 4
ADAM = 4
"""Numbers per weight: itself, its gradient and two moments."""
T5 = {"model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12,
      "dropout_rate": 0.0}  # fmt: skip
LLAMA = {"model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 24,
         "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 32128,
         "tie_word_embeddings": True}  # fmt: skip
WHISPER = {"model_type": "whisper", "d_model": 768, "encoder_layers": 12, "decoder_layers": 12,
           "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
           "decoder_ffn_dim": 3072, "vocab_size": 51865, "dropout": 0.0}  # fmt: skip
SIZES = (f"train.per_device_train_batch_size={ROWS}", f"train.gradient_accumulation_steps={WINDOW}",
         "train.global_batch_size=null")  # fmt: skip
SHORT = (
    "model.from_config=null", "train.max_steps=2", "train.mixed_precision=no", "data.validation_file=null",
    "data.max_eval_samples=4", "eval.eval_steps=null", "checkpoint.save_steps=null", "tracking.count_memory=true",
)  # fmt: skip
GROUPED = "train.train_sampling_strategy=group_by_length"
CASES: dict[str, tuple[dict[str, Any], str, str, tuple[str, ...]]] = {
    "T5-base, translation": (T5, "translation", "smoke", ()),
    "T5-base, translation, grouped by length": (T5, "translation", "smoke", (GROUPED,)),
    "T5-base, summarization": (T5, "summarization", "smoke", ()),
    "Whisper-small, speech recognition": (WHISPER, "speech_recognition", "smoke_whisper", ()),
    "Llama, language modelling": (LLAMA, "language_modeling", "smoke", ()),
    "Llama, chat": (LLAMA, "language_modeling", "smoke_chat", ()),
}
"""Model, recipe, its configuration, and further settings of each case."""
GENERATED = {"smoke": (), "multi30k": tuple(
    f"data.{part}_file={ROOT}/recipes/data/translation/{part}.jsonl" for part in ("train", "validation")
)}  # fmt: skip
"""Configurations of translation that are trained; the larger one on the sample rows."""
FRAMES = 3000
"""Frames of Whisper's inputs of 30 seconds."""

Shape = tuple[int, int, int]
"""Rows, tokens of the encoder or of a decoder without one, tokens of the decoder behind an encoder or 0."""


def inputs_of(recipe: str, config: str, settings: Sequence[str], folder: Path) -> tuple[Any, Any, Any]:
    """Returns the configuration, the task and the inputs of a training in windows of `WINDOW` micro-batches."""
    from toolkit.checkpoint.output_folder import Claimed
    from toolkit.distributed.launch import build_accelerator
    from toolkit.prepare.inputs import read_inputs
    from toolkit.recipe import load_settings, load_task_type

    task_type = load_task_type(ROOT / f"recipes/{recipe}.py")
    file = ROOT / f"recipes/configs/{recipe}/{config}.yaml"
    cfg = load_settings(task_type, file, [*SIZES, *settings, f"output_dir={folder}"]).config
    task = task_type(cfg)
    return cfg, task, read_inputs(cfg, task, build_accelerator(cfg), Claimed(folder, None))


def windows_of(recipe: str, config: str, settings: Sequence[str]) -> Iterator[list[Shape]]:
    """Yields the shapes of the micro-batches of each complete window."""
    from toolkit.api.mesh import Mesh
    from toolkit.data.batching.batches import Windows, training_loader

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cfg, task, inputs = inputs_of(recipe, config, settings, Path(folder))
        loader, sampler = training_loader(inputs.data.train, task, inputs.processor, cfg, Mesh.of(cfg.parallel, 1))
        for epoch in range(EPOCHS):
            sampler.seek(epoch)
            for window in Windows(loader, sampler):
                shapes = [shape_of(batch["inputs"]) for batch in window]
                if [shape[0] for shape in shapes] == [ROWS] * WINDOW:
                    yield shapes


def shape_of(inputs: Mapping[str, Any]) -> Shape:
    """Returns the shape of a micro-batch; clips are as long as Whisper's."""
    target = inputs["decoder_input_ids"].shape[1] if "decoder_input_ids" in inputs else 0
    source = inputs["input_ids"].shape[1] if "input_ids" in inputs else FRAMES // 2
    return len(next(iter(inputs.values()))), source, target


class Counted:
    """Operations and saved bytes of each layer in forward passes of a model without memory, and its weights."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

        from toolkit.distributed.placement import layers_of

        kind = {"t5": AutoModelForSeq2SeqLM, "whisper": AutoModelForSpeechSeq2Seq, "llama": AutoModelForCausalLM}
        config = AutoConfig.for_model(**settings)
        with torch.device("meta"):
            self.model = kind[config.model_type].from_config(config, attn_implementation="eager")
        self.layers, self.hidden = layers_of(self.model), config.hidden_size
        self.encoder = len(self.layers) // 2 if config.is_encoder_decoder else 0
        self.ends: list[tuple[int, int]] = []
        self.now = lambda: (0, 0)
        for layer in self.layers:
            layer.register_forward_hook(lambda *_: self.ends.append(self.now()))
        self.of = cache(self._of)

    def _of(self, shape: Shape) -> tuple[list[int], list[int]]:
        """Returns the operations and the saved bytes of each layer; what is around the layers counts for neighbours."""
        import torch
        from torch.autograd.graph import saved_tensors_hooks
        from torch.utils.flop_counter import FlopCounterMode

        rows, source, target = shape
        weights = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        saved: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if (place := tensor.untyped_storage()._cdata) not in weights:
                saved[place] = tensor
            return tensor

        empty, last = partial(torch.zeros, device="meta"), target or source
        given = {"input_ids": empty(rows, source, dtype=torch.long)}
        if self.model.config.model_type == "whisper":
            given = {"input_features": empty(rows, 80, FRAMES)}
        if target:
            given["decoder_input_ids"] = empty(rows, target, dtype=torch.long)
        # Whole masks, because those of fewer dimensions are made from values.
        given["decoder_attention_mask" if target else "attention_mask"] = empty(rows, 1, last, last)
        self.ends.clear()
        with FlopCounterMode(display=False) as counter, saved_tensors_hooks(keep, lambda tensor: tensor):
            self.now = lambda: (counter.get_total_flops(), sum(t.untyped_storage().nbytes() for t in saved.values()))
            output = self.model(**given, use_cache=False)
            output.logits.float().log_softmax(-1)
            ends = [(0, 0), *self.ends[:-1], self.now()]
        found = [[after - before for before, after in pairwise(column)] for column in zip(*ends, strict=True)]
        return found[0], found[1]


def waiting(costs: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns how long stages wait in a window under 1F1B, and how long it takes them all, given forward passes.

    Args:
        costs: of each micro-batch, the cost of its forward pass in each stage; the backward pass costs twice as much.
    """
    from toolkit.distributed.pipeline.schedules import SCHEDULES

    stages = len(costs[0])
    waits = [SCHEDULES["1f1b"](rank, stages, 1, len(costs)) for rank in range(stages)]
    free, ends = [0.0] * stages, dict[tuple[str, int, int], float]()
    while any(waits):
        for rank, actions in enumerate(waits):
            while actions:
                kind, number = actions[0].kind, actions[0].micro_batch
                source = rank - 1 if kind == "forward" else rank + 1
                if 0 <= source < stages and (kind, source, number) not in ends:
                    break
                begin = max(free[rank], ends.get((kind, source, number), 0.0))
                free[rank] = begin + costs[number][rank] * (1 if kind == "forward" else 2)
                ends[kind, rank, number] = free[rank]
                actions.pop(0)
    whole = stages * max(free)
    return whole - 3 * sum(map(sum, costs)), whole


def shares(counted: Counted, windows: Sequence[Sequence[Shape]], stages: int) -> tuple[list[range], dict[str, float]]:
    """Returns the layers of each stage, and the shares of waiting."""
    from toolkit.distributed.pipeline.partition import partition

    every = [[counted.of(shape)[0] for shape in window] for window in windows]
    average = [fmean(layer) for layer in zip(*(costs for window in every for costs in window), strict=True)]
    ranges = partition(average, stages)
    alike = [[[sum(costs) / sum(average) * cost for cost in average] for costs in window] for window in every]
    found = {"bubble": (stages - 1) / (WINDOW + stages - 1)}
    for name, costs in (("cut", [[average] * WINDOW]), ("lengths", alike), ("all", every)):
        cut = [[[sum(layers[r.start : r.stop]) for r in ranges] for layers in window] for window in costs]
        waits, wholes = zip(*map(waiting, cut), strict=True)
        found[name] = sum(waits) / sum(wholes)
    return ranges, found


def sent(counted: Counted, shapes: Sequence[Shape], ranges: Sequence[range]) -> dict[str, float]:
    """Returns the MiB of a micro-batch over all borders, and those of a decoder with as many tokens."""
    factor, own, other = 2 * BYTES * counted.hidden / MIB, [], []
    for rows, source, target in shapes:
        tokens = [source + (target if stage.stop > counted.encoder else 0) for stage in ranges[:-1]]
        own.append(factor * rows * sum(tokens))
        other.append(factor * rows * (source + target) * len(tokens))
    return {"sent": fmean(own), "sent_by_decoder": fmean(other)}


def measured(name: str) -> dict[str, Any]:
    """Returns the figures of a case, by the number of stages."""
    model, *place = CASES[name]
    windows = list(windows_of(*place))
    counted, decoder = Counted(model), Counted(LLAMA)
    shapes = [shape for window in windows for shape in window]
    operations = fmean(sum(counted.of(shape)[0]) for shape in shapes)
    of_decoder = fmean(sum(decoder.of((rows, source + target, 0))[0]) for rows, source, target in shapes)
    found: dict[str, Any] = {
        "windows": len(windows), "source_tokens": fmean(shape[1] for shape in shapes),
        "target_tokens": fmean(shape[2] for shape in shapes), "operations": operations,
        "operations_of_decoder": of_decoder,
    }  # fmt: skip
    for stages in (2, 4):
        ranges, waits = shares(counted, windows, stages)
        layers = [len(stage) for stage in ranges]
        found[f"{stages} stages"] = {"layers": layers, "waiting": waits, **sent(counted, shapes, ranges)}
    return found


def generated(config: str) -> dict[str, Any]:
    """Trains a configuration of translation; returns the decoder's passes of each batch that it evaluates."""
    import toolkit
    from toolkit.base.package import replaced
    from toolkit.modalities import seq2seq

    passes: list[int] = []
    references: list[int] = []
    generate = seq2seq.generate

    def counting(model: Any, outputs: Any, inputs: Any, **settings: Any) -> Any:
        passes.append(0)
        references.append(inputs["decoder_input_ids"].shape[1])
        handle = model.register_forward_hook(lambda *_: passes.append(passes.pop() + 1))
        ids = generate(model, outputs, inputs, **settings)
        handle.remove()
        return ids

    with tempfile.TemporaryDirectory(prefix="bench-") as folder, replaced(seq2seq, "generate", counting):
        toolkit.train(
            ROOT / "recipes/translation.py", ROOT / f"recipes/configs/translation/{config}.yaml",
            [*GENERATED[config], f"output_dir={folder}/run"],
        )  # fmt: skip
    counts = {"passes": fmean(passes), "fewest": min(passes), "most": max(passes)}
    return {"batches": len(passes), **counts, "longest_reference": fmean(references)}


def memory(processes: int = 4) -> dict[str, float]:
    """Returns the counted peak of a T5-base under FSDP2 and the least that a pipeline's largest stage holds, in MiB."""
    from transformers import AutoModelForSeq2SeqLM

    name, counted = next(iter(CASES)), Counted(T5)
    windows = list(windows_of(*CASES[name][1:]))
    shapes = [shape for window in windows for shape in window]
    ranges, _ = shares(counted, windows, processes)
    saved = [fmean(layer) for layer in zip(*(counted.of(shape)[1] for shape in shapes), strict=True)]
    table = counted.model.get_input_embeddings().weight.numel()
    stages = []
    for rank, stage in enumerate(ranges):
        tied = any(place in stage for place in (0, counted.encoder, len(counted.layers) - 1))
        weights = sum(p.numel() for place in stage for p in counted.layers[place].parameters()) + tied * table
        stages.append(BYTES * ADAM * weights + (processes - rank) * sum(saved[stage.start : stage.stop]))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        _, _, inputs = inputs_of("translation", "smoke", (f"model.from_config={T5}",), Path(folder))
        inputs.model_config.vocab_size = counted.model.config.vocab_size  # not only what the sample rows fill
        AutoModelForSeq2SeqLM.from_config(inputs.model_config).save_pretrained(f"{folder}/model")
        inputs.processor.save_pretrained(f"{folder}/model")
        command = [
            sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes), "--config_file",
            "accelerate_configs/cpu_2proc.yaml", "recipes/translation.py", "--config",
            "recipes/configs/translation/smoke.yaml", *SIZES, *SHORT,
            f"train.gradient_accumulation_steps={WINDOW // processes}",
            f"parallel.fsdp={processes}", f"model.name_or_path={folder}/model", f"output_dir={folder}/run",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, env=environment, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        result = json.loads((Path(folder) / "run/run.json").read_text(encoding="utf-8"))["result"]
    return {"FSDP2": max(result["counted_peak_bytes"]) / MIB, "largest stage, at least": max(stages) / MIB}


def main() -> None:
    """Counts everything and writes `stages.json`."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    options = made.parse_args()
    state = checkout(ROOT)
    page = {
        "rows": ROWS, "window": WINDOW, "cases": {name: measured(name) for name in CASES},
        "generation": {config: generated(config) for config in GENERATED}, "memory": memory(),
        **cpu(), "versions": versions(), "commit": state.commit if state else None,
    }  # fmt: skip
    text = json.dumps(page, indent=2) + "\n"
    print(text)
    (options.results / "stages.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
