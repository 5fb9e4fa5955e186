"""Names of the modules that hold a parameter, such as the head that computes a loss's input."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

from torch.nn import Embedding, Module

from gradledger.capture.layers.parameter_names import (
    LONGEST,
    children,
    known_models,
    search_models,
    without_wrappers,
)

MOST_READ = 8  # times that the modules are read: parameters made anew all the time have no name
PARAMETRIZED = "parametrizations"  # PyTorch's, between a module and its parameter


class ModuleNames:
    """The names of modules by parameter, read once from the models that are known."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str | None]] = {}
        self._read = 0
        self._searched = False

    def of(self, parameter: Any, search: bool) -> str | None:
        """The name of the one module that holds the parameter; None if none or several do.

        An embedding that shares it does not count: its output is no logits. ``search``: through all
        modules that are alive, once, if the parameter is in no known model.
        """
        reference, name = self._names.get(id(parameter), (None, None))
        if reference is not None and reference() is parameter:
            return name
        self._names.pop(id(parameter), None)  # of another parameter, which is gone
        if self._read == MOST_READ:
            return None
        self._read += 1
        names = _names_of_modules()
        if id(parameter) not in names and search and not self._searched:
            self._searched = True
            names = _names_of_modules() if search_models() else names
        self._names = names
        return self._names.setdefault(id(parameter), (weakref.ref(parameter), None))[1]


def _names_of_modules() -> dict[int, tuple[weakref.ref[Any], str | None]]:
    """By parameter (its ``id``). A name that modules of two models have is none."""
    owners: dict[int, tuple[Any, list[str]]] = {}
    models = [
        {_short(name): module for name, module in _named_modules(model)} for model in known_models()
    ]
    uses = Counter(name for modules in models for name in modules)
    for name, module in (pair for modules in models for pair in modules.items()):
        if isinstance(module, Embedding):
            continue
        for parameter in (module.__dict__.get("_parameters") or {}).values():
            if parameter is not None:
                owners.setdefault(id(parameter), (parameter, []))[1].append(name)
    return {
        key: (weakref.ref(parameter), _single(names, uses))
        for key, (parameter, names) in owners.items()
    }


def _single(names: list[str], uses: Counter[str]) -> str | None:
    return names[0] if len(names) == uses[names[0]] == 1 and names[0] else None


def _short(name: str) -> str:
    return without_wrappers(name.partition(f".{PARAMETRIZED}.")[0])[-LONGEST:]


def _named_modules(model: Module) -> list[tuple[str, Any]]:
    """Each module once, under its first name, without calling a method of it."""
    named: list[tuple[str, Any]] = [("", model)]
    visited = {id(model)}
    for name, module in named:  # which grows
        for key, child in children(module).items():
            if id(child) not in visited:
                visited.add(id(child))
                named.append((f"{name}.{key}" if name else key, child))
    return named
