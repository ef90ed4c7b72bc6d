"""Optional protocols of tasks whose exports have a script, checked with `isinstance`, as those of `supports`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from toolkit.api.task import Processor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@runtime_checkable
class SupportsScript(Protocol):
    """A task whose model can be used by a script that needs transformers, but not the toolkit."""

    def script(self) -> str:
        """Returns the name of the script's template in `toolkit/deploy/templates`.

        Raises:
            InputError: if the task has no script with these options, with the reason.
        """

    def script_values(self, model: PreTrainedModel, processor: Processor) -> Mapping[str, Any]:
        """Returns values that the template needs.

        Every template is also given the task's `options`, the `processor`, the model's `config` and `auto_model`, the
        `columns` of a row, and how tables are read.
        """


@runtime_checkable
class SupportsGraph(Protocol):
    """A task that says how its model is used as a graph (ONNX, `torch.export`).

    For other tasks with `SupportsScript`, it is the template of the same name.
    """

    def graph_script(self) -> str:
        """Returns the name of the script's template in `toolkit/deploy/templates/graph`; it may raise an InputError."""
