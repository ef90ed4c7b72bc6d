"""Everything of the data that a run cuts, skips, merges or ignores is counted once, and each command shows it."""

from __future__ import annotations

import json
from pathlib import Path

import audio_files
import image_files
import numpy as np
import pytest
from commands import run_command
from PIL import Image
from runs import ROOT, train
from transformers import BertConfig, BertTokenizer
from transformers import BertForSequenceClassification as Classification
from transformers import BertForTokenClassification as TokenClassification

from toolkit.data.loading import check_rows
from toolkit.prepare.inputs import omissions_of
from toolkit.recipe import load_settings, load_task_type

TEXTS = [f"field {row} was ploughed and sown with rye" for row in range(20)]
CONTEXT = "Sow rye in the cold autumn. Reap it in a dry July, when the straw is pale and the ears are hanging down low."


def reviews(folder: Path) -> list[str]:
    lines = [f"{text},{'ab'[row % 2]},{row}" for row, text in enumerate(TEXTS)]
    lines += [lines[0], lines[1], ",a,20", "a sentence of no use,odd,21", "☃ rye,a,22"]
    lines.insert(0, f"{'rye ' * 60},b,23")
    (folder / "train.csv").write_text("\n".join(["text,label,field", *lines]) + "\n")
    return [
        "data.bad_rows=skip", "data.drop_duplicates=true", "task.label_map.odd=null", "data.max_train_samples=20",
        "task.label_map.a=first",
        "task.max_length=48", f"model.name_or_path={bert(folder, Classification, *TEXTS[0].split(), 'x', '##x')}",
    ]  # fmt: skip


def bert(folder: Path, model: type, *words: str) -> Path:
    """Saves a small model whose tokenizer knows only some words."""
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}).save_pretrained(folder / "bert")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model(BertConfig(vocab_size=len(vocab), **sizes)).save_pretrained(folder / "bert")
    return folder / "bert"


def questions(folder: Path) -> list[str]:
    answers = {
        "When is rye sown?": ["autumn", "the cold autumn"],
        "When is it reaped? " + "please " * 80: ["July"],
        "How is it then?": [" a dry July, when the straw is pale and the ears are hanging down low"],
    }
    rows = [
        {"question": question, "context": CONTEXT,
         "answers": {"text": texts, "answer_start": [CONTEXT.index(text) for text in texts]}}
        for question, texts in answers.items()
    ]  # fmt: skip
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return ["task.max_length=32", "task.doc_stride=4", "model.from_config.max_position_embeddings=32"]


def chats(folder: Path) -> list[str]:
    said = [["Sow?", "Yes."], ["Reap?", "No. " * 40], ["word " * 60, "Late."], ["Hay?", "Dry.", "Thanks."]]
    roles = ("user", "assistant", "user")
    rows = [
        {"messages": [{"role": role, "content": text} for role, text in zip(roles, each, strict=False)]}
        for each in said * 3
    ]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return ["task.block_size=40", "data.bad_rows=skip", "data.max_bad_rows=0.5"]


def pairs(folder: Path) -> list[str]:
    rows = [{"document": text, "summary": text if row else "rye " * 60} for row, text in enumerate(TEXTS)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return ["task.max_target_length=32"]


def words(folder: Path) -> list[str]:
    rows = [{"tokens": ["rye", "\u200b" if row == 3 else "oats"], "tags": ["O", "B-CROP"]} for row in range(12)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return ["task.entity_types=[CROP]", f"model.name_or_path={bert(folder, TokenClassification, 'rye')}"]


def pictures(folder: Path) -> list[str]:
    found = {
        "noise": image_files.encoded(image_files.noise(16, 16, 3)),
        "grey": image_files.encoded(Image.new("RGB", (16, 16), (9, 9, 9))),
        "clear": image_files.encoded(Image.fromarray(np.arange(1024, dtype=np.uint8).reshape(16, 16, 4))),
        "moving": image_files.encoded(
            image_files.noise(16, 16), "GIF", save_all=True, append_images=[image_files.noise(16, 16, seed=1)]
        ),
        "dark": image_files.encoded(Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16))),
        "deep": image_files.encoded(Image.fromarray(np.arange(256, dtype=np.uint16).reshape(16, 16) * 200)),
    }
    for place, (name, content) in enumerate(found.items()):
        for label in "ab":
            file = folder / "train" / label / f"{name}{place}.{'gif' if name == 'moving' else 'png'}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    return []


def recordings(folder: Path) -> list[str]:
    for name, (seconds, channels) in {
        "long": (1.5, 1),
        "short": (0.1, 1),
        "stereo": (0.5, 2),
        "silent": (0.5, 1),
    }.items():
        for label in "ab":
            file = folder / "train" / label / f"{name}.wav"
            file.parent.mkdir(parents=True, exist_ok=True)
            sound = audio_files.tone(seconds, channels=channels)
            file.write_bytes(audio_files.encoded(sound if name != "silent" else 0 * sound))
    return ["task.audio.max_seconds=1", "task.audio.min_seconds=0.25"]


