"""Random and mutated inputs: each is accepted or refused by a message, within a time limit."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked import load_checked
from commands import run_command
from containers import arrow_of, hdf5_of, media_rows, parquet_of, tar_of, zip_of
from fault_runs import QUICK, RESUME, argv
from faults import Faults
from forked import ROOT, ForkServer
from fuzzing import KEYS, VALUES, fuzzed, mutated, refused_or_accepted, replaced, with_own_hash
from hypothesis import strategies as st
from image_files import encoded, noise

from toolkit.api.batch import BadRow
from toolkit.checkpoint.manifest import verify
from toolkit.checkpoint.state import SavedState
from toolkit.config import read_config
from toolkit.data.sources import folder_of, is_files, read_rows
from toolkit.data.table import check_raw
from toolkit.deploy.verify import damages
from toolkit.recipe import load_task_type

pytestmark = [pytest.mark.faults, pytest.mark.timeout(5400)]

TASK = load_task_type(ROOT / "recipes" / "reviews.py")
SMOKE = (ROOT / "recipes" / "configs" / "reviews" / "smoke.yaml").read_text(encoding="utf-8")


def configured(file: Path, *overrides: str) -> Any:
    return load_checked(TASK.Options, file, overrides, {}, TASK.columns)


@fuzzed(st.one_of(mutated(SMOKE.encode()), st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_yaml(faults: Faults, tmp_path, example):
    file = tmp_path / "config.yaml"
    file.write_bytes(example)
    refused_or_accepted(faults, lambda: configured(file))


@fuzzed(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=5))
def test_values_of_settings(faults: Faults, example):
    sections: dict[str, Any] = {}
    for key, value in example.items():
        section, _, name = key.partition(".")
        if name:
            inside = sections.setdefault(section, {})
            inside[name] = value
        else:
            sections[section] = value
    refused_or_accepted(faults, lambda: load_checked(TASK.Options, sections, (), {}, TASK.columns))


@fuzzed(st.lists(st.one_of(
    st.text(max_size=30), st.builds(lambda key, value: f"{key}={value}", st.sampled_from(KEYS), st.text(max_size=30)),
    st.builds(lambda key, value: f"{key}={json.dumps(value)}", st.sampled_from(KEYS), VALUES),
), max_size=4))  # fmt: skip
def test_overrides(faults: Faults, tmp_path, example):
    file = tmp_path / "config.yaml"
    file.write_text(SMOKE, encoding="utf-8")
    refused_or_accepted(faults, lambda: configured(file, *example))


CSV = b'text,label\n"two\nlines",pos\nplain,neg\n"a ""quote""",pos\n\xc3\xa9t\xc3\xa9,neg\n'
ROWS = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}]
TABLES = {
    "csv": CSV,
    "tsv": CSV.replace(b",", b"\t"),
    "jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS),
    "json": json.dumps(ROWS).encode(),
}
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
BINARY: dict[str, Callable[[Path], Path]] = {
    "parquet": lambda folder: parquet_of(COLUMNS, folder / "a.parquet"),
    "arrow": lambda folder: arrow_of(COLUMNS, folder / "a.arrow"),
    "arrows": lambda folder: arrow_of(COLUMNS, folder / "a.arrows", stream=True),
    "h5": lambda folder: hdf5_of(COLUMNS, folder / "a.h5"),
    "hdf5": lambda folder: hdf5_of(media_rows(pictures(folder), "image"), folder / "a.hdf5"),
    "tar": lambda folder: tar_of(pictures(folder), folder / "a.tar"),
    "zip": lambda folder: zip_of(pictures(folder), folder / "a.zip"),
}


def pictures(folder: Path) -> Path:
    for number, label in enumerate("ab"):
        (folder / "set" / label).mkdir(parents=True)
        (folder / "set" / label / "1.png").write_bytes(encoded(noise(6, 7, 3, seed=number)))
    return folder / "set"


