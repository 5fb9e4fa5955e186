"""Sees the graphs that Dynamo captures, and the calls of what its backend makes of them.

``OutputGraph.call_user_compiler`` is private: Dynamo calls it once for each graph, with the graph
before it is lowered, and puts its result into the code that it generates. Only this module uses it.
The backend gets the same graph, and Dynamo checks the same guards, because the result takes part in
neither. A graph without a readable loss is left as it is.
"""

from __future__ import annotations

import functools
import sys
from types import FunctionType
from typing import Any

import torch

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook
from gradledger.capture.isolation import isolated, never_compile, skip_in_stacklevel
from gradledger.observers.losses_compiled.live import remember, versions_of
from gradledger.observers.losses_compiled.plan import Passage, Plan, plans

MODULE, OWNER, METHOD = "torch._dynamo.output_graph", "OutputGraph", "call_user_compiler"


class CompiledGraphs:
    """Notes each call of a compiled graph with a readable loss, except while ``paused``."""

    def __init__(self) -> None:
        self.paused = False
        self._installed = False
        self._guard = guard.fail_open("reading the losses of compiled graphs")
        self._hook = ImportHook(MODULE, self._replace)
        self._original: Any = None
        self._replacement: Any = None

    def install(self) -> None:
        """See graphs from now on, or once Dynamo is imported."""
        self._installed = True
        self._hook.install()

    def uninstall(self) -> None:
        """Restore Dynamo. Graphs that were compiled meanwhile only call what the backend made."""
        self._installed = False
        self._hook.uninstall()
        owner = getattr(sys.modules.get(MODULE), OWNER, None)
        if owner is not None and owner.__dict__.get(METHOD) is self._replacement is not None:
            setattr(owner, METHOD, self._original)

    def _replace(self) -> None:
        with self._guard:
            owner = getattr(sys.modules[MODULE], OWNER, None)
            original = None if owner is None else owner.__dict__.get(METHOD)
            if original is None:
                return  # this version of PyTorch has another name for it

            @functools.wraps(original)
            def call_user_compiler(output_graph: Any, *args: Any, **kwargs: Any) -> Any:
                readable: list[Plan | Passage] = []
                with self._guard:  # before the backend, which may change the graph
                    if self._installed and args and _is_ordinary(output_graph):
                        readable = plans(args[0].graph)
                compiled = original(output_graph, *args, **kwargs)
                return self._noting(compiled, readable) if readable else compiled

            self._original, self._replacement = original, skip_in_stacklevel(call_user_compiler)
            setattr(owner, METHOD, self._replacement)

    def _noting(self, compiled: Any, readable: list[Plan | Passage]) -> Any:
        """``compiled``, which also notes its calls.

        A bound method is the graph itself, run in eager mode: its losses can be seen.
        """
        if not isinstance(compiled, FunctionType):
            return compiled

        @functools.wraps(compiled)
        def compiled_graph(*args: Any) -> Any:
            versions = self._versions(readable, args)
            result = compiled(*args)
            if versions is not None:
                self._note(readable, args, versions, result)
            return result

        # Else Dynamo unwraps what it disables (PyTorch 2.6), and never calls this function.
        compiled_graph.__dict__.pop("_torchdynamo_orig_callable", None)
        return never_compile(skip_in_stacklevel(compiled_graph))

    @never_compile
    def _versions(
        self, readable: list[Plan | Passage], args: tuple[Any, ...]
    ) -> list[list[int | None]] | None:
        if self.paused or not self._installed or not torch.is_grad_enabled():
            return None
        with isolated(), self._guard:
            return [versions_of([args[i] for i, _ in plan.inputs]) for plan in readable]
        return None

    @never_compile
    def _note(
        self,
        readable: list[Plan | Passage],
        args: tuple[Any, ...],
        versions: list[list[int | None]],
        result: Any,
    ) -> None:
        with isolated(), self._guard:
            for plan, each in zip(readable, versions, strict=True):
                remember(plan, args, each, result[plan.output])


def _is_ordinary(output_graph: Any) -> bool:
    """Whether the result is called here: it is neither exported nor saved as a package."""
    return not getattr(output_graph, "export", False) and (
        getattr(output_graph, "package", None) is None
    )