KINDS = {
    "reviews/smoke": (reviews, "train.csv", [
        ("rows cannot be used", 1, 25), ("rows excluded", 1, 26), ("columns not used", 1, 3),
        ("rows skipped as exact duplicates (data.drop_duplicates)", 2, 24),
        ("rows after the first data.max_train_samples=20 not used", 2, 22),
        ("rows with labels renamed by task.label_map", 10, 20), ("inputs truncated to task.max_length=48", 1, 20),
        ("tokens unknown to the tokenizer", 18, 238),
    ]),
    "qa/smoke": (questions, "train.jsonl", [
        ("questions truncated to leave room for the context in task.max_length", 1, 3),
        ("answers longer than task.doc_stride that no window holds, trained as no answer", 1, 3),
        ("answers after a question's first, used for scores only", 1, 4),
        ("answers without the blanks around them", 1, 3),
    ]),
    "language_modeling/smoke_chat": (chats, "train.jsonl", [
        ("rows have no answer within task.block_size (40) tokens", 3, 12),
        ("examples do not train the end of an answer", 3, 9),
        ("messages after the last answer ignored", 3, 27),
        ("inputs truncated to task.block_size=40", 3, 9),
    ]),
    "summarization/smoke": (pairs, "train.jsonl", [("targets truncated to task.max_target_length=32", 1, 20)]),
    "token_classification/smoke": (words, "train.jsonl", [
        ("tokens without a piece in the tokenizer, tagged O", 1, 24), ("tokens unknown to the tokenizer", 11, 47),
    ]),
    "reviews/smoke_image": (pictures, "train", [
        ("images have one colour only", 2, 12), ("images used without their transparency", 2, 12),
        ("images used without the frames after the first", 2, 12),
        ("images of 16 bits read as of 8, others as of more: their brightness differs", 2, 12),
    ]),
    "reviews/smoke_audio": (recordings, "train", [
        ("clips cropped to task.audio.max_seconds=1", 2, 8),
        ("clips padded with silence to task.audio.min_seconds=0.25", 2, 8), ("clips mixed to one channel", 2, 8),
        ("clips of recordings without any sound", 2, 8),
    ]),
}  # fmt: skip
"""By configuration: writes rows, and returns settings; the rows' file; what is not used, its number, that of all."""


def settings(folder: Path, config: str) -> tuple[str, Path, list[str]]:
    """Writes the rows of a kind; returns recipe, YAML and settings."""
    recipe, _, name = config.partition("/")
    write, file, _ = KINDS[config]
    alone = ["data.validation_file=null", "data.validation_split=0"]
    alone += ["eval.eval_steps=null", "checkpoint.load_best_model_at_end=false"]
    yaml = ROOT / "recipes/configs" / recipe / f"{name}.yaml"
    return recipe, yaml, [f"data.train_file={folder / file}", *alone, *write(folder)]


@pytest.mark.parametrize("config", KINDS)
def test_every_kind_of_omission_is_counted(tmp_path, config):
    recipe, yaml, overrides = settings(tmp_path, config)
    task_type = load_task_type(recipe)
    cfg = load_settings(task_type, yaml, overrides).config
    task = task_type(cfg)
    found = omissions_of(cfg, task, check_rows(cfg, task))
    told = {(each.what, each.count, each.total) for each in found}
    assert told >= set(KINDS[config][2]), sorted(told)


def test_a_run_its_report_and_the_commands_show_the_same_list(tmp_path, capsys, caplog):
    recipe, yaml, overrides = settings(tmp_path, "reviews/smoke")
    run = tmp_path / "run"
    train("reviews", run, *overrides, "data.max_eval_samples=null", sizes=())
    told = " ".join(caplog.text.split())
    report = " ".join((run / "report.md").read_text().split())
    found = json.loads((run / "run.json").read_text())["omissions"]
    assert len(found) == 8
    sentences = [
        f"{each['where']}: {each['count']:,} of {each['total']:,} {each['what']} ({each['count'] / each['total']:.1%})"
        for each in found
    ]
    assert [each for each in sentences if each not in told] == []
    assert [each for each in found if f"| {each['where']} | {each['what']} | {each['count']:,} of" not in report] == []
    for command in (["validate"], ["data", "show"]):
        assert run_command(*command, recipe, "--config", yaml, *overrides) == 0
        shown = "".join("".join(capsys.readouterr()).split())  # lines end within long paths
        assert [each for each in sentences if "".join(each.split()) not in shown] == [], command
    (tmp_path / "new.csv").write_text(f"text,label\n{'rye ' * 60},a\nfield,b\n")
    for command in (
        ["predict", run, "--input", tmp_path / "new.csv"],
        ["evaluate", run, "--data", tmp_path / "new.csv"],
    ):
        assert run_command(*command) == 0
        assert "1 of 2 inputs truncated to task.max_length=48 (50.0%)" in "".join(capsys.readouterr())
