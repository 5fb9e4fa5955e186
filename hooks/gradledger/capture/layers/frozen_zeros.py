"""Finds frozen matrices of zeros beside layers whose gradient has always been 0.

An adapter is a product of two matrices, one of which starts at 0. If that one is frozen by mistake,
the gradient of the other one is exactly 0 for ever, and nothing raises.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.isolation import is_plain, local_part
from gradledger.capture.layers.parameter_names import (
    LONGEST,
    models_of,
    named_parameters,
    without_wrappers,
)

FIRST_OBSERVED = 10  # steps without a gradient: an adapter starts with one
MOST_READ = 2**26  # elements of all matrices
LARGEST = 2**23  # elements of one: a factor of an adapter is smaller than the layer
READ = (torch.float32, torch.bfloat16, torch.float16, torch.float64)  # float8 has no norm
LEVELS = 3  # of modules around a layer in which its neighbours are: PEFT has a module for each name


class OpenFrozenZeros(NamedTuple):
    """The frozen matrices beside some parameters, and whether any value of each is not 0."""

    beside: dict[int, list[tuple[str, int]]]  # name and index, by position of the parameter
    any_value: Deferred  # by index

    def resolve(self) -> dict[int, str]:
        """The first one beside each parameter whose values are all 0."""
        values = self.any_value.values()
        zeros = {
            position: [name for name, index in matrices if not values[index]]
            for position, matrices in self.beside.items()
        }
        return {position: names[0] for position, names in zeros.items() if names}


def frozen_beside(positions: Mapping[int, int]) -> OpenFrozenZeros | None:
    """Look at the frozen matrices next to these parameters: a position by ``id``."""
    matrices: list[Any] = []
    read = 0
    beside: dict[int, list[tuple[str, int]]] = {}
    for model in models_of(set(positions)):
        for position, factors in _factors(model, positions):
            read += sum(p.numel() for _, p in factors)
            if read <= MOST_READ:
                names = [without_wrappers(name)[-LONGEST:] for name, _ in factors]
                beside[position] = [(n, i) for i, n in enumerate(names, len(matrices))]
                matrices += [p for _, p in factors]
    if len({p.device for p in matrices}) != 1:
        return None  # none, or their values would have to be copied apart
    with torch.no_grad():
        norms = torch._foreach_norm(matrices, math.inf)
        any_value = Deferred(torch.stack([norm != 0 for norm in norms]))
    return OpenFrozenZeros(beside, any_value)


def _factors(
    model: Any, positions: Mapping[int, int]
) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    """The frozen matrices in the innermost module around each parameter that has any."""
    named = list(named_parameters(model, "", set()))
    inside: dict[str, list[tuple[str, Any]]] = defaultdict(list)  # by name of the module
    for name, parameter in named:
        if _is_frozen_matrix(parameter):
            for module in _around(name):
                inside[module].append((name, parameter))
    for name, parameter in named:
        if id(parameter) in positions:
            around = next((m for m in _around(name)[:LEVELS] if m in inside), "")
            frozen = [each for each in inside[around] if _may_be_multiplied(parameter, each[1])]
            yield positions[id(parameter)], frozen


def _around(name: str) -> list[str]:
    """The modules around a parameter, the innermost first."""
    path = name.split(".")
    return [".".join(path[:end]) for end in range(len(path) - 1, 0, -1)]


def _may_be_multiplied(one: Any, other: Any) -> bool:
    """Whether the shapes fit a product. Those of two adapters at one layer are equal instead."""
    if one.dim() < 2 or one.shape == other.shape:
        return False
    return bool(one.shape[0] == other.shape[1] or one.shape[1] == other.shape[0])


def _is_frozen_matrix(parameter: Any) -> bool:
    if parameter.requires_grad or parameter.dim() < 2 or not 0 < parameter.numel() <= LARGEST:
        return False
    local = local_part(parameter)
    plain = local is parameter and is_plain(local) and local.layout is torch.strided
    return plain and parameter.dtype in READ
