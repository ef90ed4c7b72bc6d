"""A small task whose rows refer to files."""

from __future__ import annotations

from typing import Any

import datasets
from rows_task import RowsTask

from toolkit.api.batch import BadRow
from toolkit.config.fields import Column
from toolkit.data.media.files import open_file


class Pictures(RowsTask):
    """Rows with a file that must not be empty."""

    modality = "image"
    columns = {"image": Column("the picture", file=True), "label": Column("its class", label=True)}  # noqa: RUF012

    def schema(self) -> datasets.Features:
        text = datasets.Value("string")
        return datasets.Features(
            {"image": {"path": text, "bytes": datasets.Value("binary"), "name": text}, "label": text}
        )

    def check_row(self, row: dict[str, Any], labelled: bool) -> dict[str, Any]:
        with open_file(row["image"]) as file:
            if not file.read():
                raise BadRow(f"{row['image']['name']} is empty")
        return row
