"""Entry point of `python -m toolkit` and `accelerate launch -m toolkit`."""

from toolkit.commands.cli import main

main()