def read_all(file: Path) -> None:
    """Reads and checks all rows of a table or archive; those that cannot be used have a reason."""
    modality = "image" if is_files(file) or file.suffix == ".hdf5" else "text"
    task = TASK(read_config(TASK.Options, {"task": {"modality": modality}}, (), {}, TASK.columns, False).config)
    for raw in read_rows(file):
        try:
            check_raw(raw, task, {}, True, folder_of(file))
        except BadRow as bad:
            if not str(bad):
                raise


@pytest.mark.parametrize("kind", [*TABLES, *BINARY])
@pytest.mark.parametrize("how", ["mutated", "random"])
def test_tables(faults: Faults, tmp_path, kind, how):
    whole = TABLES.get(kind) or BINARY[kind](tmp_path).read_bytes()
    strategy = mutated(whole) if how == "mutated" else st.binary(max_size=300)
    file = tmp_path / f"train.{kind}"

    @fuzzed(strategy, share=0.5)
    def check(example: bytes) -> None:
        file.write_bytes(example)
        refused_or_accepted(faults, lambda: read_all(file))

    check()


@pytest.fixture(scope="module")
def finished(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("fuzzed") / "run"
    ended = server.run(argv(run), hooks=QUICK)
    assert ended.code == 0, ended.output
    return run


def test_manifests(faults: Faults, finished, tmp_path):
    checkpoint = shutil.copytree(finished / "checkpoints" / "step-12", tmp_path / "step-12")
    manifest = checkpoint / "manifest.json"
    content, original = json.loads(manifest.read_text()), manifest.read_bytes()

    @fuzzed(st.one_of(mutated(original), replaced(content).map(lambda each: json.dumps(with_own_hash(each)).encode())))
    def check(example: bytes) -> None:
        manifest.write_bytes(example)
        refused_or_accepted(faults, lambda: verify(checkpoint))

    check()


def test_states(faults: Faults, finished):
    content = json.loads((finished / "checkpoints" / "step-12" / "state.json").read_text())

    @fuzzed(replaced(content))
    def check(example: Any) -> None:
        refused_or_accepted(faults, lambda: SavedState.from_json(example))

    check()


def test_resumes_from_other_states(server: ForkServer, faults: Faults, finished, tmp_path):
    """The state is wrong, and the manifest says that it is as it was written."""
    wrong = list[str]()
    content = json.loads((finished / "checkpoints" / "step-12" / "state.json").read_text())

    @fuzzed(replaced(content), share=0.03)
    def check(example: Any) -> None:
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished, run)
        checkpoint = run / "checkpoints" / "step-12"
        text = json.dumps(example).encode()
        (checkpoint / "state.json").write_bytes(text)
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest["files"]["state.json"] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        (checkpoint / "manifest.json").write_text(json.dumps(with_own_hash(manifest)))
        faults.count("bad inputs")
        wrong.extend(faults.problems(server.run(argv(run, RESUME), hooks=QUICK), json.dumps(example)[-300:]))

    check()
    assert not wrong, "\n".join(wrong)


COMMANDS = (("runs", "RUN"), ("diff", "RUN", "OTHER"), ("verify", "RUN"))


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "metrics.jsonl"])
def test_records_of_runs(faults: Faults, finished, tmp_path, name, capsys):
    run = shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints", "model"))
    file = run / name
    strategy = mutated(file.read_bytes())
    if name == "run.json":
        strategy |= replaced(json.loads(file.read_text())).map(lambda each: json.dumps(each).encode())

    @fuzzed(strategy, share=0.2)
    def check(example: bytes) -> None:
        file.write_bytes(example)
        for command in COMMANDS:
            words = [str({"RUN": run, "OTHER": finished}.get(word, word)) for word in command]
            refused_or_accepted(faults, lambda words=words: run_command(*words))
            assert "Traceback" not in capsys.readouterr().err, words
        refused_or_accepted(faults, lambda: list(damages(run)))

    check()
