"""Stands for the processes of a search's trials: what comes out follows from the settings, and nothing is trained."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path


def outcome(trial: dict, log: Path) -> dict:
    """Returns the outcome of a trial; what was asked is added to the log."""
    job = trial["arguments"]
    settings = dict(text.split("=", 1) for text in job["overrides"])
    rate, optim = float(settings["train.learning_rate"]), settings.get("train.optim", "")
    with log.open("a") as file:
        file.write(f"{trial['work']} {rate:g} {optim} {job.get('segment', '')}\n")
    score = 0.9 - 0.1 * abs(math.log10(rate) + 4)  # best at 1e-4
    run = Path(settings["output_dir"])
    if trial["work"] == "search_score":
        (run / "model").mkdir(parents=True)
        draws = [score + 0.001 * (number % 7 - 3) for number in range(100)]
        return {"result": {rows: {"value": score, "rows": 40, "draws": draws} for rows in ("validation", "test")}}
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    found = {"state": "finished", "value": score, "steps": 8, "metrics": {"eval_accuracy": score},
             "evaluations": [[4, score - 0.1], [8, score]]}  # fmt: skip
    if rate > 1:
        return {"result": found | {"state": "diverged", "reason": f"the training loss rose from 0.7 to {rate:g}"}}
    if optim == "rmsprop" and log.read_text().count(optim) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    if optim == "adagrad":
        return {"result": {"state": "infeasible", "reason": "no validation rows"}}
    if optim == "sgd":
        return {"error": "no memory left"}
    if optim == "muon":
        return {"result": {"state": "pruned", "value": score, "steps": 4, "reason": "pruned at step 4",
                           "evaluations": [[4, score]]}}  # fmt: skip
    if job["deadline"] is not None and optim == "adafactor":
        return {"result": {"state": "stopped", "evaluations": []}}
    return {"result": found}


if __name__ == "__main__":
    (asked,) = json.loads(Path(sys.argv[2]).read_text())
    Path(asked["outcome"]).write_text(json.dumps(outcome(asked, Path(sys.argv[1]))))
