"""Runs in MLflow: a database in `tracking/mlflow.db` and files in `tracking/mlflow/`, or a server of the user."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.api.exhibits import Exhibits
from toolkit.document import render
from toolkit.tracking.sink import TrackedRun, final_numbers, report_tag


class MLflow:
    """Writes to MLflow, which has no histograms; see `toolkit.tracking.sink.Sink`."""

    keeps_sent = False  # asked for below: a killed session may have sent less than it wrote into metrics.jsonl

    def __init__(self, run: TrackedRun) -> None:
        import mlflow
        from accelerate.tracking import MLflowTracker

        self._library, self._own_store = mlflow, None
        artifacts = None
        if not mlflow.tracking.is_tracking_uri_set():
            self._own_store = store(run.folder)
            mlflow.set_tracking_uri(self._own_store)
            artifacts = (run.folder.absolute() / "mlflow").as_uri()
        former = run.ids.get("mlflow")
        self._tracker = MLflowTracker(run.project, logging_dir=artifacts, run_id=former, run_name=run.name)
        try:
            self._tracker.start()
            self.id: str | None = self._tracker.tracker.info.run_id
            self._sent = self._sent_before() if former else set[tuple[str, int]]()
            if not run.start_step:  # a resumed run has its settings; MLflow rejects changes of them
                self._tracker.store_init_configuration(run.plain_settings)
        except Exception:
            self._leave_store()
            raise

    def _sent_before(self) -> set[tuple[str, int]]:
        """Returns the names and steps of the numbers that the run has; MLflow would keep them twice."""
        client, run_id = self._library.MlflowClient(), self._tracker.tracker.info.run_id
        names = client.get_run(run_id).data.metrics
        return {(name, each.step) for name in names for each in client.get_metric_history(run_id, name)}

    def numbers(self, values: Mapping[str, int | float], step: int) -> None:
        """Logs the numbers that the run does not have already; characters that MLflow rejects become `_`."""
        named = {re.sub(r"[^\w. /-]", "_", name): value for name, value in values.items()}
        if new := {name: value for name, value in named.items() if (name, step) not in self._sent}:
            self._tracker.log(new, step=step)

    def show(self, exhibits: Exhibits) -> None:
        """Logs the final metrics, and images, tables and the report as artifacts."""
        from PIL import Image

        self.numbers(final_numbers(exhibits), exhibits.step)
        for title, png in exhibits.pictures.items():
            self._library.log_image(Image.open(io.BytesIO(png)), f"{report_tag(title)}.png")
        for title, table in exhibits.tables.items():
            self._library.log_text(render.table(table.header, table.rows), f"{report_tag(title)}.md")
        if exhibits.page:
            self._library.log_text(exhibits.page, "report/report.html")

    def finish(self) -> None:
        """Ends MLflow's run."""
        try:
            self._tracker.finish()
        finally:
            self._leave_store()

    def _leave_store(self) -> None:
        """Forgets the store of this run: a later run of the process has its own."""
        mlflow: Any = sys.modules["mlflow"]
        if self._own_store and mlflow.get_tracking_uri() == self._own_store:
            mlflow.set_tracking_uri(None)


def store(folder: Path) -> str:
    """Returns the address of the database in the folder of the trackers."""
    return f"sqlite:///{folder.absolute() / 'mlflow.db'}"
