"""Whether a model that trains is in evaluation mode: ``model.eval()`` without ``model.train()``.

Read are modules of PyTorch that compute something else in evaluation: dropout with a probability
above 0, and batch norm with running statistics. They are searched for in the known models that
contain parameters of the optimizer. Their mode is that of a backward, not of the step: a loop
may validate between the two.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.nn.modules import batchnorm, dropout

from gradledger.capture.layers.parameter_names import children, models_of

MOST_MODULES = 64  # of an optimizer that are read
_DROPOUT = getattr(dropout, "_DropoutNd", None)
_BATCH_NORM = getattr(batchnorm, "_BatchNorm", None)


class Modes(NamedTuple):
    """The modes of the modules in one backward."""

    training: int  # modules in training mode
    evaluating: list[str]  # PyTorch's classes of those in evaluation mode, with their whole model


class ModedModules:
    """The modules of one optimizer's models that have two modes."""

    def __init__(self, parameters: list[Any]) -> None:
        self._modules: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []  # with the whole model
        models = models_of(set(map(id, parameters)))
        self._models = [weakref.ref(model) for model in models]
        for model in models:
            left = MOST_MODULES - len(self._modules)
            modules = itertools.islice(_with_two_modes(model, set()), left)
            self._modules += [(weakref.ref(module), weakref.ref(model)) for module in modules]

    def read(self) -> Modes:
        """Their modes now. A part alone in evaluation mode is frozen on purpose: it trains.

        If that part is one of several models, of which another trains, no mode is known.
        """
        training, evaluating = 0, set[str]()
        for reference, of_model in self._modules:
            module, model = reference(), of_model()
            if module is None or model is None:
                continue
            if _is_training(module) or _is_training(model):
                training += 1
            else:
                evaluating.add(_class_of_pytorch(module))
        models = [model for reference in self._models if (model := reference()) is not None]
        if not training and any(_is_training(model) for model in models):
            evaluating.clear()
        return Modes(training, sorted(evaluating))


def _is_training(module: Any) -> bool:
    return bool(module.__dict__.get("training", True))


def _class_of_pytorch(module: Any) -> str:
    """The name of its class, or of the one that a class of the script is derived from."""
    bases = type(module).__mro__
    names = [base.__name__ for base in bases if base.__module__.startswith("torch.nn.")]
    return names[0].lstrip("_")


def _with_two_modes(module: Any, visited: set[int]) -> Iterator[Any]:
    if id(module) in visited:
        return
    visited.add(id(module))
    bases, values = type(module).__mro__, module.__dict__
    drops = _DROPOUT in bases and bool(values.get("p"))
    if drops or (_BATCH_NORM in bases and values.get("track_running_stats")):
        yield module
    for child in children(module).values():
        yield from _with_two_modes(child, visited)
