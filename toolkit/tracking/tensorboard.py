"""Runs in TensorBoard: event files in `tracking/<project>/<run_name>/`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolkit.api.exhibits import Exhibits, Histogram, Node
from toolkit.document import render
from toolkit.tracking.sink import TrackedRun, final_numbers, folder_name, report_tag

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """A `toolkit.tracking.sink.Sink` of one event file: accelerate would put settings into a file of their own."""

    id = None
    keeps_sent = False  # numbers after the step of the checkpoint are hidden, and written again

    def __init__(self, run: TrackedRun) -> None:
        from accelerate.tracking import TensorBoardTracker

        self._settings = run.plain_settings
        name = f"{folder_name(run.project)}/{folder_name(run.name)}"
        # The purge hides numbers that an interrupted run wrote after the checkpoint from which this run resumes.
        self._tracker = TensorBoardTracker(name, run.folder, purge_step=run.start_step + 1)
        self._tracker.start()
        if not run.start_step:
            self._hparams({}, start=True)

    @property
    def _writer(self) -> SummaryWriter:
        return self._tracker.writer

    def _hparams(self, metrics: Mapping[str, Any], start: bool) -> None:
        """Writes the settings or, at the end, that the run is finished with these metrics."""
        from torch.utils.tensorboard.summary import hparams

        experiment, started, ended = hparams(dict(self._settings), dict(metrics))
        for summary in (started,) if start else (experiment, ended):
            self._writer._get_file_writer().add_summary(summary)
        self._writer.flush()

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Writes scalars."""
        self._tracker.log(values, step=step)

    def histograms(self, found: Mapping[str, Histogram], step: int) -> None:
        """Writes histograms."""
        for name, each in found.items():
            self._writer.add_histogram_raw(
                name, each.edges[0], each.edges[-1], sum(each.counts), each.total, each.squares,
                each.edges[1:], each.counts, step,
            )  # fmt: skip
        self._writer.flush()

    def graph(self, nodes: Sequence[Node]) -> None:
        """Writes a graph; `/` in names are nested boxes in TensorBoard."""
        from tensorboard.compat.proto import config_pb2, graph_pb2

        graph = graph_pb2.GraphDef()
        for node in nodes:
            shown = graph.node.add(name=node.name, op=node.kind, input=node.used)
            sizes = shown.attr["_output_shapes"].list.shape.add().dim
            for size in node.shape:
                sizes.add(size=size)
        self._writer._get_file_writer().add_graph((graph, config_pb2.RunMetadata()))
        self._writer.flush()

    def show(self, exhibits: Exhibits) -> None:
        """Writes the final metrics beside the settings, images, and tables as text."""
        import numpy as np
        from PIL import Image

        final = final_numbers(exhibits)
        self._tracker.log(final, step=exhibits.step)
        self._hparams(final, start=False)
        for title, png in exhibits.pictures.items():
            pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
            self._writer.add_image(report_tag(title), pixels, exhibits.step, dataformats="HWC")
        for title, table in exhibits.tables.items():
            self._writer.add_text(report_tag(title), render.table(table.header, table.rows), exhibits.step)
        self._writer.flush()

    def finish(self) -> None:
        """Closes the event file."""
        self._tracker.finish()
