"""The description of one loss function of a library, and how its calls are noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradledger import guard
from gradledger.capture.isolation import isolated
from gradledger.observers.losses_out_of_sight.calls import Call, remember, unknown_signatures

Read = Callable[[dict[str, Any]], Call | None]  # from the arguments by name


@dataclass(frozen=True)
class Adapter:
    """A ``torch.autograd.Function``, or a custom operator, that computes a loss.

    ``needs``: the parameters of ``forward`` that ``read`` uses. If one has another name, the
    function is not the one that was read, and nothing is stated about its losses.
    """

    module: str
    owner: str  # the class, or the operator, in the module
    needs: frozenset[str]
    read: Read
    # of the class, static or a class method: called with the node, then the function's arguments
    method: str = "forward"
    node: str | None = None  # the autograd node, if it is not called ``<owner>Backward``

    @property
    def node_name(self) -> str:
        """The name of the autograd node."""
        return self.node or f"{self.owner}Backward"

    def fits(self, parameters: list[str]) -> bool:
        """Whether the function has the parameters; if not, note why its losses are not read."""
        absent = sorted(self.needs.difference(parameters))
        if not absent:
            return True
        unknown_signatures[self.node_name] = (
            f"{self.module}.{self.owner} has no parameter {', '.join(absent)}: "
            "this version of the library is not known"
        )
        return False


def parameters_of(function: Any, skip: int) -> tuple[list[str], dict[str, Any]]:
    """The names of the parameters after the first ``skip``, and the defaults."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    empty = inspect.Parameter.empty
    defaults = {p.name: p.default for p in parameters if p.default is not empty}
    return [p.name for p in parameters], defaults


def noting_forward(adapter: Adapter, around: guard.fail_open, node_at: int) -> Callable[[Any], Any]:
    """A wrapper of ``forward``, whose parameter ``node_at`` is the autograd node."""

    def wrap(original: Any) -> Any:
        names, defaults = parameters_of(original, skip=node_at + 1)

        def forward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with isolated(), around:
                node, *values = args[node_at:]
                if any(node.needs_input_grad):
                    _note(adapter, node, {**defaults, **dict(zip(names, values)), **kwargs})  # noqa: B905
            return result

        return forward

    return wrap


def noting_context(
    adapter: Adapter, names: list[str], around: guard.fail_open
) -> Callable[[Any], Any]:
    """A wrapper of ``setup_context(ctx, inputs, output)`` of a custom operator."""

    def wrap(original: Any) -> Any:
        def setup_context(ctx: Any, inputs: Any, output: Any) -> Any:
            result = original(ctx, inputs, output)
            with isolated(), around:
                _note(adapter, ctx, dict(zip(names, inputs)))  # noqa: B905
            return result

        return setup_context

    return wrap


def _note(adapter: Adapter, node: Any, arguments: dict[str, Any]) -> None:
    call = adapter.read(arguments)
    if call is not None:
        remember(node, call)
