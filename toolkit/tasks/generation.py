"""Generates text with a causal language model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from toolkit.api.batch import IGNORE_INDEX
from toolkit.base.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

SAMPLING: Mapping[str, Any] = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": None}
"""Settings of sampling, and transformers' defaults."""
GROUP = 32
"""Most prompts that are continued at once."""


@dataclass(frozen=True)
class Generating:
    """How tokens are continued.

    In training, a prompt and its answer share `block_size` tokens: a long prompt is read whole, and its answer is
    short. So of many tokens only the last `kept` are used, and new ones fill what is left.
    """

    end: Sequence[int]
    """The tokens that end an answer: generation stops at a single one, as at those of the model's generation
    configuration; what follows several is cut off."""
    max_new_tokens: int
    block_size: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `transformers.GenerationConfig`."""
    around: tuple[str, str] = ("", "")
    """The blanks before and behind an answer that are the chat template's (`toolkit.tasks.chat.margins`)."""

    @property
    def kept(self) -> int:
        """The number of a prompt's last tokens that are used."""
        return self.block_size - min(self.max_new_tokens, max(1, self.block_size // 8))

    def ending(self, tokenizer: Any) -> str:
        """Returns the text of several tokens that end an answer; none for a single one."""
        return str(tokenizer.decode([*self.end])) if len(self.end) > 1 else ""

    def room(self, prompt: Sequence[int]) -> int:
        """Returns how many tokens may follow those of a prompt."""
        return min(self.max_new_tokens, self.block_size - len(prompt))

    def sampled(self) -> Generating:
        """Returns the same with sampling, for samples in reports."""
        return replace(self, settings={"do_sample": True, **self.settings})


def settings_problems(settings: Mapping[str, Any]) -> list[str]:
    """Returns which settings of `task.generation` cannot be used, as full messages."""
    found = ["task.generation.max_new_tokens: set task.max_new_tokens"] if "max_new_tokens" in settings else []
    if not settings.get("do_sample"):
        unused = [name for name in SAMPLING if name in settings]
        found += [f"task.generation.{name}: has no effect without task.generation.do_sample=true" for name in unused]
    elif settings.get("num_beams", 1) != 1:
        found.append("task.generation.num_beams: beams are not sampled; remove it, or do_sample")
    other = ("typical_p", "top_h", "epsilon_cutoff", "eta_cutoff", "num_return_sequences", "assistant_early_exit")
    found += [f"task.generation.{name}: is not supported; sampling has {', '.join(SAMPLING)}"
              for name in other if name in settings]  # fmt: skip
    return found


def continue_all(
    model: Any, prompts: Sequence[list[int]], how: Generating, seeds: Sequence[int] | None = None, watching: Any = None
) -> torch.Tensor:
    """Continues prompts by greedy or beam search, or by sampling with a seed for each.

    Prompts are continued together, the shorter ones padded on the left; no token depends on the others but for
    rounding. The global random state is not changed. `watching` is called as a `StoppingCriteria` of transformers.

    Returns:
        `[prompts, T]` int64 new tokens, padded with `IGNORE_INDEX`.
    """
    import torch

    virtual = getattr(getattr(model, "active_peft_config", None), "num_virtual_tokens", 0)
    how = replace(how, block_size=how.block_size - virtual)
    cut = [ids[-how.kept :] for ids in prompts]
    rooms = [how.room(ids) for ids in cut]
    new: dict[int, list[int]] = {}
    # Rows of one length of the answer: with padding, longer ones would go beyond the positions of the model.
    order = sorted(range(len(cut)), key=lambda place: (rooms[place], len(cut[place])))
    most = 1 if virtual else GROUP  # prompt tuning counts positions from the first virtual token
    while order:
        group = [place for place in order[:most] if rooms[place] == rooms[order[0]]]
        order = order[len(group) :]
        own = None if seeds is None else [seeds[place] for place in group]
        found = _continued([cut[place] for place in group], model, how, rooms[group[0]], own, watching)
        new |= dict(zip(group, found, strict=True))
    rows = [torch.tensor(new[place], dtype=torch.int64) for place in range(len(cut))]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORE_INDEX)


def _continued(
    prompts: Sequence[list[int]], model: Any, how: Generating, room: int, seeds: Sequence[int] | None, watching: Any
) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    stops, longest = stop_tokens(model, how.end), max(map(len, prompts))
    own = {name: value for name, value in how.settings.items() if name not in ("do_sample", *SAMPLING)}
    if how.settings.get("do_sample"):
        own["num_beams"] = 1  # those of the settings or the model are for answers that are not sampled
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=room, pad_token_id=how.end[0], eos_token_id=stops or None, **own
    )
    pads = [longest - len(ids) for ids in prompts]
    inputs = torch.tensor([[how.end[0]] * pad + ids for pad, ids in zip(pads, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    processors = LogitsProcessorList(_sampling(model, how.settings, seeds) if how.settings.get("do_sample") else [])

    def ended(input_ids: Tensor, scores: Any, **more: Any) -> Any:
        """A criterion that ends a row at several tokens."""
        return (input_ids[:, -len(how.end) :] == torch.tensor(how.end, device=input_ids.device)).all(-1)

    several = ended if len(how.end) > 1 else None
    criteria = StoppingCriteriaList([each for each in (watching, several) if each is not None])
    with warnings.catch_warnings():
        # With virtual tokens the library recomputes position ids, which is correct here.
        warnings.filterwarnings("ignore", "Position ids are not supported for parameter efficient tuning")
        output = model.generate(
            inputs.to(model.device), attention_mask=mask.to(model.device), generation_config=settings,
            logits_processor=processors, stopping_criteria=criteria,
        )  # fmt: skip
    return [_until_end(row, stops, how.end) for row in output[:, longest:].tolist()]


def log_probabilities(model: Any, prompt: Sequence[int], new: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the log-probability `[T]` of each new token behind a prompt, and that of the likeliest other `[T]`."""
    import torch

    with torch.no_grad():
        ids = torch.tensor([[*prompt, *new]], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    scores = logits.double().log_softmax(-1)
    chosen = scores.gather(-1, ids[0, len(prompt) :, None])
    others = scores.scatter(-1, ids[0, len(prompt) :, None], -torch.inf)
    return chosen[:, 0], others.amax(-1)


def occurrences(part: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Returns where a part begins among tokens."""
    return [i for i in range(len(tokens)) if [*tokens[i : i + len(part)]] == [*part]]


def _until_end(new: list[int], stops: Sequence[int], end: Sequence[int]) -> list[int]:
    """Returns new tokens up to the first at which generation stops, or before several that end an answer."""
    new = new[: next((place + 1 for place, token in enumerate(new) if token in stops), None)]
    return new[: min(occurrences(end, new), default=None)] if len(end) > 1 else new


def _sampling(model: Any, settings: Mapping[str, Any], seeds: Sequence[int] | None) -> list[Any]:
    """Returns processors of logits with which the likeliest token is a sample, by random numbers of each row alone.

    Adding a random number of Gumbel's distribution to each logit makes the largest a sample of the distribution (Gumbel
    1954; Maddison et al. 2014, arXiv 1411.0030).
    """
    import torch
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    own = {name: settings.get(name, getattr(model.generation_config, name, None)) for name in SAMPLING}
    values = {name: usual if own[name] is None else own[name] for name, usual in SAMPLING.items()}
    found: list[Any] = []
    if values["temperature"] != 1:
        found.append(TemperatureLogitsWarper(float(values["temperature"])))
    if values["top_k"]:
        found.append(TopKLogitsWarper(values["top_k"]))
    if values["top_p"] < 1:
        found.append(TopPLogitsWarper(float(values["top_p"])))
    if values["min_p"]:
        found.append(MinPLogitsWarper(float(values["min_p"])))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds or ()]

    def with_noise(input_ids: Tensor, scores: Tensor) -> Tensor:
        drawn = [torch.rand(scores.shape[-1], generator=each, dtype=torch.float64) for each in generators]
        noise = -(-torch.stack(drawn).clamp(min=1e-300).log()).log()
        return scores.double() + noise.to(scores.device)

    return [*found, with_noise]


def stop_tokens(model: Any, end: Sequence[int]) -> list[int]:
    """Returns a single token of `end` and the tokens at which the model's generation configuration stops."""
    stops = model.generation_config.eos_token_id
    single = end if len(end) == 1 else ()
    return sorted({*single, *(stops if isinstance(stops, list) else [] if stops is None else [stops])})


def require_causal(causal: bool) -> None:
    """Raises InputError if a language model has no script (see `Task.script`), because it is masked."""
    if not causal:
        raise InputError(
            "toolkit export: a masked language model has no predict.py, because `toolkit predict` scores it with "
            "random masks. Its folder model/ can be used with transformers.pipeline('fill-mask')."
        )


def script_values(model: Any, tokenizer: Any, how: Generating) -> dict[str, Any]:
    """Returns what the script of a causal model needs, nothing for others.

    Raises:
        InputError: if answers are sampled, which the script does not.
    """
    from toolkit.tasks.blocks import separators

    if getattr(model, "generation_config", None) is None:
        return {}
    if how.settings.get("do_sample"):
        raise InputError(
            "toolkit export: answers are sampled (task.generation.do_sample), and a script would draw others; export "
            "with task.generation={}"
        )
    lead, trail = how.around
    return {
        "lead": lead, "trail": trail, "begin": separators(tokenizer)[0], "end": how.end[0],
        "generation": how.settings, "block_size": how.block_size, "ending": how.ending(tokenizer),
        "stops": stop_tokens(model, how.end) or None, "kept": how.kept,
    }  # fmt: skip
