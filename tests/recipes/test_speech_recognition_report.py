"""What a run of speech recognition reports: error rates, wrong words, frequent errors, slices and a baseline."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import jiwer
import numpy as np
import pytest
import soundfile
from commands import run_command
from runs import ROOT, predictions, train

from toolkit.metrics.transcription import alignment

WORDS = ("aiya", "auwa", "ewa", "iyu")
SPEAKERS = {"train": ("anna", "bruno"), "validation": ("flora", "georg")}
UNTRAINED = ("seed=2", "train.max_steps=1", "train.learning_rate=1e-6", "eval.eval_steps=null")
"""Settings of a model that hears other words, too many, or too few."""


def write_rows(folder, split, count):
    """Joins spoken words to utterances of one to three; the file has the columns `audio`, `text` and `speaker`."""
    draw = np.random.default_rng(len(split))
    rows = []
    for number in range(count):
        speaker, words = SPEAKERS[split][number % 2], draw.choice(WORDS, size=1 + number % 3)
        files = [f"{word}/{speaker}-{draw.integers(4)}.flac" for word in words]
        parts = [soundfile.read(ROOT / "recipes/data/audio" / split / file) for file in files]
        name = f"{split}-{number}.wav"
        soundfile.write(folder / name, np.concatenate([samples for samples, _ in parts]), parts[0][1])
        rows.append({"audio": name, "text": " ".join(words), "speaker": speaker})
    with (folder / f"{split}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    """Returns a folder with a run on 40 utterances, evaluated on 24."""
    folder = tmp_path_factory.mktemp("speech")
    for split, count in (("train", 40), ("validation", 24)):
        write_rows(folder, split, count)
    files = [f"data.{split}_file={folder / split}.csv" for split in SPEAKERS]
    train("speech_recognition/smoke_ctc", folder / "run", *files, *UNTRAINED, "eval.slices=[speaker]", sizes=())
    return folder


def pairs(folder, speaker=""):
    """Returns the predictions and references of the validation rows, or of those of a speaker."""
    lines = [line for line in predictions(folder / "run") if speaker in ("", line["slices"]["speaker"])]
    return [line["prediction"] for line in lines], [line["reference"] for line in lines]


def rates(heard, expected):
    """Returns jiwer's scores; the recipe's normalisers leave one space between words."""
    heard = [" ".join(words.split()) for words in heard]
    output = jiwer.process_words(expected, heard)
    words = output.hits + output.substitutions + output.deletions
    kinds = ("substitutions", "insertions", "deletions")
    counts = {kind: getattr(output, kind) / words for kind in kinds}
    return {"wer": output.wer, "cer": jiwer.cer(expected, heard), **counts}


def cells(report, title):
    """Returns the rows of the first table of a section of `report.md`, below its header."""
    part = report.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def plain(cell):
    """Returns the text of a cell without the marks of words."""
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)(\*\*|\*|~~)", "", cell))


def test_error_rates_of_runs_evaluations_and_predictions_are_those_of_jiwer(speech, capsys):
    run, rows = speech / "run", speech / "validation.csv"
    result = json.loads((run / "run.json").read_text())["result"]
    expected = {f"eval_{name}": value for name, value in rates(*pairs(speech)).items()}
    assert {name: result[name] for name in expected} == expected
    assert expected["eval_wer"] * expected["eval_cer"] > 0
    assert result["eval_wer_low"] < result["eval_wer"] < result["eval_wer_high"]
    assert run_command("predict", run, "--input", rows, "--output", speech / "predictions.csv") == 0
    assert run_command("evaluate", run, "--data", rows, "--output", speech / "scores.json", "--slices", "speaker") == 0
    with (speech / "predictions.csv").open(newline="") as file:
        heard, text = zip(*((row["prediction"], row["text"]) for row in csv.DictReader(file)), strict=True)
    scores = json.loads((speech / "scores.json").read_text())
    assert {name: scores[name] for name in expected} == expected
    assert {f"eval_{name}": value for name, value in rates(list(heard), list(text)).items()} == expected
    assert "speaker=flora" in capsys.readouterr().out


def test_largest_errors_are_aligned(speech):
    lines = {str(line["row"]): line for line in predictions(speech / "run")}
    rows = cells(speech / "run/report.md", "Largest errors")
    numbers = [int(row[1]) for row in rows]
    assert numbers == sorted(numbers, reverse=True)
    assert len(rows) == 10
    for row, number, _, heard, expected in rows:
        output = jiwer.process_words(lines[row]["reference"], lines[row]["prediction"])
        assert int(number) == output.substitutions + output.insertions + output.deletions
        assert plain(expected) == lines[row]["reference"]
        assert plain(re.sub(r"~~\w+~~ ?", "", heard)).split() == lines[row]["prediction"].split()
        marks = [len(re.findall(mark, heard)) for mark in (r"\*\*[^*]+\*\*", r"(?<!\*)\*[^*]+\*(?!\*)", r"~~\w+~~")]
        assert marks == [output.substitutions, output.insertions, output.deletions]
    page = (speech / "run/report.html").read_text()
    assert all(f"<{mark}>" in page for mark in ("mark", "ins"))


def test_frequent_errors_are_those_of_all_rows(speech):
    counts = Counter()
    for heard, expected in zip(*pairs(speech), strict=True):
        counts.update(error for error in alignment(heard, expected) if error[0] != "equal")
    rows = cells(speech / "run/report.md", "Most frequent errors (validation)")
    for kind in ("substitution", "insertion", "deletion"):
        shown = [tuple(map(plain, row)) for row in rows if row[0] == kind]
        own = sorted((count for error, count in counts.items() if error[0] == kind), reverse=True)
        assert [int(row[-1]) for row in shown] == own[:10]
        assert all(counts[row[:3]] == int(row[3]) for row in shown)


def test_scores_by_speaker_and_by_length(speech):
    rows = cells(speech / "run/report.md", "Slices (validation)")
    for speaker in SPEAKERS["validation"]:
        (own,) = (row for row in rows if row[0] == f"speaker={speaker}")
        assert own[1:3] == ["12", f"{rates(*pairs(speech, speaker))['wer']:.4g}"]
    quarters = [row for row in rows if row[0].startswith("seconds=")]
    ends = [float(end) for row in quarters for end in row[0].removeprefix("seconds=").split(" to ")]
    assert ends == sorted(ends)
    assert [int(row[1]) for row in quarters] == [6, 6, 6, 6]
    lines, total = predictions(speech / "run"), soundfile.info(speech / "validation-2.wav")
    assert any(low <= round(total.duration, 3) <= high for low, high in zip(ends[::2], ends[1::2], strict=True))
    assert len(lines) == 24


@pytest.mark.slow
def test_the_most_frequent_transcript_is_a_baseline(speech):
    config = speech / "run/config.yaml"
    output = speech / "baseline"
    assert run_command("baseline", "speech_recognition", "--config", config, "--no-model", "--output", output) == 0
    (found,) = json.loads((output / "baseline.json").read_text())["baselines"]
    with (speech / "train.csv").open(newline="") as file:
        ((text, _),) = Counter(row["text"] for row in csv.DictReader(file)).most_common(1)
    _, references = pairs(speech)
    assert found["name"] == f"always {text!r}"
    assert found["scores"]["eval_wer"] == rates([text] * len(references), references)["wer"]
