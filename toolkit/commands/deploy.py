"""Commands that hand a finished run over: export, serve, push, merge, demo."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.base.console import quiet_libraries
from toolkit.base.errors import InputError
from toolkit.base.files import expanded
from toolkit.base.outputs import output_file, output_folder
from toolkit.base.run_folder import RunFolder
from toolkit.commands import options
from toolkit.system.launcher import require_no_launcher

if TYPE_CHECKING:
    from toolkit.deploy.search import Corpus
    from toolkit.deploy.trained import TrainedRun

EXPORT_MOST = 256
"""Most rows to compare on."""
FORMATS = ("zip", "merged", "sentence_transformers", "onnx", "torch_export", "int8")


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the format, the output, and the rows to compare on."""
    options.add(parser, "run")
    options.add(parser, "overrides", default_text="as the run; how answers are made")
    others = "zip; also merged, sentence_transformers, onnx, torch_export or int8"
    options.add(parser, "--format", type=options.one_of(*FORMATS), default="zip", default_text=others)
    options.add_output(parser, "RUN.zip; for other formats than zip it is a folder, RUN-FORMAT")
    options.add(parser, "--data", default_text="the run's validation rows, to compare the export with the run")
    options.add(parser, "--parity-rows", default_text=str(EXPORT_MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_export(arguments: argparse.Namespace) -> None:
    """Writes a zip with a script for transformers, or a folder with the model in another format."""
    require_no_launcher("export")
    folder = expanded(arguments.run)
    if arguments.format != "zip":
        default = f"{folder.absolute()}-{arguments.format}"
        output = output_folder(arguments.output or default, make=False)
        _write_folder(arguments, arguments.format, output, arguments.parity_rows or EXPORT_MOST)
        return
    output = _zip_file(arguments, folder)
    from toolkit.deploy.export.archive import export_zip

    quiet_libraries()
    export_zip(folder, arguments.recipe, output, arguments.trust_remote_code, arguments.overrides)


def _zip_file(arguments: argparse.Namespace, folder: Path) -> Path:
    """Returns the zip to write."""
    for option in ("--data", "--parity-rows"):
        if getattr(arguments, option[2:].replace("-", "_")) is not None:
            raise InputError(f"{option}: a zip has the run's own model, which is not compared; remove it")
    output = output_file(arguments.output or f"{folder.absolute()}.zip", arguments.overwrite)
    if output.suffix.lower() != ".zip":
        raise InputError(f"--output: received {output.name!r}, expected a name that ends in .zip")
    return output


def _write_folder(arguments: argparse.Namespace, name: str, output: Path, most: int, *further: Any) -> None:
    """Writes a folder with the model in a format, and says how close it is to the run on `most` rows."""
    from toolkit.deploy.export.folder import Request, export_folder

    quiet_libraries()
    folder, remote = expanded(arguments.run), arguments.trust_remote_code
    changes = getattr(arguments, "overrides", ())
    export_folder(Request(folder, name, output, most, arguments.recipe, arguments.data, remote, changes, *further))


SERVE_PORT = 8000
LIMITS = {
    "--max-rows": (options.at_least(1), "rows per request"),
    "--max-chars": (options.at_least(1), "characters of a request's texts; longer ones are rejected (413)"),
    "--max-body-mb": (options.number_from(0.001), "megabytes per request"),
    "--max-queue": (options.at_least(1), "requests that wait or are computed; further ones are rejected (429)"),
    "--timeout": (options.number_from(0.001), "seconds to receive a request, and then to answer it"),
    "--batch-wait-ms": (options.number_from(0), "milliseconds for which a batch with room waits for more rows"),
}
"""Options of `Limits`, which has their defaults: types and meanings."""


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the address and the limits."""
    from toolkit.deploy.serving.requests import Limits

    options.add_run(parser, bad_rows=None)
    options.add(parser, "--corpus", default_text="none; with it, POST /search answers")
    options.add_address(parser, SERVE_PORT)
    for option, (kind, meaning) in LIMITS.items():
        default = getattr(Limits(), option.removeprefix("--").replace("-", "_"))
        text = f"{meaning} (default: {default:,.10g})"
        parser.add_argument(option, type=kind, default=default, metavar="N", help=text)


def run_serve(arguments: argparse.Namespace) -> None:
    """Serves the run until SIGTERM or Ctrl-C."""
    from toolkit.deploy.serving.requests import Limits
    from toolkit.deploy.serving.server import serve_run

    limits = Limits(**{name: getattr(arguments, name) for name in vars(Limits())})
    if limits.batch_wait_ms >= 1000 * limits.timeout:
        raise InputError(
            f"--batch-wait-ms: received {limits.batch_wait_ms:g}, but rows are answered within --timeout, "
            f"{limits.timeout:g} s; choose a shorter wait"
        )
    run, name, opened = options.open_served(arguments, ("fastapi", "uvicorn", "python_multipart"))
    serve_run(run, name, opened, limits, _corpus(run, arguments.corpus))


def _corpus(run: TrainedRun, file: str | None) -> Corpus | None:
    if file is None:
        return None
    from toolkit.deploy.search import read_corpus

    return read_corpus(run, file)


def add_push(parser: argparse.ArgumentParser) -> None:
    """Adds the run, and the repository."""
    options.add(parser, "run")
    repository = "checkpoint.hub_model_id of the run, or its folder's name in your namespace"
    parser.add_argument("--repo", metavar="OWNER/NAME", help=f"repository to push to (default: {repository})")
    parser.add_argument("--private", action="store_true", help="make a new repository private")


def run_push(arguments: argparse.Namespace) -> None:
    """Shows the files to upload and the repository, and uploads `model/` with its card."""
    from toolkit.deploy.push import push_run

    require_no_launcher("push")
    push_run(expanded(arguments.run), arguments.repo, arguments.private)


ADDITIONS = ("cat", "linear", "svd", "ties", "dare_linear", "dare_ties", "magnitude_prune")
MERGE_MOST = 32
"""Most rows to compare on, all of which both models compute on the CPU."""


def add_merge(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the output folder, and the rows to compare on."""
    options.add(parser, "run")
    options.add_output(parser, "RUN/merged", folder=True)
    further = "further runs of lora or rslora on the same base model, whose updates are added"
    parser.add_argument("--with", nargs="+", default=[], metavar="RUN", dest="others", help=further)
    factors, number = "factors of the updates, RUN's first (default: equal, sum 1)", options.number_where(bool, "not 0")
    parser.add_argument("--weights", nargs="+", type=number, metavar="W", help=factors)
    kinds, kind = f"{', '.join(ADDITIONS)}, as in peft (default: cat, the exact sum)", options.one_of(*ADDITIONS)
    parser.add_argument("--combination-type", type=kind, default="cat", metavar="TYPE", help=kinds)
    share = "fraction of the values that the types with ties, dare or prune keep (default: 0.5)"
    parser.add_argument("--density", type=options.fraction, default=0.5, metavar="D", help=share)
    options.add(parser, "--data", default_text="the run's own rows; labelled, to compare the merged model with the run")
    options.add(parser, "--parity-rows", default_text=str(MERGE_MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_merge(arguments: argparse.Namespace) -> None:
    """Exports a run as `merged`, below the run unless a folder is named."""
    from toolkit.deploy.trained import read_settings

    require_no_launcher("merge")
    folder = expanded(arguments.run)
    read_settings(folder, arguments.recipe)  # a wrong run is said before the folder that would be in it
    output = output_folder(arguments.output or RunFolder(folder).merged, make=False)
    others = [*map(expanded, arguments.others)]
    weights = arguments.weights or [1 / (1 + len(others))] * (1 + len(others))
    if len(weights) != 1 + len(others) or not sum(weights):
        raise InputError(f"--weights: received {weights}, expected one for each run, with a sum other than 0")
    combined = {"weights": weights, "combination_type": arguments.combination_type, "density": arguments.density}
    most = arguments.parity_rows or MERGE_MOST
    _write_folder(arguments, "merged", output, most, others, combined if others or arguments.weights else {})


DEMO_PORT = 7860


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the address."""
    options.add_run(parser, bad_rows=None)
    options.add(parser, "--corpus", default_text="none; with it, the page searches")
    options.add_address(parser, DEMO_PORT)


def run_demo(arguments: argparse.Namespace) -> None:
    """Serves a page on which the run can be tried, until SIGTERM or Ctrl-C."""
    from toolkit.deploy.demo import serve_demo
    from toolkit.deploy.serving.requests import Limits

    run, name, opened = options.open_served(arguments, ("gradio", "uvicorn"))
    serve_demo(run, name, opened, Limits(), _corpus(run, arguments.corpus))
