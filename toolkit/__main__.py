"""`python -m toolkit`, which `accelerate launch -m toolkit ...` starts on every process."""

from toolkit.commands.cli import main

main()
