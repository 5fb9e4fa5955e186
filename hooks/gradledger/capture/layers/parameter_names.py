"""Finds the names of an optimizer's parameters: once, and only where they are not given.

In this order:

1. the names that the optimizer was created with (``named_parameters()``);
2. those in a model that is known: passed to ``gradledger.watch``, or the one whose ``parameters()``
   an optimizer was created with;
3. those in any module that is alive: a search through the objects of the process (40 ms for 350,000
   objects), which finds the models of all optimizers. Before PyTorch 2.10, there is no search: a
   tensor that another thread frees meanwhile is then lost to Python, with a warning.

The variables of the calls in progress would lead to the model, too. But reading them keeps their
values alive until the call ends, in Python 3.12 and older.

Modules are traversed without calling their methods, which a script may have overridden. Order is
that of registration. Wrappers (DDP, FSDP, ``torch.compile``, checkpointing) leave no trace in a
name.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

from torch.nn import Module

from gradledger.torch_version import at_least

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
LONGEST = 200  # characters of a name
# pytorch/pytorch#167564: tensors that only C++ holds may be referenced from Python at any time
KEEPS_REFERENCED = (2, 10)

_GENERATORS = {Module.parameters.__code__, Module.named_parameters.__code__}

_references: list[weakref.ref[Any]] = []  # models


def add_model(model: Any) -> None:
    """Remember a model that the script passed."""
    if isinstance(model, Module):
        _references[:] = [*map(weakref.ref, _models()), weakref.ref(model)]


def add_model_of(parameters: Any) -> None:
    """Remember the model, if these are its ``parameters()``, from which nothing was taken yet."""
    if type(parameters) is GeneratorType and parameters.gi_code in _GENERATORS:
        frame = parameters.gi_frame
        add_model(None if frame is None else frame.f_locals.get("self"))


def search_models() -> bool:
    """Search for the outermost of all modules that are alive, where PyTorch allows it."""
    if not at_least(KEEPS_REFERENCED):
        return False
    _references[:] = map(weakref.ref, _outermost(_modules_alive()))
    return True


def known_models() -> list[Any]:
    """The outermost of the models that are known."""
    return _outermost(_models())


def known_parameters() -> set[int]:
    """The parameters (by ``id``) of the models that are known."""
    visited: set[int] = set()
    return {id(p) for model in _models() for _, p in named_parameters(model, "", visited)}


def names_of(groups: list[dict[str, Any]], search: bool) -> dict[int, str]:
    """Names by ``id`` of the parameters in these groups, in the order of the model.

    ``search``: through all modules that are alive, if need be. Parameters without a known name
    come last, under their number in the optimizer, from 0.
    """
    parameters = [p for group in groups for p in group["params"]]
    ids = {id(p) for p in parameters}
    names = _of_optimizer(groups)
    if len(names) < len(ids):
        names = _of_modules(_models(), ids)
    if search and len(names) < len(ids) and search_models():
        names = _of_modules(_models(), ids) or names
    for number, parameter in enumerate(parameters):
        names.setdefault(id(parameter), f"parameter {number}")
    return {key: name[-LONGEST:] for key, name in names.items()}


def names_in_models(ids: set[int]) -> dict[int, str]:
    """Names by ``id`` of parameters, after the class of the outermost known model that has them."""
    visited: set[int] = set()
    return {
        id(parameter): name
        for model in known_models()
        for name, parameter in named_parameters(model, f"{type(model).__name__}.", visited)
        if id(parameter) in ids
    }


def models_of(ids: set[int]) -> list[Any]:
    """The outermost of the known models that contain one of these parameters, by ``id``."""
    return [
        model
        for model in known_models()
        if any(id(parameter) in ids for _, parameter in named_parameters(model, "", set()))
    ]


def _models() -> list[Any]:
    return [model for reference in _references if (model := reference()) is not None]


def _of_optimizer(groups: list[dict[str, Any]]) -> dict[int, str]:
    """The names that PyTorch keeps if the optimizer got pairs of names and parameters."""
    return {
        id(parameter): without_wrappers(name)
        for group in groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }


def _outermost(modules: list[Any]) -> list[Any]:
    inner = {id(child) for module in modules for child in children(module).values()}
    return [module for module in modules if id(module) not in inner]


def _of_modules(modules: list[Any], ids: set[int]) -> dict[int, str]:
    """The names in the outermost of these modules, by parameter."""
    named = [
        (root, path, parameter)
        for root in _outermost(modules)
        for path, parameter in named_parameters(root, "", set())
        if id(parameter) in ids
    ]
    roots = list(dict.fromkeys(id(root) for root, _, _ in named))
    uses = Counter(path for _, path, _ in named)
    names: dict[int, str] = {}
    for root, path, parameter in named:
        unique = uses[path] == 1 or len(roots) == 1
        prefix = "" if unique else f"{type(root).__name__}[{roots.index(id(root))}]."
        names.setdefault(id(parameter), prefix + path)
    return names


def named_parameters(module: Any, path: str, visited: set[int]) -> Iterator[tuple[str, Any]]:
    """The parameters of a module and those inside it, by name; ``visited`` modules are left out."""
    if id(module) in visited:
        return
    visited.add(id(module))
    for name, parameter in (module.__dict__.get("_parameters") or {}).items():
        if parameter is not None:
            yield without_wrappers(path + name), parameter
    for name, child in children(module).items():
        yield from named_parameters(child, f"{path}{name}.", visited)


def children(module: Any) -> dict[str, Any]:
    """The modules that a module has registered, by name."""
    children = module.__dict__.get("_modules") or {}
    return {name: child for name, child in children.items() if child is not None}


def without_wrappers(name: str) -> str:
    """The name in the model itself."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _modules_alive() -> list[Any]:
    """All modules of the process, by their types: no attribute of any other object is read."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if Module in kind.__mro__}
    return [each for each in objects if type(each) in kinds]
