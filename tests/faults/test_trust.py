"""What comes from others is data: no code of it runs, no path leads elsewhere; secrets stay in the environment."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from fault_runs import QUICK, argv
from faults import Faults
from file_faults import FAULTS
from forked import ForkServer

from toolkit.report.facts import sealed

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

SECRETS = {
    name: f"secret-of-{name.lower()}"
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY")
}


@pytest.fixture(scope="module")
def finished(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    ended = server.run(argv(run), hooks=QUICK)
    assert ended.code == 0, ended.output
    return run


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return exec, (f"open({str(self.marker)!r}, 'w')", "")[:1]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt"])
def test_nothing_is_unpickled(server, faults: Faults, finished, tmp_path, name):
    model, marker = shutil.copytree(finished / "model", tmp_path / "model"), tmp_path / "ran"
    (model / name).write_bytes(pickle.dumps(Evil(marker)))
    if name == "pytorch_model.bin":
        (model / "model.safetensors").unlink()
    faults.count("bad inputs")
    small = [word for word in argv(tmp_path / "run") if not str(word).startswith("model.from_config")]
    ended = server.run([*small, "model.from_config=null", f"model.name_or_path={model}"], hooks=QUICK)
    assert faults.problems(ended, name, [2] if name == "pytorch_model.bin" else [0]) == []
    assert not marker.exists()


@pytest.mark.parametrize(
    "tag", ["python/object/apply:os.system", "python/name:os.system", "python/object/new:os.system"]
)
def test_no_code_of_a_configuration_runs(server, faults: Faults, tmp_path, tag):
    marker, file = tmp_path / "ran", tmp_path / "config.yaml"
    file.write_text(f"output_dir: {tmp_path / 'run'}\nx-notes: !!{tag} ['touch {marker}']\n")
    faults.count("bad inputs")
    ended = server.run([argv(tmp_path)[0], "--config", file])
    assert faults.problems(ended, tag, [2]) == []
    assert not marker.exists()


def test_a_recipe_that_only_the_run_names_does_not_run(server, faults: Faults, finished, tmp_path):
    run, marker, evil = shutil.copytree(finished, tmp_path / "run"), tmp_path / "ran", tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w')\n")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(sealed(facts | {"recipe": str(evil)})))
    faults.count("bad inputs")
    ended = server.run(["toolkit", "predict", run, "--input-text", "good"])
    assert faults.problems(ended, "recipe", [2]) == []
    assert "--recipe" in ended.output
    assert not marker.exists()


@pytest.mark.parametrize("setting", ["tracking.project=../../elsewhere", "tracking.project=/elsewhere"])
def test_no_name_leads_out_of_the_run(server, faults: Faults, tmp_path, setting):
    faults.count("bad inputs")
    ended = server.run(argv(tmp_path / "a" / "b" / "run", setting, 'tracking.report_to=["tensorboard"]'), hooks=QUICK)
    assert faults.problems(ended, setting, [0, 2]) == []
    own = tmp_path / "a" / "b" / "run"
    assert [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(own)] == []
    assert not Path("/elsewhere").exists()


def test_secrets_of_the_environment_are_written_nowhere(server, faults: Faults, tmp_path):
    cache = tmp_path / "cache"
    hooks = [*QUICK, ("use_cache", {"path": str(cache)})]
    ended = server.run(argv(tmp_path / "run", 'tracking.report_to=["tensorboard"]'), hooks=hooks, env=SECRETS)
    assert faults.problems(ended, "secrets", [0]) == []
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"run.json", "config.yaml", "report.html", "metrics.jsonl"} <= {path.name for path in files}
    found = [str(path) for path in files for secret in SECRETS.values() if secret.encode() in path.read_bytes()]
    assert faults.wrong(found) == []
    assert not any(secret in ended.output for secret in SECRETS.values())


def test_a_folder_that_cannot_be_written_is_rejected_before_rows_are_read(
    injecting: ForkServer, faults: Faults, tmp_path
):
    assert "EACCES" in FAULTS
    arm = ("arm", {"roots": [str(tmp_path)], "fault": "EACCES", "nth": 1})
    reads = ("slow", {"place": "toolkit.run.read_inputs", "seconds": 0.0})
    faults.count("operations")
    ended = injecting.run(argv(tmp_path / "run"), hooks=[*QUICK, arm, reads])
    assert faults.problems(ended, "read-only", [2]) == []
    assert "in toolkit.run.read_inputs" not in ended.output
    assert ended.seconds < 5
