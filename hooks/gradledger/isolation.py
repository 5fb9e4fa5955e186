"""Keeps the hooks' own tensor operations apart from the script's modes and tensor subclasses.

A script may run under a ``TorchFunctionMode`` (``torch.set_default_device`` is one), under a
``TorchDispatchMode`` (FLOP counters, ``FakeTensorMode``), or with tensor subclasses that log or
change what is done to them. None of them may see an operation of ours.

Tensors without numbers (fake, meta, functional) and wrapper subclasses are left alone: see
``is_plain``. A DTensor is read through its local shard.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.nn import Parameter

_ORDINARY_TYPES = (torch.Tensor, Parameter)
_ABSTRACT = ("FakeTensor", "FunctionalTensor")
_DTENSOR_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")


def _looked_up(name: str) -> Any:
    """A private function of ``torch._C``; None where this version of PyTorch lacks it."""
    return getattr(torch._C, name, None)


_dispatch_modes: Callable[[], int] | None = _looked_up("_len_torch_dispatch_stack")
_no_dispatch: Any = _looked_up("_DisableTorchDispatch")
_is_functional: Any = getattr(torch, "_is_functional_tensor", None)


class _NoModes:
    """Without torch functions and without dispatch modes."""

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._function = torch._C.DisableTorchFunction()
        self._function.__enter__()
        self._dispatch = _no_dispatch()
        self._dispatch.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._dispatch.__exit__(kind, error, trace)
        self._function.__exit__(kind, error, trace)


def isolated() -> Any:
    """A context in which no mode or subclass of the script sees a tensor operation.

    Dispatch modes are rare, and leaving them costs more than all else, so it is done on demand.
    """
    if _dispatch_modes is not None and _no_dispatch is not None and _dispatch_modes():
        return _NoModes()
    return torch._C.DisableTorchFunction()


def is_plain(tensor: Any) -> bool:
    """Whether the tensor holds numbers that can be read without calling code of the script.

    False for fake, meta and functional tensors, and for subclasses with a ``__torch_dispatch__``
    of their own (DTensor too: ask for its local shard).
    """
    kind = type(tensor)
    if kind not in _ORDINARY_TYPES and _dispatches(kind):
        return False
    return not tensor.is_meta and not _traced(tensor)


def is_abstract(tensor: Any) -> bool:
    """Whether the tensor has a shape and no numbers at all: meta, fake or functional."""
    return bool(tensor.is_meta) or type(tensor).__name__ in _ABSTRACT or _traced(tensor)


def _traced(tensor: Any) -> bool:
    return _is_functional is not None and bool(_is_functional(tensor))


def _dispatches(kind: type) -> bool:
    ours: Any = getattr(kind, "__torch_dispatch__", None)
    return ours is not getattr(torch.Tensor, "__torch_dispatch__", None)


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor. Where none was ever imported, there can be none."""
    if type(tensor) in _ORDINARY_TYPES:
        return False
    for name in _DTENSOR_MODULES:
        kind = getattr(sys.modules.get(name), "DTensor", None)
        if kind is not None and isinstance(tensor, kind):
            return True
    return False


def local_part(tensor: Any) -> Any:
    """A DTensor's shard on this rank; any other tensor itself."""
    if not is_dtensor(tensor):
        return tensor
    shard = getattr(tensor, "_local_tensor", None)
    return tensor.detach().to_local() if shard is None else shard
