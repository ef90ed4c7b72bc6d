"""`toolkit evaluate --endpoint`: whether a server with OpenAI's interface answers as the run does, and if not, why."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from toolkit.api.batch import EvalData, Record
from toolkit.base.console import counted, print_table, progress, say, shorten
from toolkit.base.errors import InputError
from toolkit.base.files import write_json
from toolkit.data.tokenise import tokenise
from toolkit.deploy.trained import TrainedRun
from toolkit.distributed.launch import float32_precision
from toolkit.document.blocks import Table
from toolkit.document.render import print_blocks
from toolkit.tasks.conversations import TRAIN, answer_of, prompt_of
from toolkit.tasks.generation import Generating, log_probabilities

AT_ONCE, TRIES, SECONDS = 4, 4, 120.0
"""Requests at a time, tries of each while the server is busy, and how long it may take to answer one."""
TOLERANCE = 0.1
"""Largest difference of log-probabilities that the precision of a server explains (bfloat16 has 8 bits)."""
SHOWN = 5
SAME, PRECISION = "same", "precision"
CAUSES = {
    "not answered": "the server rejected them or did not answer",
    "prompt truncated": "the server reads fewer tokens of long prompts, or the run does (task.block_size)",
    "template": "prompts have other numbers of tokens: another chat template, begin-of-text token or system prompt; "
    "serve chat_template.jinja and the tokenizer of model/",
    "answer truncated": "answers end early: the server's limit of new tokens, or a stop text of its own",
    "end of answers": "the server writes on where answers end: it ignores eos_token_id of generation_config.json",
    "other weights": "tokens have other probabilities: another model, adapters that are not loaded, quantised weights, "
    "a template with as many tokens, or sampling",
    PRECISION: f"two tokens are about as likely (within {TOLERANCE:g}), so that rounding decides",
}  # fmt: skip
"""Likely causes of different answers; the first that fits a row is named."""


class Endpoint:
    """A server: its address up to `/v1`, and the model to ask."""

    def __init__(self, url: str, model: str | None) -> None:
        """Asks a server for its models; raises InputError if it cannot be reached, or has several and none is named."""
        url = url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"--endpoint: received {url}, expected an address such as http://127.0.0.1:8000/v1")
        found, problem = _request(f"{url}/models", None)
        if found is None:
            raise InputError(f"--endpoint: {url}/models: {problem}")
        names = [str(each["id"]) for each in found.get("data") or [] if isinstance(each, dict) and "id" in each]
        if (model is None and len(names) != 1) or (model is not None and names and model not in names):
            raise InputError(f"--endpoint-model: received {model}, the server has {', '.join(names) or 'none'}")
        self.url, self.model = url, model or names[0]

    def ask(self, row: Mapping[str, Any], room: int, ending: str) -> tuple[Any, str]:
        """Returns the server's answer to a row's prompt, or None with the reason."""
        asked: dict[str, Any] = {"model": self.model, "max_tokens": room, "temperature": 0}
        asked |= {"tools": row["tools"]} if row.get("tools") else {}
        asked |= {"stop": [ending]} if ending else {}
        if isinstance(prompt := _prompt(row), str):
            return _request(f"{self.url}/completions", asked | {"prompt": prompt, "logprobs": 1})
        messages = [_sent(each) for each in prompt]
        return _request(f"{self.url}/chat/completions", asked | {"messages": messages, "logprobs": True})


def _prompt(row: Mapping[str, Any]) -> Any:
    return row["text"] if "text" in row else prompt_of(dict(row))


def _sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message as the interface has it: arguments of calls are texts."""
    sent: dict[str, Any] = deepcopy({name: value for name, value in message.items() if name != TRAIN})
    for call in sent.get("tool_calls") or []:
        function = call.get("function") or {}
        if "arguments" in function and not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return sent


