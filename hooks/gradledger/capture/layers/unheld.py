"""Finds parameters of the model that get gradients, and that no optimizer holds.

Looked for at three of the steps that measure layers, in the models that are known by then (see
``parameter_names``). A parameter is reported from the second of these steps on, if its values have
not changed since the first one: then nothing else updates it, either.

Modules in a Python list, tuple or dictionary are looked at, too: PyTorch does not register these,
so that ``model.parameters()`` leaves them out.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.layers.parameter_names import (
    KEEPS_REFERENCED,
    LONGEST,
    children,
    models_of,
    named_parameters,
    without_wrappers,
)
from gradledger.records import Unheld
from gradledger.torch_version import at_least

COMPARED_AT = (3, 10, 30)  # steps of an optimizer
MOST_NAMED = 64  # in a record
COORDINATES = 4  # of each of these
MOST_LISTED = 1_000  # a longer list holds data
FEWEST_LISTED = 2  # modules in a container: one alone may be hidden in it on purpose


class _Candidate(NamedTuple):
    name: str
    parameter: Any
    listed: bool  # in a container that PyTorch does not register


class _Observation(NamedTuple):
    """What one step found: the parameters, marks of their gradients, and a few values of each."""

    parameters: list[TensorWeakRef]
    marks: list[tuple[int, int]]
    values: Deferred
    counts: list[int]


class OpenUnheld(NamedTuple):
    """The parameters of a step, to be compared later with those of the look before."""

    names: list[str]
    listed: list[bool]
    sizes: list[int]
    more: int  # that are not named
    now: Deferred
    counts: list[int]
    before: Deferred | None  # None: nothing to compare with

    def deferred(self) -> list[Deferred]:
        """The values that are read later."""
        return [self.now]

    def resolve(self) -> Unheld | None:
        """The wire record: those whose values have not changed; None if all have."""
        if self.before is None:
            return None
        before, now, start, unchanged = self.before.values(), self.now.values(), 0, list[int]()
        for index, count in enumerate(self.counts):
            end = start + count
            unchanged += [index] if count and before[start:end] == now[start:end] else []
            start = end
        if not unchanged:
            return None
        return Unheld(
            count=len(unchanged) + self.more,
            elements=float(sum(self.sizes[index] for index in unchanged)),
            names=[self.names[index] for index in unchanged],
            listed=[position for position, index in enumerate(unchanged) if self.listed[index]],
        )


class UnheldParameters:
    """The search, for all optimizers of a process."""

    def __init__(self) -> None:
        self._earlier: WeakKeyDictionary[Any, _Observation] = WeakKeyDictionary()  # by window
        self._searched = False

    def compare(self, window: Any, windows: Any) -> OpenUnheld | None:
        """The parameters that no optimizer holds, as they are now and at the look before."""
        earlier = self._earlier.pop(window, None)
        candidates = list(self._candidates(window, windows))
        if candidates and earlier is not None:
            held = self._held_by_unknown()
            candidates = [each for each in candidates if id(each.parameter) not in held]
        named = candidates[:MOST_NAMED]
        parameters = [each.parameter for each in named]
        if len({parameter.device for parameter in parameters}) > 1:
            return None  # their values would have to be copied apart
        values, counts = gradient_probe.copy_each(parameters, COORDINATES)
        if values is None:
            return None
        references = list(map(TensorWeakRef, parameters))
        latest = _Observation(references, _marks(parameters), values, counts)
        self._earlier[window] = latest
        comparable = earlier is not None and _is_comparable(earlier, latest)
        return OpenUnheld(
            [each.name[-LONGEST:] for each in named],
            [each.listed for each in named],
            [each.parameter.numel() for each in named],
            len(candidates) - len(named),
            values,
            counts,
            earlier.values if comparable and earlier is not None else None,
        )

    def _held_by_unknown(self) -> set[int]:
        """Parameters of optimizers that were created before the hooks, and have not stepped yet.

        Searched for once.
        """
        if self._searched or not at_least(KEEPS_REFERENCED):
            return set()
        self._searched = True
        objects = gc.get_objects()
        kinds = {kind for kind in set(map(type, objects)) if Optimizer in kind.__mro__}
        optimizers = [each for each in objects if type(each) in kinds]
        del objects
        groups = [group for each in optimizers for group in getattr(each, "param_groups", ())]
        return {id(p) for group in groups for p in group["params"]}

    @staticmethod
    def _candidates(window: Any, windows: Any) -> Iterator[_Candidate]:
        held = {id(p) for each in windows for p in each.parameters()}
        models = models_of(set(map(id, window.parameters())))
        several = len(models) > 1
        visited: set[int] = set()
        for model in models:
            prefix = f"{type(model).__name__}." if several else ""
            for name, parameter in named_parameters(model, prefix, visited):
                if _is_candidate(parameter, held):
                    held.add(id(parameter))
                    yield _Candidate(name, parameter, False)
        for model in models:
            for path, module in _listed(model, "", set()):
                for name, parameter in named_parameters(module, f"{path}.", visited):
                    if _is_candidate(parameter, held):
                        held.add(id(parameter))
                        yield _Candidate(name, parameter, True)


def _marks(parameters: list[Any]) -> list[tuple[int, int]]:
    """They change if a backward adds to a gradient."""
    return [(id(p.grad), p.grad._version) for p in parameters]


def _is_comparable(earlier: _Observation, now: _Observation) -> bool:
    """Whether both looks found the same parameters, and a backward has reached each since."""
    if len(earlier.parameters) != len(now.parameters):
        return False
    pairs = zip(earlier.parameters, now.parameters, strict=True)
    same = all(a() is b() for a, b in pairs)  # == would compare their elements
    return same and all(a != b for a, b in zip(earlier.marks, now.marks, strict=True))


def _is_candidate(parameter: Any, held: set[int]) -> bool:
    if id(parameter) in held or not (parameter.is_leaf and parameter.requires_grad):
        return False
    local = local_part(parameter)
    return parameter.grad is not None and local is parameter and is_plain(local)


def _listed(module: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """Modules in a Python container that is an attribute of a module."""
    if id(module) in visited:
        return
    visited.add(id(module))
    for name, value in list(module.__dict__.items()):
        is_dictionary = type(value) is dict and not name.startswith("_")
        if not (is_dictionary or type(value) in (list, tuple)):
            continue
        if not FEWEST_LISTED <= len(value) <= MOST_LISTED:
            continue
        items = list(value.items() if is_dictionary else enumerate(value))
        if all(Module in type(inner).__mro__ for _, inner in items):
            for key, inner in items:
                yield without_wrappers(f"{path}{name}") + f"[{key!r}]", inner
    for name, child in children(module).items():
        yield from _listed(child, f"{path}{name}.", visited)
