"""Complete certificates: smoke configurations pass, and planted faults are found and explained."""

from __future__ import annotations

import json

import pytest
from certificate_subjects import RECIPE, experiment
from runs import TINY

from toolkit.commands.cli import main
from toolkit.lab.certify import load_promises as promises
from toolkit.lab.certify.certificate import FAILED, OK
from toolkit.lab.certify.trainings import run_trainings

pytestmark = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.usefixtures("forked_trials")]

CERTIFIED = {
    "reviews/smoke": ["--all"],
    "translation/smoke": ["--only", "loss-scale"],
    "embeddings/smoke": ["--only", "loss-scale"],
    "preference/smoke": ["--only", "ranks"],
}
"""Of a model that classifies, one that generates, whose loss has code of its own, one whose loss is that of the window,
and one that is compared with itself before training; `benchmarks/every_tool.py` certifies more."""
FAULTS = {
    "loss averaged per micro-batch": (
        "loss-scale",
        "not averaged per micro-batch",
        """
class Faulty(Original):
    def count_items(self, batch):
        return torch.tensor(1.0)

    def loss_sum(self, outputs, batch):
        return super().loss_sum(outputs, batch) / super().count_items(batch).clamp(min=1)
""",
    ),
    "scheduler stepped per process": (
        "engines",
        "the schedule is stepped once per process",
        """
from torch.optim.lr_scheduler import LambdaLR

def per_process(self):
    for _ in range(int(os.environ.get("WORLD_SIZE", "1")) if self.last_epoch >= 0 else 1):
        LambdaLR.once(self)

if PLANTED and not hasattr(LambdaLR, "once"):  # a worker loads the recipe for each of its jobs
    LambdaLR.once, LambdaLR.step = LambdaLR.step, per_process
Faulty = Original
""",
    ),
    "sampler without its epoch after a resume": (
        "resume",
        "the order of the rows",
        """
from toolkit.data.batching.order import WindowSampler

def forgetful(self, epoch, window=0):
    WindowSampler.kept(self, epoch if hasattr(self, "sought") else 0, window)
    self.sought = True

if PLANTED and not hasattr(WindowSampler, "kept"):
    WindowSampler.kept, WindowSampler.seek = WindowSampler.seek, forgetful
Faulty = Original
""",
    ),
    "predictions cut instead of put back by row id": (
        "ranks",
        "ordered by their row ids",
        """
import toolkit.engine.evaluation

def cut(parts, num_rows):
    return {name: np.concatenate([part[name] for _, part in parts])[:num_rows] for name in parts[0][1]}

if PLANTED:
    toolkit.engine.evaluation.scatter = cut
Faulty = Original
""",
    ),
}
"""A fault, the certificate that must find it, where that must point, and the fault itself, planted in a recipe."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_pointed_at(fault, tmp_path):
    name, finger, code = FAULTS[fault]
    imports = "import os\nimport sys\nimport numpy as np\nimport torch\nfrom toolkit.recipe import load_task_type\n"
    # Only in the processes that train: this one has further tests.
    planted = 'PLANTED = "pytest" not in sys.modules'
    head = f'{imports}\n{planted}\nOriginal = load_task_type("{RECIPE}")\n'
    recipe = tmp_path / "faulty.py"
    recipe.write_text(f"{head}{code}\n\nTASK = Faulty\n")
    made = experiment(tmp_path, *TINY, recipe=recipe)
    promise, runs = promises()[name], tmp_path / "runs"
    runs.mkdir()
    run_trainings(promise.trainings(made), made, runs)
    found = promise.judge(runs, made)
    assert found.verdict == FAILED
    assert finger in found.problems[0]


@pytest.mark.parametrize("configuration", CERTIFIED)
def test_smoke_configurations_are_certified(configuration, tmp_path, capsys):
    recipe, _, config = configuration.partition("/")
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "certify",
                recipe,
                "--config",
                config,
                *CERTIFIED[configuration],
                "--rows",
                "21",
                "--output",
                str(tmp_path),
            ]
        )
    assert ended.value.code == 0, str(capsys.readouterr())  # the error of a worker goes to stderr
    written = json.loads((tmp_path / "certificate.json").read_text())
    assert [certificate["verdict"] for certificate in written["certificates"]] == [OK] * len(written["certificates"])
