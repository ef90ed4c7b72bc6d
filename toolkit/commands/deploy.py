"""Commands that hand a finished run over: export, serve, push, merge, demo."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.base.files import expanded
from toolkit.base.outputs import output_file, output_folder
from toolkit.base.run_folder import RunFolder
from toolkit.commands import options
from toolkit.commands.options import Command

EXPORT_MOST = 256
"""Most rows to compare on."""
FORMATS = ("zip", "merged", "onnx", "torch_export", "int8")


def add_export(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the format, the output, and the rows to compare on."""
    options.add(parser, "run")
    others = "zip; also merged, onnx, torch_export or int8"
    options.add(parser, "--format", type=options.one_of(*FORMATS), default="zip", default_text=others)
    options.add(parser, "--output", default_text="RUN.zip; for other formats than zip it is a folder, RUN-FORMAT")
    options.add(parser, "--data", default_text="the run's validation rows, to compare the export with the run")
    options.add(parser, "--parity-rows", default_text=str(EXPORT_MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_export(arguments: argparse.Namespace) -> None:
    """Writes a zip with a script for transformers, or a folder with the model in another format.

    Raises:
        InputError: if the run cannot be exported, or the output cannot be written.
        RunError: if the output cannot be written, or its model differs from the run's.
    """
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("export")
    folder = expanded(arguments.run)
    if arguments.format == "zip":
        _write_zip(arguments, folder, _zip_file(arguments, folder))
    else:
        default = f"{folder.absolute()}-{arguments.format}"
        output = output_folder(arguments.output or default, "--output", make=False)
        write_folder(arguments, arguments.format, output, arguments.parity_rows or EXPORT_MOST)


def _zip_file(arguments: argparse.Namespace, folder: Path) -> Path:
    """Returns the zip to write."""
    from toolkit.base.errors import InputError

    for option in ("--data", "--parity-rows"):
        if getattr(arguments, option[2:].replace("-", "_")) is not None:
            raise InputError(f"{option}: a zip has the run's own model, which is not compared; remove it")
    output = output_file(arguments.output or f"{folder.absolute()}.zip")
    if output.suffix.lower() != ".zip":
        raise InputError(f"--output: received {output.name!r}, expected a name that ends in .zip")
    return output


def _write_zip(arguments: argparse.Namespace, folder: Path, output: Path) -> None:
    from toolkit.base.console import format_bytes, quiet_libraries, say
    from toolkit.deploy.export.archive import export_zip

    quiet_libraries()
    export_zip(folder, arguments.recipe, output, arguments.trust_remote_code)
    say(f"{output} ({format_bytes(output.stat().st_size)}) has the model, its card, the report and predict.py,")
    say("which needs torch and transformers, but not the toolkit; README.txt tells how to use it")


def write_folder(arguments: argparse.Namespace, name: str, output: Path, most: int) -> None:
    """Writes a folder with the model in a format, and says how close it is to the run.

    Args:
        arguments: the run, `data`, `recipe` and `trust_remote_code`.
        name: the format.
        output: the folder, which does not exist or is empty.
        most: most rows to compare on.

    Raises:
        InputError: if the run cannot be exported.
        RunError: if the output cannot be written, or its model differs from the run's.
    """
    from toolkit.base.console import quiet_libraries, say
    from toolkit.deploy.export.folder import Request, export_folder
    from toolkit.document.blocks import Table
    from toolkit.document.render import print_table

    quiet_libraries()
    folder, remote = expanded(arguments.run), arguments.trust_remote_code
    parity = export_folder(Request(folder, name, output, most, arguments.recipe, arguments.data, remote))
    print_table(Table(["", "run", name], parity.lines()))
    allowed = "" if parity.allowed is None else f" (at most {parity.allowed:.1e} is allowed)"
    say(f"largest difference of an output on {parity.rows} rows: {parity.difference:.1e}{allowed}")
    say(f"{output} has the model in this format; README.md is its card, parity.json these figures")


SERVE_PORT = 8000
LIMITS = {
    "--max-rows": (options.at_least(1), "rows per request"),
    "--max-body-mb": (options.number_from(0.001), "megabytes per request"),
    "--max-queue": (options.at_least(1), "requests that wait or are computed; a further one is refused (429)"),
    "--timeout": (options.number_from(0.001), "seconds to receive a request, and then to answer it"),
    "--batch-wait-ms": (options.number_from(0), "milliseconds for which a batch with room waits for more rows"),
}
"""Options of `Limits`, which has their defaults: types and meanings."""


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the address and the limits."""
    from toolkit.deploy.serving.requests import Limits

    options.add_run(parser, bad_rows=None)
    options.add_address(parser, SERVE_PORT)
    for option, (kind, meaning) in LIMITS.items():
        default = getattr(Limits(), option.removeprefix("--").replace("-", "_"))
        parser.add_argument(option, type=kind, default=default, metavar="N", help=f"{meaning} (default: {default:g})")


def run_serve(arguments: argparse.Namespace) -> None:
    """Serves the run until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: if an override does not concern the columns of rows.
        InputError: if the limits contradict each other, the run cannot be opened, or the address cannot be used.
    """
    from toolkit.base.errors import InputError
    from toolkit.deploy.serving.requests import Limits
    from toolkit.deploy.serving.server import serve_run

    limits = Limits(**{name: getattr(arguments, name) for name in vars(Limits())})
    if limits.batch_wait_ms >= 1000 * limits.timeout:
        raise InputError(
            f"--batch-wait-ms: received {limits.batch_wait_ms:g}, but rows are answered within --timeout, "
            f"{limits.timeout:g} s; choose a shorter wait"
        )
    run, name, opened = options.open_served(arguments, ("fastapi", "uvicorn", "python_multipart"))
    serve_run(run, name, opened, limits)


def add_push(parser: argparse.ArgumentParser) -> None:
    """Adds the run, and the repository."""
    options.add(parser, "run")
    repository = "checkpoint.hub_model_id of the run, or its folder's name in your namespace"
    parser.add_argument("--repo", metavar="OWNER/NAME", help=f"repository to push to (default: {repository})")
    parser.add_argument("--private", action="store_true", help="make a new repository private")


def run_push(arguments: argparse.Namespace) -> None:
    """Says what is uploaded and where to, and uploads `model/` with its card.

    Raises:
        InputError: if the run cannot be pushed.
        RunError: if the upload fails.
    """
    from toolkit.base.console import counted, format_bytes, say, warn
    from toolkit.base.errors import RunError
    from toolkit.deploy.push import planned
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("push")
    push = planned(expanded(arguments.run), arguments.repo, arguments.private)
    upload = push.upload
    kind = {True: "private", False: "public", None: "of your default visibility"}[upload.private]
    branch = f", branch {upload.revision}" if upload.revision else ""
    total = format_bytes(sum(push.files.values()))
    say(f"{counted(len(push.files), 'file')} ({total}) go to {upload.repository}{branch}; if it is new, it is {kind}:")
    for name, size in push.files.items():
        say(f"  {name} ({format_bytes(size)})")
    for note in push.notes:
        warn(note)
    try:
        address = upload.send()
    except Exception as error:  # network, permission and naming errors of several libraries alike
        raise RunError(
            f"cannot push to {upload.repository!r}: {type(error).__name__}: {error}\n  Nothing of the run has changed."
        ) from error
    say(f"pushed to {address}")


MERGE_MOST = 32
"""Most rows to compare on, all of which both models compute on the CPU."""


def add_merge(parser: argparse.ArgumentParser) -> None:
    """Adds the run, the output folder, and the rows to compare on."""
    options.add(parser, "run")
    options.add(parser, "--output-dir", default_text="RUN/merged")
    options.add(parser, "--data", default_text="the run's own rows; labelled, to compare the merged model with the run")
    options.add(parser, "--parity-rows", default_text=str(MERGE_MOST))
    options.add(parser, "--recipe", default_text="that of the run")
    options.add(parser, "--trust-remote-code")


def run_merge(arguments: argparse.Namespace) -> None:
    """Exports a run as `merged`, below the run unless a folder is named.

    Raises:
        InputError: if the run cannot be merged, or the folder cannot be written.
        RunError: if the outputs of the merged model differ.
    """
    from toolkit.deploy.trained import read_settings
    from toolkit.system.launcher import refuse_launcher

    refuse_launcher("merge")
    folder = expanded(arguments.run)
    read_settings(folder, arguments.recipe)  # a wrong run is said before the folder that would be in it
    output = output_folder(arguments.output_dir or RunFolder(folder).merged, make=False)
    write_folder(arguments, "merged", output, arguments.parity_rows or MERGE_MOST)


DEMO_PORT = 7860


def add_demo(parser: argparse.ArgumentParser) -> None:
    """Adds the run and the address."""
    options.add_run(parser, bad_rows=None)
    options.add_address(parser, DEMO_PORT)


def run_demo(arguments: argparse.Namespace) -> None:
    """Serves a page on which the run can be tried, until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: if an override does not concern the columns of rows.
        InputError: if the run cannot be opened, or the address cannot be used.
    """
    from toolkit.deploy.demo import serve_demo
    from toolkit.deploy.serving.requests import Limits

    run, name, opened = options.open_served(arguments, ("gradio", "uvicorn"))
    serve_demo(run, name, opened, Limits())


COMMANDS = {
    "serve": Command(add_serve, run_serve),
    "demo": Command(add_demo, run_demo),
    "export": Command(add_export, run_export),
    "push": Command(add_push, run_push),
    "merge": Command(add_merge, run_merge),
}
