"""Finds frozen matrices of zeros beside layers whose gradient has always been 0.

An adapter is a product of two matrices, one of which starts at 0. If that one is frozen by mistake,
the gradient of the other one is exactly 0 for ever, and nothing raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.layers.parameter_names import models_of, named_parameters, without_wrappers

FIRST_OBSERVED = 10  # steps without a gradient: an adapter starts with one
MOST_NAMED = 64
COORDINATES = 64  # of each matrix
LEVELS = 3  # of modules around a layer in which its neighbours are: PEFT has a module for each name

_Named = tuple[list[str], Any]  # the parts of a name, and the parameter


class OpenFrozenZeros(NamedTuple):
    """The frozen matrices beside some layers, and values of each."""

    names: list[str]
    counts: list[int]
    values: Deferred

    def resolve(self) -> list[str]:
        """The names of those whose values are all 0."""
        values = iter(self.values.values())
        zero = [not any(list(itertools.islice(values, count))) for count in self.counts]
        return [name for name, is_zero in zip(self.names, zero, strict=True) if is_zero]


def frozen_beside(untrained: set[int]) -> OpenFrozenZeros | None:
    """Look at the frozen matrices next to these parameters, by ``id``."""
    named = [
        (name.split("."), parameter)
        for model in models_of(untrained)
        for name, parameter in named_parameters(model, "", set())
    ]
    frozen = [(path, p) for path, p in named if _is_frozen_matrix(p)]
    beside = {
        ".".join(path): p
        for own, parameter in named
        if id(parameter) in untrained
        for path, p in _nearest(own, frozen)
    }
    names = list(beside)[:MOST_NAMED]
    matrices = [beside[name] for name in names]
    if len({p.device for p in matrices}) != 1:
        return None  # none, or their values would have to be copied apart
    values, counts = gradient_probe.copy_each(matrices, COORDINATES)
    if values is None or not all(counts):
        return None
    return OpenFrozenZeros([without_wrappers(name) for name in names], counts, values)


def _nearest(
    own: list[str], frozen: list[tuple[list[str], Any]]
) -> Iterator[tuple[list[str], Any]]:
    """Those in the innermost module around a parameter that has any."""
    for level in range(1, LEVELS + 1):
        module = own[:-level]
        inside = [each for each in frozen if each[0][: len(module)] == module]
        if inside and module:
            yield from inside
            return


def _is_frozen_matrix(parameter: Any) -> bool:
    if parameter.requires_grad or parameter.dim() < 2 or not parameter.numel():
        return False
    local = local_part(parameter)
    return local is parameter and is_plain(local) and parameter.is_floating_point()
