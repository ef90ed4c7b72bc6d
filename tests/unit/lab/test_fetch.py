"""A fetched run is the run from the hub; what is missing or damaged is named and fetched again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_command
from fetch_runs import YAML, make_hub, reviews
from image_files import noise
from runs import ROOT, assert_same_weights, lines

from toolkit.base.offline import read_fetched
from toolkit.config.sections import ModelConfig
from toolkit.lab.fetch import model_file_names, save_split

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the YAML, a run from a hub on this machine (`run`), and what was fetched (`fetched`)."""
    folder = tmp_path_factory.mktemp("fetch")
    make_hub(folder / "hub")
    (folder / "run.yaml").write_text(YAML)
    program = [sys.executable, str(ROOT / "tests/support/fetch_runs.py"), str(folder / "hub")]
    places = [str(folder / name) for name in ("run.yaml", "run", "fetched")]
    environ = os.environ | {"HF_HOME": str(folder / "cache")}
    done = subprocess.run([*program, *places], env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert "train ended with 0, read 14 files" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("fetch ended with 0, read 0 files") == 2, done.stdout + done.stderr  # all from the cache
    assert "nothing to do" in done.stdout.splitlines()[-3], done.stdout
    return folder


def identity(run: Path) -> dict[str, object]:
    newest = max(run.glob("checkpoints/*/state.json"), key=lambda file: file.stat().st_mtime)
    return dict(json.loads(newest.read_text())["identity"])


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """Returns a copy of the fetched folder."""
    return Path(shutil.copytree(made / "fetched", tmp_path / "fetched"))


def test_a_run_from_the_folder_is_the_run_from_the_hub(made, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    use = [f"offline_dir={made}/fetched", f"output_dir={tmp_path}/run"]
    assert run_command("train", "reviews", "--config", f"{made}/run.yaml", *use) == 0
    assert_same_weights(made / "run", tmp_path / "run")
    assert lines(made / "run") == lines(tmp_path / "run")
    before, now = identity(made / "run"), identity(tmp_path / "run")
    assert {key for key in before if before[key] != now[key]} == {"offline_dir", "output_dir"}
    saved = "model/tokenizer_config.json"
    assert (made / "run" / saved).read_text() == (tmp_path / "run" / saved).read_text()
    # Nothing was prepared again, and nothing was written into the folder.
    keys = {path.name for path in (tmp_path / "cache/toolkit").iterdir() if path.is_dir()}
    assert keys == {path.name for path in (made / "fetched/prepared").iterdir()}
    assert not list(read_fetched(made / "fetched").damage())


def test_a_run_from_the_hub_goes_on_from_the_folder(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    more = [f"offline_dir={made}/fetched", f"output_dir={tmp_path}/run", "checkpoint.resume=auto", "train.max_steps=4"]
    assert run_command("train", "reviews", "--config", f"{made}/run.yaml", "train.lr_scheduler_type=constant",
                       *more) == 2  # fmt: skip
    assert run_command("train", "reviews", "--config", f"{made}/run.yaml", *more) == 0


def test_the_folder_says_what_it_is_and_has_only_what_is_read(made):
    fetched = read_fetched(made / "fetched")
    assert {key: (source.value, source.path) for key, source in fetched.sources.items()} == {
        "model.name_or_path": ("tiny/bert", "model"),
        "data.dataset_name": ("tiny/reviews", "dataset"),
    }
    assert all(len(source.commit or "") == 40 for source in fetched.sources.values())
    names = {name for name in fetched.files if name.startswith("model/")}
    found = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert names == {f"model/{name}" for name in found}


def test_damaged_and_missing_files_are_named_and_fetched_again(made, copy, capsys):
    weights = copy / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    config = ["--config", f"{made}/run.yaml"]
    assert run_command("train", "reviews", *config, f"offline_dir={copy}", f"output_dir={copy.parent}/run") == 2
    assert "model/model.safetensors has another sha256 than when it was written" in capsys.readouterr().err
    (copy / "model/config.json").unlink()
    assert run_command("validate", "reviews", *config, f"offline_dir={copy}") == 2
    assert "model/config.json is missing" in capsys.readouterr().err
    # The hub is gone, so what is not damaged is kept, and the rest comes from a local folder of the same name.
    source = f"model.name_or_path={made}/hub/models/tiny/bert"
    assert run_command("fetch", "reviews", *config, "--output", str(copy), source) == 0
    said = capsys.readouterr().out
    assert "replaced: model/model.safetensors has another sha256" in said
    assert "replaced: model/config.json is missing" in said
    assert "wrote 2 files" in said
    assert weights.read_bytes() == (made / "fetched/model/model.safetensors").read_bytes()
    assert not list(read_fetched(copy).damage())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name_or_path=tiny/other", "model.name_or_path: received 'tiny/other', but the folder of offline_dir"),
        ("model.revision=v2", "received 'tiny/bert' (revision 'v2'), but the folder of offline_dir"),
        ("data.dataset_config_name=plain", "received 'tiny/reviews' (configuration 'plain'), but the folder of"),
        ("offline_dir=nowhere", "offline_dir: received 'nowhere', there is no such folder"),
        ("offline_dir={made}/hub", "has no fetched.json; it is no folder of `toolkit fetch`, or not complete"),
    ],
)
def test_what_the_folder_does_not_have_is_named(override, message, made, capsys):
    use = [f"offline_dir={made}/fetched", override.format(made=made)]
    assert run_command("validate", "reviews", "--config", f"{made}/run.yaml", *use) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_a_run_does_not_read_is_rejected(made, capsys):
    assert run_command("validate", "reviews", "--config", "smoke", f"offline_dir={made}/fetched") == 2
    assert "but nothing that this run reads is there; remove it" in capsys.readouterr().err


def test_local_files_and_those_of_their_rows_are_copied(tmp_path, capsys):
    for number, label in enumerate(("cat", "dog") * 6):
        (tmp_path / "data/pets").mkdir(parents=True, exist_ok=True)
        noise(32, 32, 3, seed=number).save(tmp_path / "data/pets" / f"{number}.png")
        with (tmp_path / "data/rows.csv").open("a") as file:
            file.write("image,label\n" if number == 0 else "")
            file.write(f"pets/{number}.png,{label}\n")
    config = ["--config", "smoke_image", f"data.train_file={tmp_path}/data/rows.csv", "data.validation_file=null"]
    config += ["data.test_file=null", "train.max_steps=2", "data.validation_split=0.3"]
    assert run_command("fetch", "reviews", *config, "--output", f"{tmp_path}/fetched") == 0
    assert "wrote 13 files" in capsys.readouterr().out
    runs = {name: [f"output_dir={tmp_path}/{name}"] for name in ("one", "other")}
    assert run_command("train", "reviews", *config, *runs["one"]) == 0
    shutil.rmtree(tmp_path / "data")  # another machine
    use = [f"offline_dir={tmp_path}/fetched"]
    assert run_command("train", "reviews", *config, *runs["other"], *use) == 0
    assert_same_weights(tmp_path / "one", tmp_path / "other")
    changed = {key for key, value in identity(tmp_path / "one").items() if identity(tmp_path / "other")[key] != value}
    assert changed == {"offline_dir", "output_dir", "data.train_file"}  # the file's content is in data.fingerprint


def test_a_group_of_an_hdf5_file_is_fetched(tmp_path):
    import h5py

    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data/rows.h5", "w") as file:
        for name in ("text", "label"):
            values = [row[name] for row in reviews("abc")]
            file.create_dataset(f"all/train/{name}", data=values, dtype=h5py.string_dtype())
    config = ["--config", "smoke", f"data.train_file={tmp_path}/data/rows.h5#all/train", "data.validation_file=null"]
    config += ["data.validation_split=0.3"]
    assert run_command("fetch", "reviews", *config, "--output", f"{tmp_path}/fetched") == 0
    assert list(read_fetched(tmp_path / "fetched").files) == ["files/0/rows.h5"]
    shutil.rmtree(tmp_path / "data")
    assert run_command("validate", "reviews", *config, f"offline_dir={tmp_path}/fetched") == 0


def test_files_of_others_and_paths_out_of_the_folder_are_rejected(made, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    assert run_command("fetch", "reviews", "--config", "smoke", "--output", f"{tmp_path}/mine") == 2
    assert "mine holds thesis.tex, not of `toolkit fetch`" in capsys.readouterr().err
    noise(32, 32, 3, seed=1).save(tmp_path / "a.png")
    (tmp_path / "rows.csv").write_text(f"image,label\n{tmp_path}/a.png,cat\n")
    rows = [f"data.train_file={tmp_path}/rows.csv", "data.validation_file=null", "data.test_file=null"]
    assert run_command("fetch", "reviews", "--config", "smoke_image", "--output", f"{tmp_path}/new", *rows) == 2
    assert f"row 2 of {tmp_path}/rows.csv refers to {tmp_path}/a.png; only files below" in capsys.readouterr().err


def test_shards_adapters_and_code_elsewhere(tmp_path):
    def names(trusted: bool = False) -> list[str]:
        return model_file_names(tmp_path, ModelConfig(name_or_path="tiny/bert", trust_remote_code=trusted))

    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "other/code--modeling.Model"}}))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in ("model-00001-of-00002.safetensors", "model.fp16.safetensors", "modeling.py", "photo.png"):
        (tmp_path / name).touch()
    with pytest.raises(Exception, match=r"lacks model-00002-of-00002.safetensors"):
        names()
    (tmp_path / "model-00002-of-00002.safetensors").touch()
    assert names() == ["config.json", *sorted(index["weight_map"].values()), "model.safetensors.index.json"]
    with pytest.raises(Exception, match="is in another repository, other/code, which"):
        names(trusted=True)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "tiny/bert"}))
    with pytest.raises(Exception, match="are adapters of 'tiny/bert'"):
        names()


