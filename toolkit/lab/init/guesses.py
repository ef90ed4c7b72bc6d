"""Guesses of settings from the rows: lengths, limits, batch sizes, epochs."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from toolkit.config.keys import to_yaml
from toolkit.lab.init.models import characters_per_token, language_of
from toolkit.lab.init.profile import Profile
from toolkit.system.limits import has_fast_bf16, has_gpu

if TYPE_CHECKING:
    import datasets

    from toolkit.lab.init.models import Model


SECTIONS = (
    *("output_dir", "engine", "seed", "task", "model", "data", "train", "parallel", "eval", "checkpoint"),
    *("tracking", "trainer"),
)
"""The order of settings in the YAML."""
WIDTH = 100


@dataclass(frozen=True)
class Guess:
    """A setting of the new YAML."""

    key: str  # dotted key
    value: Any  # its value
    reason: str = ""  # why it has this value, a comment beside it; may be empty


def to_text(title: Sequence[str], guesses: Iterable[Guess]) -> str:
    """Returns a YAML file in which the reason of every setting is a comment, beside it or, if it is long, above it.

    The lines of the title are comments; settings of a section are written together, in their order.
    """
    lines = [f"# {line}" for line in title]
    opened: list[str] = []
    guesses = list(guesses)
    places = {guess.key.rpartition(".")[0]: place for place, guess in reversed([*enumerate(guesses)])}
    order = lambda guess: (SECTIONS.index(guess.key.split(".")[0]), places[guess.key.rpartition(".")[0]])  # noqa: E731
    for guess in sorted(guesses, key=order):
        *groups, name = guess.key.split(".")
        if not groups or groups[:1] != opened[:1]:
            lines.append("")
        same = next((n for n, pair in enumerate(zip(groups, opened, strict=False)) if pair[0] != pair[1]), None)
        known = min(len(groups), len(opened)) if same is None else same
        lines += [f"{'  ' * depth}{group}:" for depth, group in enumerate(groups) if depth >= known]
        opened = groups
        lines += _setting("  " * len(groups), name, guess)
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Returns a value as YAML; a small number as people write it, `5.0e-5`."""
    short = f"{value:.1e}".replace("e-0", "e-") if isinstance(value, float) and value < 1e-3 else ""
    return short if short and float(short) == value else to_yaml(value)


