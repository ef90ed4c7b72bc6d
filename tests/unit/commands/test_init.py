"""`toolkit init`: for every kind of file, a YAML that is valid and says why each setting has its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audio_files import encoded as audio
from audio_files import tone
from commands import run_command
from newcomer_files import FILES, GERMAN, ROWS, customers, photos, prose, ratings, sentences, table
from ruamel.yaml import YAML
from runs import ROOT

from toolkit.lab.init.files import name_of
from toolkit.lab.init.guesses import WIDTH

SMALL_BERT = ("model_type=bert", "hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "vocab_size=300")
SMALL_T5 = ("model_type=t5", "vocab_size=300", "d_model=16", "d_ff=16", "d_kv=8", "num_heads=2", "num_layers=1")
SMALL_CONVNEXT = ("model_type=convnext", "image_size=32", "num_stages=1", "hidden_sizes=[8]", "depths=[1]")
SMALL = {
    "reviews": SMALL_BERT,
    "qa": SMALL_BERT,
    "translation": SMALL_T5,
    "summarization": SMALL_T5,
    "token_classification": SMALL_BERT,
    "language_modeling": ("model_type=gpt2", "vocab_size=300", "n_embd=16", "n_layer=1", "n_head=2"),
}
"""Small models to replace the pretrained one, which is not on the machine that tests."""

EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "customers": (
        "reviews",
        {
            "task.problem_type": "single_label_classification",
            "data.columns": {"text": "Review Text", "label": "Rating"},
            "model.name_or_path": "distilbert/distilbert-base-multilingual-cased",
            "data.validation_split": 0.2,
            "data.encoding": "cp1252",
        },
    ),
    "ratings": ("reviews", {"model.name_or_path": "distilbert/distilbert-base-uncased"}),
    "several_labels": ("reviews", {"task.problem_type": "multi_label_classification", "data.columns.label": "tags"}),
    "separated_labels": ("reviews", {"task.problem_type": "multi_label_classification", "task.label_separator": "|"}),
    "prices": ("reviews", {"task.problem_type": "regression", "data.columns.label": "price"}),
    "workbook": ("reviews", {"data.columns": {"text": "Comment", "label": "Stars"}, "data.unescape_html": True}),
    "memory": ("translation", {"task.source_lang": "en", "task.target_lang": "de"}),
    "questions": ("qa", {"task.version_2_with_negative": True}),
    "pairs": ("translation", {"data.columns": {"source": "EN", "target": "Deutsch"}, "task.source_lang": "en"}),
    "aligned": ("translation", {"task.source_prefix": "translate English to German: "}),
    "photos": ("reviews", {"task.modality": "image"}),
    "calls": ("reviews", {"task.modality": "audio", "data.columns": {"audio": "recording", "label": "topic"}}),
    "entities": ("token_classification", {"model.name_or_path": "distilbert/distilbert-base-multilingual-cased"}),
    "articles": ("summarization", {"task.source_prefix": "summarize: ", "data.columns.document": "article"}),
    "chats": ("language_modeling", {"task.data_format": "messages"}),
    "instructions": (
        "language_modeling",
        {"task.data_format": "prompt_completion", "data.columns": {"prompt": "instruction", "completion": "output"}},
    ),
    "prose": ("language_modeling", {"task.objective": "causal", "task.block_size": 64}),
}


def value_of(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = settings[part]
    return settings


def small_model(recipe: str, settings: Any) -> list[str]:
    sizes = SMALL[recipe]
    if modality := settings["task"].get("modality"):
        sizes = (*SMALL_CONVNEXT, f"num_channels={3 if modality == 'image' else 1}")
    chat = settings["task"].get("data_format") == "messages"
    answers = settings["task"].get("data_format") == "prompt_completion"  # of more tokens with so small a vocabulary
    template = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
    return [*(f"model.from_config.{size}" for size in sizes), *([f"task.chat_template={template}"] if chat else []),
            *(["task.block_size=300"] if answers else [])]  # fmt: skip


@pytest.mark.fast(6)
@pytest.mark.parametrize("name", FILES)
def test_the_yaml_of_every_kind_of_file_is_valid(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    source, output = FILES[name](tmp_path), tmp_path / "new.yaml"
    recipe, expected = EXPECTED[name]
    assert run_command("init", source, "--output", output) == 0
    assert capsys.readouterr().out.endswith(f"Next:\n\n  toolkit train {recipe} --config {output}\n")
    text = output.read_text(encoding="utf-8")
    settings = YAML(typ="safe", pure=True).load(text)
    assert {key: value_of(settings, key) for key in expected} == expected
    assert max(len(line) for line in text.splitlines()[2:] if "_file: " not in line) <= WIDTH
    assert run_command("validate", recipe, "--config", output, "--elsewhere") == 0
    assert run_command("validate", recipe, "--config", output, *small_model(recipe, settings)) == 0, text


def test_every_guess_says_why(tmp_path, capsys) -> None:
    assert run_command("init", customers(tmp_path), "--output", tmp_path / "y.yaml") == 0
    text = (tmp_path / "y.yaml").read_text(encoding="utf-8")
    assert (
        "5 classes: 1 (24), 2 (24), 3 (24), 4 (24), 5 (24); whole numbers with at most 20 values are classes"
        in " ".join(text.replace("# ", "").split())
    )
    assert "not on this machine: the first run downloads it" in text
    assert f"20% of {ROWS} rows" in text
    unexplained = [
        line for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False)
        if ": " in line and "#" not in line and not before.strip().startswith("#")
    ]  # fmt: skip
    assert [line.split(":")[0].strip() for line in unexplained] == [
        *("train_file", "per_device_eval_batch_size", "eval_steps", "save_steps")
    ]


def test_what_is_given_is_not_guessed(tmp_path) -> None:
    output = tmp_path / "y.yaml"
    assert (
        run_command(
            *("init", ratings(tmp_path), "--output", output, "--model", "some/model"),
            *("data.columns.label=ID", "task.problem_type=regression", "train.num_train_epochs=7", "seed=3"),
        )
        == 0
    )
    settings = YAML(typ="safe", pure=True).load(output)
    assert settings["model"]["name_or_path"] == "some/model"
    assert settings["data"]["columns"] == {"text": "Review Text", "label": "ID"}
    assert (settings["task"]["problem_type"], settings["train"]["num_train_epochs"]) == ("regression", 7)
    assert settings["seed"] == 3


def test_equal_numbers_and_similar_labels_are_told(tmp_path, capsys) -> None:
    assert run_command("init", ratings(tmp_path), "--output", tmp_path / "y.yaml") == 0
    told = capsys.readouterr().out
    assert "'five'" in told
    assert "'5'" in told
    assert "3 classes: 1 (48), 5 (48), five (24); one name per row" in (tmp_path / "y.yaml").read_text(encoding="utf-8")


def verdicts(folder: Path, blank: int) -> Path:
    """Writes labels in several spellings beside a column of which one row in `blank` is empty."""
    spelled = ("gut", "schlecht", "Gut ", "gut", " GUT", "schlecht")
    rows = (
        [text, spelled[number % 6], "" if number % blank == 0 else ("Köln", "Paris")[number % 2]]
        for number, text in enumerate(sentences(GERMAN))
    )
    return table(folder / "verdicts.csv", ["Text", "Urteil", "Filiale"], rows)


def test_labels_that_differ_only_in_case_or_blanks_are_merged(tmp_path, capsys) -> None:
    source, output = verdicts(tmp_path, blank=3), tmp_path / "y.yaml"
    assert run_command("init", source, "--output", output) == 0
    merged = "task.label_map={GUT: gut, Gut: gut}"
    assert f"{merged}: these labels differ only in case or blanks" in capsys.readouterr().out
    settings = YAML(typ="safe", pure=True).load(output)
    assert settings["task"]["label_map"] == {"GUT": "gut", "Gut": "gut"}
    assert settings["data"]["columns"]["label"] == "Urteil"  # although a branch repeats more often
    assert "2 classes: gut (80), schlecht (40)" in output.read_text(encoding="utf-8")
    assert run_command("data", "show", source) == 0
    assert f"labels after {merged}" in capsys.readouterr().out
    given = "task.label_map={Gut: gut, GUT: good}"
    assert run_command("init", source, "--output", tmp_path / "z.yaml", given) == 0
    assert "differ only in case or blanks" not in capsys.readouterr().out
    assert YAML(typ="safe", pure=True).load(tmp_path / "z.yaml")["task"]["label_map"] == {"Gut": "gut", "GUT": "good"}


def test_if_too_many_rows_have_no_label_the_guessed_columns_are_named(tmp_path, capsys) -> None:
    source = verdicts(tmp_path, blank=3)
    said = refusal(capsys, tmp_path, source, "data.columns.label=Filiale")
    assert "These columns were guessed; if one is wrong, name the right one: data.columns.text=Text\n" in said
    said = refusal(capsys, tmp_path, source, "data.columns.label=Filiale", "data.columns.text=Text")
    assert "data.max_bad_rows=0.1 allows 10%" in said
    assert "guessed" not in said


def test_files_that_belong_together_are_found(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for name, seed in (("train", 0), ("dev", 1), ("test", 2)):
        rows = ([text, ("good", "bad")[n % 2]] for n, text in enumerate(sentences(seed=seed)))
        table(tmp_path / f"{name}-v2.csv", ["text", "label"], rows)
    assert run_command("init", "train-v2.csv") == 0
    data = YAML(typ="safe", pure=True).load(tmp_path / "train-v2.yaml")["data"]
    assert data == {"train_file": "train-v2.csv", "validation_file": "dev-v2.csv", "test_file": "test-v2.csv"}
    assert run_command("init", "train-v2.csv") == 2
    assert "exists, and may have been edited; name another file with --output" in capsys.readouterr().err
    assert run_command("init", "train-v2.csv", "--overwrite", "model.name_or_path=nowhere") == 0
    assert "nowhere" in (tmp_path / "train-v2.yaml").read_text()
    assert run_command("init", "train-v2.csv", "--overwrite", "eval.eval_steps=x") == 2
    assert "nowhere" in (tmp_path / "train-v2.yaml").read_text()


def test_what_is_named_train_in_a_folder_is_its_table_then_its_folder_and_doubt_is_said(tmp_path, capsys) -> None:
    folder = tmp_path / "clips"
    for part in ("train", "validation"):
        for number in range(24):
            path = folder / part / ("yes", "no")[number % 2] / f"{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(audio(tone(0.5, frequency=200 + 9 * number)))
    output = tmp_path / "new.yaml"

    def chosen() -> list[str]:
        assert run_command("init", folder, "--output", output, "--overwrite") == 0
        data = YAML(typ="safe", pure=True).load(output)["data"]
        return [Path(data[name]).name for name in ("train_file", "validation_file")]

    clips = [[f"train/{path.parent.name}/{path.name}", path.parent.name] for path in (folder / "train").rglob("*.wav")]
    table(folder / "train_list.csv", ["audio", "label"], clips)
    assert chosen() == ["train", "validation"]
    (folder / "train_list.csv").rename(folder / "train.csv")
    assert chosen() == ["train.csv", "validation"]
    (folder / "train.csv").rename(folder / "train_list.csv")
    (folder / "train").rename(folder / "train_clips")
    assert "train_clips and train_list.csv could each hold the training rows" in refusal(capsys, tmp_path, folder)
    (folder / "train_clips").rename(folder / "train")
    for name in ("dev.csv", "valid.csv"):
        table(folder / name, ["audio", "label"], clips)
    assert "dev.csv and valid.csv could each hold the validation rows" in refusal(capsys, tmp_path, folder)


def test_answers_replace_guesses(tmp_path, monkeypatch, capsys) -> None:
    answers = iter(["", "ID", "regression", "", "", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers, ""))
    output = tmp_path / "y.yaml"
    assert run_command("init", ratings(tmp_path), "--output", output, "--interactive") == 0
    settings = YAML(typ="safe", pure=True).load(output)
    assert settings["data"]["columns"] == {"text": "Review Text", "label": "ID"}
    assert settings["task"]["problem_type"] == "regression"

    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert run_command("init", ratings(tmp_path), "--output", tmp_path / "z.yaml", "--interactive") == 2
    assert "without it, all guesses are accepted" in capsys.readouterr().err


def refusal(capsys, folder: Path, *arguments: object) -> str:
    assert run_command("init", *arguments, "--output", folder / "refused.yaml") == 2
    assert not (folder / "refused.yaml").exists()
    return capsys.readouterr().err


def test_data_that_fits_nothing_is_rejected_with_what_to_do(tmp_path, capsys) -> None:
    empty = table(tmp_path / "empty.csv", ["text", "label"], [])
    assert "has no rows" in refusal(capsys, tmp_path, empty)
    one = table(tmp_path / "one.csv", ["text"], [[text] for text in sentences()])
    said = refusal(capsys, tmp_path, one)
    assert "the columns do not fit any recipe" in said
    assert "text: text, all different" in said
    assert "--recipe language_modeling data.columns.text=COLUMN" in said
    ids = table(tmp_path / "ids.csv", ["id", "text"], enumerate(sentences()))
    assert "name it with data.columns.label=COLUMN" in refusal(capsys, tmp_path, ids)
    assert "there is no column 'Rating'" in refusal(capsys, tmp_path, ids, "data.columns.label=Rating")
    assert "--recipe: received 'review', expected" in refusal(capsys, tmp_path, ids, "--recipe", "review")
    assert "did you mean train.learning_rate?" in refusal(capsys, tmp_path, ratings(tmp_path), "train.lr=1")
    assert "no such file" in refusal(capsys, tmp_path, tmp_path / "none.csv")
    chosen = ("--recipe", "language_modeling", "data.columns.text=text")
    assert run_command("init", one, *chosen, "--output", tmp_path / "a.yaml") == 0


def test_the_yaml_that_the_docs_show_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    output = tmp_path / "farm.yaml"
    assert run_command("init", "recipes/data/reviews/train.csv", "--output", output) == 0
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8").split("## From a file to a YAML")[1]
    assert page.split("```yaml\n")[1].split("```")[0] in output.read_text(encoding="utf-8")
    assert name_of("recipes/data/reviews/train.csv") == "reviews"


def test_the_yaml_trains(tmp_path) -> None:
    from toolkit.main import train

    recipes = {ratings: "reviews", photos: "reviews", prose: "language_modeling"}
    for write, recipe in recipes.items():
        source = write(tmp_path)
        output = tmp_path / f"{source.stem}.yaml"
        run_command(
            "init", source, "--output", output, f"output_dir={tmp_path / write.__name__}-run", "train.max_steps=1"
        )
        settings = YAML(typ="safe", pure=True).load(output)
        assert train(recipe, output, small_model(recipe, settings)).steps == 1