def _request(url: str, content: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Returns the JSON of an answer, or None with the reason; a busy server is asked again after a while."""
    key = os.environ.get("OPENAI_API_KEY", "none")
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    body = None if content is None else json.dumps(content).encode()
    for attempt in range(TRIES):
        try:
            with urlopen(Request(url, body, headers), timeout=SECONDS) as answer:
                return json.load(answer), ""
        except HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            reason = f"HTTP {error.code}: {shorten(said)}"
            if error.code not in (429, 503):
                break
            time.sleep(2**attempt / 2)
        except (OSError, HTTPException, ValueError) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
            break
    return None, reason


@dataclass
class Compared:
    """A row's answers by the run and by the server."""

    row: int
    prompt_tokens: int
    endpoint_prompt_tokens: int
    prediction: str
    endpoint: str | None = None
    cause: str = SAME
    reason: str = ""
    differences: list[float] = field(default_factory=list)
    """Differences of the log-probabilities of the tokens that both wrote."""


def _compare(
    run: TrainedRun, how: Generating, row: Compared, prompt: Sequence[int], ids: Sequence[int], given: Any
) -> None:
    """Compares a server's answer with the run's, whose tokens are `ids`."""
    choice, (lead, trail), own = given["choices"][0], how.around, row.prediction
    text = choice["message"].get("content") or "" if "message" in choice else choice["text"]
    row.endpoint = theirs = str(text).removeprefix(lead).removesuffix(trail)
    usage = given.get("usage") or {}
    row.endpoint_prompt_tokens = int(usage.get("prompt_tokens") or len(prompt))
    chosen, others = [each.tolist() for each in log_probabilities(run.model, prompt, ids)] if ids else ([], [])
    place = len(ids)
    if own != theirs:  # the run's first token that the server did not write
        same = next((i for i, (one, other) in enumerate(zip(own, theirs, strict=False)) if one != other), None)
        same = min(len(own), len(theirs)) if same is None else same
        written = (str(run.processor.decode([*ids[: i + 1]], skip_special_tokens=True)) for i in range(len(ids)))
        place = next((i for i, text in enumerate(written) if len(text.removeprefix(lead)) > same), len(ids) - 1)
    near = 0 <= place < len(ids) and chosen[place] - others[place] <= TOLERANCE
    scores = [*chosen[: max(0, place)], *([others[place]] if near else [])]  # of a tie, the server has the other token
    row.differences = [abs(one - other) for one, other in zip(_scores(choice.get("logprobs")), scores, strict=False)]
    if row.endpoint_prompt_tokens != len(prompt):
        row.cause = "template"
    elif max(row.differences, default=0.0) > TOLERANCE:
        row.cause = "other weights"
    elif own != theirs:
        early = choice.get("finish_reason") == "length" and int(usage.get("completion_tokens") or 0) < len(ids)
        early = early and own.startswith(theirs)
        causes = {"answer truncated": early, PRECISION: near, "end of answers": theirs.startswith(own)}
        row.cause = next((name for name, holds in causes.items() if holds), "other weights")


def _scores(given: Any) -> list[float]:
    """Returns the log-probabilities of a server's tokens, as conversations or as texts have them."""
    if not isinstance(given, dict):
        return []
    if isinstance(given.get("content"), list):
        return [float(each["logprob"]) for each in given["content"]]
    return [float(each) for each in given.get("token_logprobs") or [] if each is not None]


def _truncated(rows: Sequence[Compared]) -> list[Compared]:
    """Returns rows whose prompts a server has cut to its limit: it reads shorter ones as the run does."""
    less = [each for each in rows if each.endpoint_prompt_tokens < each.prompt_tokens]
    limit = max((each.endpoint_prompt_tokens for each in less), default=0)
    shorter = [each for each in rows if each.endpoint is not None and each.prompt_tokens <= limit]
    whole = all(each.endpoint_prompt_tokens == each.prompt_tokens for each in shorter)
    return [each for each in less if each.endpoint_prompt_tokens == limit] if shorter and whole else []


def require_greedy(run: TrainedRun) -> None:
    """Raises InputError if a run is no causal language model, or does not answer by the likeliest token."""
    if not (run.task.has("prompt_ids") and run.task.predicts_tokens):
        raise InputError("--endpoint: is for causal models of the recipe language_modeling, which this run is not")
    settings = run.task.options.generation
    if settings.get("do_sample") or settings.get("num_beams", 1) != 1:
        raise InputError("--endpoint: the run samples or uses beams, which cannot be compared; add task.generation={}")


def compare_with(run: TrainedRun, endpoint: Endpoint, data: EvalData, output: Path | None) -> bool:
    """Compares a server's answers with a run's, prints how they differ and the likely cause, and writes them as JSON.

    Returns whether all are the same but for rounding.
    """
    rows = data.rows
    prompts = EvalData(rows, tokenise(rows, run.task, run.processor, labelled=False), run.processor)
    predictions = run.predictions(prompts)
    records = list(run.task.decode(predictions, prompts))
    _, how = run.task.prompt_ids(_prompt(records[0]), run.processor)
    ending = how.ending(run.processor)
    tokens, cut = prompts.features["tokens"][:], prompts.features["truncated_input"][:]
    rooms = [how.room(ids) for ids in tokens]
    found, bar = list[Compared](), progress(len(records), "asking the server", unit="row")
    with ThreadPoolExecutor(AT_ONCE) as pool, float32_precision(run.cfg.train.tf32):
        answers = pool.map(lambda each: endpoint.ask(each[0], each[1], ending), zip(records, rooms, strict=True))
        for place, (given, reason) in enumerate(answers):
            own, size = predictions["ids"][place], len(tokens[place])
            row = Compared(place + 1, size, size, records[place]["prediction"], reason=reason)
            try:
                if given is None:
                    raise ValueError(reason)
                _compare(run, how, row, tokens[place], own[own >= 0].tolist(), given)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                row.cause, row.reason = "not answered", reason or f"unknown form of an answer ({error!r})"
            if cut[place]:
                row.cause = "prompt truncated"
            found.append(row)
            bar.update()
    bar.close()
    for row in _truncated(found):
        row.cause = "prompt truncated"
    return _told(run, endpoint, records, found, output)


def _told(
    run: TrainedRun, endpoint: Endpoint, records: Sequence[Record], found: Sequence[Compared], output: Path | None
) -> bool:
    """Prints and writes the result; returns whether the answers are the same but for rounding."""
    answered = [each for each in found if each.endpoint is not None]
    equal = sum(each.endpoint == each.prediction for each in answered)
    differences = [value for each in answered for value in each.differences]
    table: dict[str, Any] = {"same answers": f"{equal:,} of {len(found):,}"}
    figures: dict[str, Any] = {"rows": len(found), "same": equal}
    if differences:
        figures |= {"mean_difference": sum(differences) / len(differences), "max_difference": max(differences)}
        table["log-probabilities"] = (
            f"differ by {figures['mean_difference']:.2g} on average, at most {figures['max_difference']:.2g} "
            f"({counted(len(differences), 'token')})"
        )
    elif answered:
        table["log-probabilities"] = "not given by the server"
    if answered and run.task.has("generated_scores") and all(answer_of(row) is not None for row in records):
        asked = [records[each.row - 1] for each in answered]
        theirs = [{**row, "prediction": each.endpoint} for row, each in zip(asked, answered, strict=True)]
        both = [run.task.generated_scores(given) for given in (asked, theirs)]
        figures["scores"] = dict(zip(("run", "endpoint"), both, strict=True))
        table |= {name: f"{value:.4g} by the run, {both[1][name]:.4g} by the server" for name, value in both[0].items()}
    counts = Counter(each.cause for each in found if each.cause != SAME)
    print_table(f"{endpoint.model} at {endpoint.url}", table)
    for cause, count in counts.most_common():
        say(f"{counted(count, 'row')}, likely cause: {cause}. {CAUSES[cause]}.")
    shown = [each for each in found if each.cause != SAME][:SHOWN]
    cells = [[each.row, each.cause, f"{each.prompt_tokens:,} / {each.endpoint_prompt_tokens:,}",
              shorten(each.prediction), shorten(each.reason if each.endpoint is None else each.endpoint)]
             for each in shown]  # fmt: skip
    if cells:
        print_blocks([Table(["row", "cause", "prompt tokens", "run", "server"], cells, stacked=True)])
    if output is not None:
        write_json(output, {**figures, "causes": dict(counts), "answers": [asdict(each) for each in found]})
        say(f"also written to {output}")
    return set(counts) <= {PRECISION}