def test_a_dataset_takes_the_files_with_it_that_its_rows_refer_to(tmp_path):
    import datasets

    noise(8, 8, 3, seed=1).save(tmp_path / "a.png")
    rows = datasets.Dataset.from_dict({"image": [str(tmp_path / "a.png")], "label": ["cat"]})
    rows = rows.cast_column("image", datasets.Image(decode=False))
    content = (tmp_path / "a.png").read_bytes()
    save_split(rows, tmp_path / "saved")
    (tmp_path / "a.png").unlink()
    (found,) = datasets.load_from_disk(tmp_path / "saved")
    assert (found["image"]["bytes"], found["label"]) == (content, "cat")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_adapters_find_their_base_model_in_the_folder(copy, made, tmp_path, capsys):
    use = [f"offline_dir={copy}", f"output_dir={tmp_path}/run", "model.peft.method=lora"]
    assert run_command("train", "reviews", "--config", f"{made}/run.yaml", *use) == 0
    ask = ["predict", f"{tmp_path}/run", "--input-text", "the film was good"]
    assert run_command(*ask) == 0
    assert "the film was good" in capsys.readouterr().out
    assert run_command("verify", f"{tmp_path}/run") == 0
    weights = copy / "model/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for asked in (ask, ["verify", f"{tmp_path}/run"]):
        assert run_command(*asked) == 1
        assert f"{weights}: its content has changed since `toolkit fetch`" in capsys.readouterr().err
    shutil.rmtree(copy)
    assert run_command(*ask) == 2
    assert "cannot load 'tiny/bert'" in capsys.readouterr().err
