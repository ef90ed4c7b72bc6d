"""Prints the requirements of the toolkit and of some of its extras, to install them before the toolkit itself.

python deploy/requirements.py peft excel > requirements.txt
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(project: Path, extras: Sequence[str]) -> list[str]:
    """Returns the requirements in a pyproject.toml.

    Args:
        project: the pyproject.toml.
        extras: names of extras whose requirements are added.

    Raises:
        SystemExit: if there is no such extra; names those that there are.
    """
    found = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    known = found["optional-dependencies"]
    if unknown := [extra for extra in extras if extra not in known]:
        sys.exit(f"{project}: no extra {', '.join(unknown)}; there are: {', '.join(known)}")
    return [*found["dependencies"], *(each for extra in extras for each in known[extra])]


if __name__ == "__main__":
    print(*requirements(Path("pyproject.toml"), sys.argv[1:]), sep="\n")
