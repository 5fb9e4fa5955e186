"""Finds parameters of the model that get gradients, and that no optimizer holds.

Compared at some of the steps that measure layers, in the models that are known by then (see
``parameter_names``). A parameter is reported if it got a gradient since the comparison before, and
its values have not changed: then nothing else updates it, either.

A model is known if an optimizer was created with its ``parameters()``, and that may be a part: the
head of it. So the graph of a few backwards is followed to its leaves. If one is a parameter that no
optimizer holds and no known model contains, the models are searched for, once.

Modules in a Python list, tuple or dictionary are looked at, too: PyTorch does not register these,
so that ``model.parameters()`` leaves them out.

So are parameters in no model of the optimizer, as those of a loss function, if the graph of one of
these backwards leads to them and to the optimizer's, and they have fewer elements. Those of a model
whose inputs or head alone are trained are more.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.weak import TensorWeakRef

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.layers.parameter_names import (
    KEEPS_REFERENCED,
    LONGEST,
    children,
    known_parameters,
    models_of,
    named_parameters,
    names_in_models,
    search_models,
    without_wrappers,
)
from gradledger.records import Unheld
from gradledger.torch_version import at_least

FIRST_COMPARED = 3  # step of an optimizer
STEPS_BETWEEN = 7  # at least: what else updates parameters may do so every few steps
# after the first comparison of an optimizer: of a GAN, those of both players
BACKWARDS_FOLLOWED = 4
MOST_NODES = 4_000  # of the graph of each
MOST_NAMED = 64  # in a record
COORDINATES = 4  # of each parameter
MOST_LISTED = 1_000  # a longer list holds data
FEWEST_LISTED = 2  # modules in a container: one alone may be hidden in it on purpose


class _Candidate(NamedTuple):
    name: str
    parameter: Any
    listed: bool = False  # in a container that PyTorch does not register
    apart: bool = False  # in no model of the optimizer


class _Marked(NamedTuple):
    """A parameter, to be compared later."""

    reference: TensorWeakRef
    mark: tuple[int, int]  # changes if a backward adds to the gradient
    start: int  # where its coordinates are


class _Observation(NamedTuple):
    """What one comparison shows, by ``id`` of the parameters."""

    step: int
    marked: dict[int, _Marked]  # parameters with a gradient that no optimizer holds
    values: Deferred | None  # their coordinates, one parameter after another
    frozen: dict[int, TensorWeakRef]  # those that did not require a gradient, now or before


class _Unheld(NamedTuple):
    """A parameter that got another gradient since the comparison before."""

    name: str
    listed: bool
    apart: bool
    unfrozen: bool  # it did not require a gradient earlier
    size: int
    start: int  # where its coordinates are, now
    start_before: int
    coordinates: int


class OpenUnheld(NamedTuple):
    """The parameters of a step, and the values now and at the comparison before."""

    parameters: list[_Unheld]
    now: Deferred
    before: Deferred

    def deferred(self) -> list[Deferred]:
        """The values that are read later."""
        return [self.before, self.now]

    def resolve(self) -> Unheld | None:
        """The wire record: those whose values have not changed; None if all have."""
        before, now = self.before.values(), self.now.values()
        unchanged = [
            each
            for each in self.parameters
            if before[each.start_before : each.start_before + each.coordinates]
            == now[each.start : each.start + each.coordinates]
        ]
        if not unchanged:
            return None
        named = unchanged[:MOST_NAMED]
        return Unheld(
            count=len(unchanged),
            elements=float(sum(each.size for each in unchanged)),
            names=[each.name for each in named],
            listed=[position for position, each in enumerate(named) if each.listed],
            unfrozen=[position for position, each in enumerate(named) if each.unfrozen],
            apart=[position for position, each in enumerate(named) if each.apart],
        )


class UnheldParameters:
    """The search, for all optimizers of a process."""

    def __init__(self) -> None:
        self._latest: WeakKeyDictionary[Any, _Observation] = WeakKeyDictionary()  # by window
        self._unknown: list[weakref.ref[Any]] | None = None  # optimizers, once searched for
        self._followed = 0  # backwards
        self._searched = False  # for the models that contain the known ones
        # parameters to which a backward leads that reaches those of an optimizer, by its window
        self._beside: WeakKeyDictionary[Any, dict[int, TensorWeakRef]] = WeakKeyDictionary()

    def is_due(self, window: Any, step: int) -> bool:
        """Whether to compare at this step."""
        latest = self._latest.get(window)
        return step >= (FIRST_COMPARED if latest is None else latest.step + STEPS_BETWEEN)

    def follow(self, roots: tuple[Any, ...], windows: Any) -> None:
        """Note what a backward reaches; search for the models if they are not known."""
        if not self._latest or self._followed == BACKWARDS_FOLLOWED:
            return
        self._followed += 1
        leaves = {id(p): p for p in _leaves(roots) if Parameter in type(p).__mro__}
        unheld = leaves.keys() - _held(windows)
        if not unheld:
            return
        compared = [each for each in windows if each in self._latest]
        reached = next((w for w in compared if not leaves.keys().isdisjoint(_held([w]))), None)
        in_models = known_parameters() if reached is None else _in_models_of(reached)
        if not self._searched and not unheld <= in_models:
            self._searched = search_models()
        if reached is not None:
            beside = self._beside.setdefault(reached, {})
            beside.update((key, TensorWeakRef(leaves[key])) for key in unheld)

    def compare(self, window: Any, windows: Any, step: int) -> OpenUnheld | None:
        """The parameters that no optimizer holds, as they are now and at the comparison before."""
        earlier = self._latest.get(window)
        if earlier is None:
            self._followed = 0
        candidates, frozen = self._search(window, windows)
        if candidates and earlier is not None:
            held = self._held_by_unknown()
            candidates = [each for each in candidates if id(each.parameter) not in held]
        if len({each.parameter.device for each in candidates}) > 1:
            candidates = []  # their values would have to be copied apart
        parameters = [each.parameter for each in candidates]
        values, counts = gradient_probe.copy_each(parameters, COORDINATES)
        starts = list(itertools.accumulate(counts, initial=0))
        marked = {
            id(p): _Marked(TensorWeakRef(p), _mark(p), start)
            for p, start in zip(parameters, starts, strict=False)
        }
        were_frozen = {} if earlier is None else _alive(earlier.frozen)
        self._latest[window] = _Observation(step, marked, values, were_frozen | frozen)
        if earlier is None or earlier.values is None or values is None:
            return None
        unheld = [
            _Unheld(
                each.name[-LONGEST:],
                each.listed,
                each.apart,
                id(each.parameter) in were_frozen,
                each.parameter.numel(),
                start,
                before,
                count,
            )
            for each, start, count in zip(candidates, starts, counts, strict=False)
            if count and (before := _start_before(each.parameter, earlier)) is not None
        ]
        return OpenUnheld(unheld, values, earlier.values) if unheld else None

    def _held_by_unknown(self) -> set[int]:
        """Parameters of optimizers that were created before the hooks, and have not stepped yet.

        The optimizers are searched for once.
        """
        if self._unknown is None:
            self._unknown = [weakref.ref(each) for each in _optimizers_alive()]
        optimizers = [each for reference in self._unknown if (each := reference()) is not None]
        groups = [group for each in optimizers for group in getattr(each, "param_groups", ())]
        return {id(p) for group in groups for p in group["params"]}

    def _search(
        self, window: Any, windows: Any
    ) -> tuple[list[_Candidate], dict[int, TensorWeakRef]]:
        """What no optimizer holds: parameters with a gradient, and frozen ones."""
        held = _held(windows)
        models = models_of(set(map(id, window.parameters())))
        # the names of the optimizer's parameters are those in a part of a model found later
        several = len(models) > 1 or self._searched
        visited: set[int] = set()
        candidates = list[_Candidate]()
        frozen = dict[int, TensorWeakRef]()
        for model in models:
            prefix = f"{type(model).__name__}." if several else ""
            for name, parameter in named_parameters(model, prefix, visited):
                if _is_candidate(parameter, held):
                    held.add(id(parameter))
                    candidates.append(_Candidate(name, parameter))
                elif not parameter.requires_grad and id(parameter) not in held:
                    frozen[id(parameter)] = TensorWeakRef(parameter)
        for model in models:
            for path, module in _listed(model, "", set()):
                for name, parameter in named_parameters(module, f"{path}.", visited):
                    if _is_candidate(parameter, held):
                        held.add(id(parameter))
                        candidates.append(_Candidate(name, parameter, listed=True))
        return [*candidates, *self._apart(window, held)], frozen

    def _apart(self, window: Any, held: set[int]) -> list[_Candidate]:
        """Parameters in no model of the optimizer that have fewer elements than it trains."""
        beside = _alive(self._beside.get(window, {}))
        parameters = [p for each in beside.values() if _is_candidate(p := each(), held)]
        trained = sum(p.numel() for p in window.parameters() if p.requires_grad)
        if not 0 < sum(p.numel() for p in parameters) < trained:
            return []
        names = names_in_models(set(map(id, parameters)))
        return [_Candidate(names.get(id(p)) or _described(p), p, apart=True) for p in parameters]


def _held(windows: Any) -> set[int]:
    """The parameters (by ``id``) of the optimizers that are watched."""
    return {id(p) for each in windows for p in each.parameters()}


def _in_models_of(window: Any) -> set[int]:
    """The parameters (by ``id``) of the known models that contain some of an optimizer, with those
    of modules in containers."""
    visited, models = set[int](), models_of(_held([window]))
    modules = [*models, *(inner for model in models for _, inner in _listed(model, "", set()))]
    return {id(p) for module in modules for _, p in named_parameters(module, "", visited)}


def _leaves(roots: tuple[Any, ...]) -> Iterator[Any]:
    """The tensors to which the gradient goes, the nearest first; the graph is not held."""
    waiting = deque(root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None)
    visited = set(waiting)
    while waiting and len(visited) <= MOST_NODES:
        node = waiting.popleft()
        leaf = None if node.next_functions else getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        for below, _ in node.next_functions:
            if below is not None and below not in visited:
                visited.add(below)
                waiting.append(below)


def _optimizers_alive() -> list[Any]:
    """All optimizers of the process, by their types: no attribute of any other object is read."""
    if not at_least(KEEPS_REFERENCED):
        return []
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if Optimizer in kind.__mro__}
    return [each for each in objects if type(each) in kinds]


def _described(parameter: Any) -> str:
    shape = list(parameter.shape)
    return f"Parameter of shape {shape}" if shape else "Parameter with one value"


def _mark(parameter: Any) -> tuple[int, int]:
    """It changes if a backward adds to the gradient."""
    return id(parameter.grad), parameter.grad._version


def _alive(references: dict[int, TensorWeakRef]) -> dict[int, TensorWeakRef]:
    return {key: reference for key, reference in references.items() if reference() is not None}


def _start_before(parameter: Any, earlier: _Observation) -> int | None:
    """Where its coordinates were; None if it was not there, or got no gradient since."""
    marked = earlier.marked.get(id(parameter))
    if marked is None or marked.reference() is not parameter or marked.mark == _mark(parameter):
        return None
    return marked.start


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
