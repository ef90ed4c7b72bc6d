"""Combinations of settings of `data` that are not supported."""

from __future__ import annotations

import codecs
from pathlib import Path

from toolkit.config.paths import DATA_FILES, files_of
from toolkit.config.problems import CHANGED, Rule, clash, only_if
from toolkit.config.sections import DEFAULT_SPLIT, Config
from toolkit.data.readers.raw import TAB

_FILES = tuple(f"data.{name}" for name in DATA_FILES)
_DELIMITED = (".csv", ".tsv")
_TEXT = (".conll", ".csv", ".tsv", ".json", ".jsonl", ".tmx", ".txt", "")


def _unused(config: Config, suffixes: tuple[str, ...]) -> bool:
    """Whether no data file has one of the suffixes; line-aligned files may have any."""
    files = [file for name in config.data.files() for file in (files_of(name) if len(files_of(name)) == 1 else [""])]
    return not any(Path(file).suffix.lower() in suffixes for file in files)


def _unknown_encoding(config: Config) -> bool:
    try:
        codecs.lookup(config.data.encoding or "utf-8")
    except LookupError:
        return True
    return False


def _set_aside(config: Config) -> float:
    data = config.data
    if data.folds is not None:
        return 0.0
    given = data.validation_file is not None or data.dataset_name is not None
    return data.validation_split or (0.0 if given or data.validation_split == 0 else DEFAULT_SPLIT)


RULES = (
    Rule(lambda c: len(files := c.data.files("train_file")) > len({*files}), ("data.train_file",),
         "a file is listed twice", "remove the duplicate; data.mix repeats the rows of a file"),
    Rule(lambda c: bool(c.data.mix) and not (isinstance(c.data.train_file, list)
                                             and len(c.data.mix) == len(c.data.train_file)),
         ("data.mix", "data.train_file"), "each file of a list has one share",
         "set data.train_file to a list and data.mix to a number for each file, or remove data.mix"),
    clash({"data.mix": bool, "train.train_sampling_strategy": ("sequential", "balanced")},
          "both determine which rows an epoch has, and in which order",
          "set train.train_sampling_strategy to random or group_by_length, or remove data.mix"),
    Rule(lambda c: bool(c.data.mix and c.data.validation_file) and (c.data.join_validation or c.train.refit),
         ("data.mix", "data.validation_file", "data.join_validation", "train.refit"),
         "the validation rows have no share", "remove data.mix, or set data.validation_file to null"),
    clash({"data.test_split": bool, "data.test_file": CHANGED},
          "test rows come either from a separate file or from the training rows", "remove one of them"),
    Rule(lambda c: _set_aside(c) + c.data.test_split >= 1, ("data.validation_split", "data.test_split"),
         "together they leave no training rows",
         "set data.validation_split and data.test_split to fractions whose sum is below 1",
         with_=("data.validation_file", "data.dataset_name", "data.folds")),
    clash({"data.folds": CHANGED, "data.validation_file": CHANGED},
          "the validation rows are a fold of the training rows",
          "set data.validation_file to null, or remove data.folds"),
    clash({"data.folds": CHANGED, "data.validation_split": CHANGED},
          "the validation rows are a fold of the training rows", "remove one of them"),
    only_if("data.fold", "data.folds", bool, "there are no folds", "set data.folds"),
    Rule(lambda c: c.data.folds is not None and c.data.fold > c.data.folds, ("data.fold", "data.folds"),
         "folds are numbered from 1, so there is no such fold", "set data.fold to at most data.folds"),
    only_if("data.max_bad_rows", "data.bad_rows", lambda policy: policy == "skip", "every bad row stops the run",
            "set data.bad_rows to skip"),
    only_if("data.fingerprint", "data.train_file", lambda file: file is not None,
            "datasets of the Hub have a fingerprint of their own", "set data.train_file"),
    only_if("data.stage_to", "data.train_file", lambda file: file is not None,
            "datasets of the Hub are in the cache, whose folder HF_HOME names", "set data.train_file"),
    clash({"data.delimiter": lambda text: text not in (None, *TAB) and len(text) != 1}, "a delimiter is one character",
          "set data.delimiter to a character such as ';', or to tab"),
    Rule(lambda c: c.data.delimiter is not None and _unused(c, _DELIMITED), ("data.delimiter",),
         "only .csv and .tsv files have a delimiter", "remove data.delimiter", with_=_FILES),
    Rule(lambda c: c.data.quoting is not None and _unused(c, _DELIMITED), ("data.quoting",),
         "only .csv and .tsv files have quoted fields", "remove data.quoting", with_=_FILES),
    Rule(lambda c: not c.data.header and _unused(c, (*_DELIMITED, ".xlsx")), ("data.header",),
         "only .csv, .tsv and .xlsx files have a header", "remove data.header", with_=_FILES),
    Rule(_unknown_encoding, ("data.encoding",), "no such encoding",
         "set data.encoding to one that Python knows, for instance cp1252 (Windows, Western Europe)"),
    Rule(lambda c: c.data.encoding is not None and _unused(c, _TEXT), ("data.encoding",), "no data file is a text file",
         "remove data.encoding", with_=_FILES),
)  # fmt: skip