def _setting(indent: str, name: str, guess: Guess) -> list[str]:
    line = f"{indent}{to_yaml(name)}: {_value(guess.value)}"
    # YAML allows no control characters, not even in a comment.
    reason = "".join(letter if letter.isprintable() else "?" for letter in " ".join(guess.reason.split()))
    if not reason:
        return [line]
    if len(line) + len("  # ") + len(reason) <= WIDTH:
        return [f"{line}  # {reason}"]
    above = textwrap.wrap(reason, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
    return [*above, line]


COUNTED_TEXTS = 2000
"""Number of evenly spaced texts whose tokens are counted."""
COVERED = 0.98
"""Fraction of the texts that a limit does not truncate."""
LONGEST = 512
"""Largest limit for a model that has none."""
LONGEST_QUESTION_WINDOW = 384
BLOCKS = (1024, 512, 256, 128, 64)
LEAST_BLOCKS = 100
"""Number of blocks that training text should be split into at least."""
_MULTIPLE = 16
TURN_TOKENS = 8
"""Tokens that a chat template writes around a message, roughly."""

Limits = Callable[["datasets.Dataset", "Model", Any], list[Guess]]
"""Returns the settings that follow from the lengths of the training rows, given the model and the task's options."""


@dataclass(frozen=True)
class Tokens:
    """Numbers of tokens of texts."""

    counts: Sequence[int]  # number of tokens of each text that was looked at
    how: str  # how they were found: an addition to a sentence

    def share_above(self, limit: int) -> float:
        """Returns the fraction of the texts with more tokens than a limit."""
        return sum(count > limit for count in self.counts) / len(self.counts)


def tokens(texts: Sequence[str], folder: Path | None) -> Tokens:
    """Counts the tokens of texts, at least one, by the `tokenizer.json` in a model's folder, or else by an estimate."""
    from tokenizers import Tokenizer

    some = evenly(texts, COUNTED_TEXTS)
    file = folder / "tokenizer.json" if folder else None
    if file is not None and file.is_file():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return Tokens([len(each.ids) for each in tokenizer.encode_batch(some)], "counted with the model's tokenizer")
    characters = characters_per_token(language_of(some))
    counts = [math.ceil(len(text) / characters) + 2 for text in some]
    return Tokens(counts, f"estimated as {characters:g} characters per token")


def quantile(numbers: Sequence[int], fraction: float) -> int:
    """Returns the number that this fraction of the numbers does not exceed."""
    return sorted(numbers)[max(math.ceil(fraction * len(numbers)) - 1, 0)]


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """Returns at most `most` evenly spaced values."""
    count = min(most, len(values))
    return [values[place * len(values) // count] for place in range(count)]


def each_text(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the limit of texts that are read alone, of all columns."""
    several = (rows[name][:] for name in rows.column_names)
    texts = [text for column in several for text in column if isinstance(text, str)]
    return [_truncation("max_length", texts, model)]


def truncation(**columns: str) -> Limits:
    """Returns a function that limits the tokens of columns; arguments are options of the task and their columns."""

    def guesses(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
        prefixes = {"max_source_length": getattr(options, "source_prefix", "")}
        texts = {
            option: [
                prefixes.get(option, "") + " ".join(map(str, parts))
                for parts in zip(*(rows[name][:] for name in names.split()), strict=True)
            ]
            for option, names in columns.items()
        }
        return [_truncation(option, each, model) for option, each in texts.items()]

    return guesses


def _truncation(option: str, texts: Iterable[Any], model: Model) -> Guess:
    return _limit(option, tokens([str(text) for text in texts], model.folder), model)


def _limit(option: str, found: Tokens, model: Model) -> Guess:
    needed = quantile(found.counts, COVERED)
    limit = _rounded(needed, model.longest or LONGEST)
    most = f"{COVERED:.0%} of the texts have at most {needed} tokens ({found.how})"
    if limit < needed:
        most += f"; {found.share_above(limit):.1%} are truncated"
    return Guess(f"task.{option}", limit, most)


def windows(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the window of a question with its context."""
    pairs = [f"{row['question']} {row['context']}" for row in evenly(rows, COUNTED_TEXTS)]
    found = tokens(pairs, model.folder)
    needed = quantile(found.counts, COVERED)
    limit = _rounded(needed, min(model.longest or LONGEST, LONGEST_QUESTION_WINDOW))
    most = f"{COVERED:.0%} of the questions with their contexts have at most {needed} tokens ({found.how})"
    return [
        Guess("task.max_length", limit, f"{most}; longer contexts are split into windows"),
        Guess("task.doc_stride", limit // 3, "tokens that consecutive windows of a context share"),
    ]


def blocks(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the size of the blocks that texts are split into."""
    texts = rows["text"][:]
    found = tokens(texts, model.folder)
    total = round(sum(found.counts) * len(texts) / len(found.counts))
    room = [size for size in BLOCKS if size <= (model.longest or LONGEST)] or [model.longest or LONGEST]
    size = next((size for size in room if total >= LEAST_BLOCKS * size), room[-1])
    return [Guess("task.block_size", size, f"about {total:,} tokens ({found.how}): {math.ceil(total / size):,} blocks")]


def answers(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the longest example of a conversation, or of a prompt with its completion."""
    if "messages" not in rows.column_names:
        return [_truncation("block_size", [f"{row['prompt']} {row['completion']}" for row in rows], model)]
    some = evenly(rows, COUNTED_TEXTS)
    if model.folder is not None:
        from transformers import AutoTokenizer

        from toolkit.tasks.chat import encode_prompt
        from toolkit.tasks.conversations import restored

        with suppress(OSError, ValueError):  # it cannot be read, or only with code of its own
            tokenizer = AutoTokenizer.from_pretrained(model.folder, local_files_only=True, trust_remote_code=False)
            tokenizer.chat_template = options.chat_template or tokenizer.chat_template
            if tokenizer.chat_template:
                counts = [len(encode_prompt(restored(row["messages"]), tokenizer, row["tools"])) for row in some]
                return [_limit("block_size", Tokens(counts, "counted in the model's chat template"), model)]
    shown = ([row["tools"], *(turn[part] for turn in row["messages"] for part in ("content", "more"))] for row in some)
    texts = [" ".join(filter(None, each)) for each in shown]
    found, turns = tokens(texts, model.folder), [len(row["messages"]) for row in some]
    counts = [count + TURN_TOKENS * turn for count, turn in zip(found.counts, turns, strict=True)]
    return [_limit("block_size", Tokens(counts, f"{found.how}, and {TURN_TOKENS} for each message's frame"), model)]


def both_answers(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the longest prompt with an answer."""
    answers = [name for name in ("chosen", "rejected", "completion") if name in rows.column_names]
    texts = [f"{row['prompt']} {max((row[name] for name in answers), key=len)}" for row in rows]
    return [_truncation("max_length", texts, model)]


def spans(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the window of a text whose tokens are labelled."""
    limit = _truncation("max_length", map(" ".join, rows["tokens"][:]), model)
    return [
        replace(limit, reason=limit.reason.replace("are truncated", "are split into windows")),
        Guess("task.stride", limit.value // 4, "tokens that consecutive windows of a text share"),
    ]


LONGEST_CLIP, SHORTEST_CLIP = 30, 0.3
"""Largest limit of clips in seconds, Whisper's; and the smallest, above the length to which clips are padded."""
HIGHEST_RATE = 16000
"""Samples per second of most models of speech."""


def durations(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns the length of clips; with a transcript, nothing may be cropped."""
    clips, whole = rows["audio"][:], "text" in rows.column_names
    seconds, rates = [clip["frames"] / clip["rate"] for clip in clips], Counter(clip["rate"] for clip in clips)
    needed = quantile(seconds, COVERED)
    limit = min(max(math.ceil(10 * needed) / 10, SHORTEST_CLIP) if needed < 10 else math.ceil(needed), LONGEST_CLIP)
    why = f"{COVERED:.0%} of the clips have at most {needed:.3g} s"
    if whole:
        limit, why = math.ceil(max(seconds)), f"the longest recording has {max(seconds):.3g} s"
    elif longer := sum(each > limit for each in seconds):
        why += f"; {longer:,} are cropped"
    found = [Guess("task.audio.max_seconds", limit, why)]
    rate, count = rates.most_common(1)[0]
    if model.settings and rate < HIGHEST_RATE and not whole:
        found.append(Guess("task.audio.sampling_rate", rate, f"that of {count:,} of {len(clips):,} clips"))
    return found


SMALL_SIDE, MOST_PIXELS = 48, 128
"""Side up to which images are enlarged, as a ResNet halves its input twice at the start; and that of large ones."""
SAMPLED_IMAGES = 200


def pixels(rows: datasets.Dataset, model: Model, options: Any) -> list[Guess]:
    """Returns size and channels of the input of a new model; a pretrained one has its own."""
    from toolkit.modalities.image_files import decode

    if not model.settings:
        return []
    images = [decode(row["image"], options.image.max_pixels) for row in evenly(rows, SAMPLED_IMAGES)]
    side = round(median(min(image.size) for image in images))
    size = min(8 * math.ceil((2 * side if side <= SMALL_SIDE else side) / 8), MOST_PIXELS)
    enlarged = ", enlarged because the model halves its input twice at once" if side <= SMALL_SIDE else ""
    grey = all(image.mode.startswith(("1", "L", "I")) for image in images)
    return [
        Guess("task.image.size", size, f"the median shorter side is {side} pixels{enlarged}"),
        Guess("model.from_config.num_channels", 1 if grey else 3, "grey" if grey else "colours"),
    ]


def _rounded(needed: int, longest: int) -> int:
    return min(math.ceil(max(needed, 2 * _MULTIPLE) / _MULTIPLE) * _MULTIPLE, longest)


EPOCHS = ((200, 10), (2_000, 5), (20_000, 3), (200_000, 2))
"""Number of epochs for at most this many training rows; 1 for more."""
ROWS_PER_STEP = 16
LEAST_STEPS = 20
"""Steps per epoch, below which fewer rows make a step."""
SHORT = 256
"""Inputs of more tokens are trained in batches of half the size."""
SMALL_DATASET = 5000
UNEVEN = 3.0
"""Classes are uneven if the largest has this many times the rows of the smallest."""
_GROUPS = {"author", "client", "customer", "document", "group", "patient", "session", "speaker", "subject", "user"}


def training(rows: int, tokens: int, model: Model, adapters: bool) -> list[Guess]:
    """Returns batch size, epochs and learning rate; `tokens` are those of the longest input, 0 for a fixed size."""
    window = ROWS_PER_STEP
    while window > 4 and rows < LEAST_STEPS * window:
        window //= 2
    parts = 2 if tokens > SHORT and window > 4 else 1
    steps = math.ceil(rows / window)
    epochs = round(model.epochs * next((epochs for most, epochs in EPOCHS if rows <= most), 1))
    found = [Guess("train.global_batch_size", window, f"rows per step; {steps:,} steps per epoch")]
    if parts > 1:
        why = f"rows at once, because inputs of {tokens} tokens take memory"
        found.append(Guess("train.per_device_train_batch_size", window // parts, why))
    return [
        *found,
        Guess("train.num_train_epochs", epochs, f"{rows:,} training rows; fewer rows need more epochs"),
        _learning_rate(model, adapters),
        Guess("train.warmup_steps", 0.1, "the first 10 % of the steps"),
        Guess("eval.per_device_eval_batch_size", 2 * window // parts),
    ]


SMALL_HIDDEN, SMALL_RATE = 384, 1.5e-4
"""Largest hidden size of a small encoder, and its usual peak learning rate."""
ADAPTER_FACTOR = 10
"""Adapters, which begin at zero, need about this many times the rate of full training."""


def _learning_rate(model: Model, adapters: bool) -> Guess:
    rate, why = model.learning_rate, "usual for a small new model" if model.settings else "usual for this model"
    if model.hidden_size is not None and model.hidden_size <= SMALL_HIDDEN and rate < SMALL_RATE:
        rate, why = SMALL_RATE, f"usual for a hidden size of {model.hidden_size}"
    if adapters:
        rate, why = rate * ADAPTER_FACTOR, f"{why}, times {ADAPTER_FACTOR} for adapters"
    return Guess("train.learning_rate", float(f"{rate:.3g}"), why)


UNEVEN_LENGTHS = 2.0
"""Lengths are uneven if that which covers most texts is this many times the median."""


def speed(texts: Sequence[str], convolutions: bool) -> Iterator[Guess]:
    """Yields what makes training faster with the same result: rows of similar length together, and bf16 if it is fast.

    `texts` are those whose length decides; empty if all inputs have the same. `convolutions` need a GPU for bf16: on
    CPUs with AMX, torch 2.13 computes NaN for some of one channel.
    """
    sizes = sorted(map(len, evenly(texts, COUNTED_TEXTS)))
    if sizes and quantile(sizes, COVERED) > UNEVEN_LENGTHS * median(sizes):
        why = f"half of the texts have at most {median(sizes):.0f} characters, {COVERED:.0%} {quantile(sizes, COVERED)}"
        yield Guess("train.train_sampling_strategy", "group_by_length", f"{why}: less padding")
    if has_fast_bf16() and (has_gpu() or not convolutions):
        yield Guess("train.mixed_precision", "bf16", "this machine computes it fast")


FEW_ROWS = 200
"""With fewer rows, too few are set aside to choose an epoch by them."""


def evaluation(labels: Mapping[str, int], single: bool, rows: int) -> list[Guess]:
    """Returns when to evaluate and save, and the metric of the best model for these labels, one per row if `single`.

    `rows` is the number of rows.
    """
    found = [Guess("eval.eval_steps", "epoch")]
    if single and labels and max(labels.values()) >= UNEVEN * min(labels.values()):
        why = "classes are uneven: accuracy would mostly measure the largest"
        found.append(Guess("eval.metric_for_best_model", "eval_f1_macro", why))
    few = f"{rows} rows are too few to choose an epoch: the last one counts"
    kept = Guess("checkpoint.save_total_limit", 1, few if rows < FEW_ROWS else "and the best one")
    best = Guess("checkpoint.load_best_model_at_end", True, "saves the model of the best evaluation")
    return [*found, Guess("checkpoint.save_steps", "epoch"), kept, *([] if rows < FEW_ROWS else [best])]


def validation(rows: int) -> Guess:
    """Returns the fraction of the rows to set aside for validation."""
    fraction = 0.2 if rows < SMALL_DATASET else 0.1
    return Guess(
        "data.validation_split", fraction, f"{fraction:.0%} of {rows:,} rows, because there is no validation file"
    )


def groups(profile: Profile) -> list[Guess]:
    """Returns the column whose equal values belong together, such as a speaker or a customer, if there is one."""
    for column in profile.columns.values():
        words = set(re.findall(r"[a-z]+", column.name.lower()))
        if words & _GROUPS and 5 <= len(column.counts) < 0.9 * len(column.values) and not column.empty:
            why = f"{len(column.counts):,} values repeat: rows with the same one stay on one side of a split"
            return [Guess("data.group_column", column.name, why)]
    return []
