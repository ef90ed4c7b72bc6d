"""Reads the tokens of YAML, of which no few bytes take long."""

from __future__ import annotations

from typing import Any

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.scanner import Scanner

from toolkit.base.files import MOST_LEVELS


class ShallowScanner(Scanner):
    """The scanner of YAML, which refuses brackets in more than `MOST_LEVELS` levels when it comes to the first of them.

    It looks ahead for as long as a bracket may begin a key, with work for each open bracket: seconds for 2,000 of them.
    """

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803 - the library's name
        """Opens a bracket.

        Raises:
            MarkedYAMLError: if too many are open.
        """
        if self.flow_level >= MOST_LEVELS:
            raise MarkedYAMLError(problem="nested too deeply", problem_mark=self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)
