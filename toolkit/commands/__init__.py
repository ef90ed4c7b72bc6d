"""The sub-commands of `toolkit`, by group: each module has a table `COMMANDS` of its own."""
