"""Isolates the hooks' tensor operations from the script's modes, subclasses and compilers.

A script may run under a ``TorchFunctionMode`` (``torch.set_default_device`` is one), under a
``TorchDispatchMode`` (FLOP counters, ``FakeTensorMode``), inside a compiled function, or with
tensor subclasses that log or change operations. None of them may see an operation of the hooks,
and Dynamo must not compile the hooks as a part of the script.

Tensors without values (fake, meta, functional) and wrapper subclasses are not read: see
``is_plain``. A DTensor is read through its local shard.
"""

from __future__ import annotations

import numbers
import sys
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.nn import Parameter

F = TypeVar("F", bound=Callable[..., Any])

_ORDINARY_TYPES = (torch.Tensor, Parameter)
_ABSTRACT = ("FakeTensor", "FunctionalTensor")


def _private(name: str) -> Any:
    """A private function of ``torch._C``, or None if this version of PyTorch does not have it."""
    return getattr(torch._C, name, None)


_dispatch_modes: Callable[[], int] | None = _private("_len_torch_dispatch_stack")
_no_dispatch: Any = _private("_DisableTorchDispatch")
_is_functional: Any = getattr(torch, "_is_functional_tensor", None)
_dynamo: Any = getattr(_private("_dynamo"), "eval_frame", None)
_functorch_level: Any = getattr(_private("_functorch"), "maybe_current_level", None)
_set_compiler: Any = getattr(_dynamo, "set_eval_frame", None)
# torch.utils.weak.TensorWeakRef calls this when it returns its tensor.
_fix_weakref: Any = getattr(torch.Tensor, "_fix_weakref", None)


def never_compile(function: F) -> F:
    """Make Dynamo skip a function of the hooks when compiled code calls it.

    Otherwise Dynamo compiles it like a function of the script, in which
    ``torch.compiler.is_compiling()`` is true. Dynamo still traces a function that it inlines.
    Everything that a hook runs outside ``isolated`` needs this mark.
    """
    code = getattr(function, "__code__", None)
    if code is not None and hasattr(_dynamo, "set_code_exec_strategy"):
        action = _dynamo._FrameAction
        strategy = _dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT)
        _dynamo.set_code_exec_strategy(code, strategy)
    elif code is not None and hasattr(_dynamo, "skip_code"):  # until PyTorch 2.7
        _dynamo.skip_code(code)
    return function


def skip_in_stacklevel(function: F) -> F:
    """Make ``warnings.warn(stacklevel=...)`` skip the frames of a wrapper of the hooks.

    Otherwise a warning shows the wrapper instead of the script's line, and warning filters match
    the wrapper's module. Python skips frames of its import system, which it recognises by file
    name (``is_internal_frame`` in Python/_warnings.c).
    """
    code = function.__code__
    name = f"{code.co_filename} [like importlib._bootstrap]"
    function.__code__ = code.replace(co_filename=name)
    return function


@never_compile
def _compiler() -> Any:
    """The callback with which Dynamo compiles this thread's frames; None outside compiled code.

    Dynamo's own getter is not used: that of PyTorch 2.6 returns a reference that it does not own.
    Some thousand calls would free None, one call the callback.
    """
    if _set_compiler is None:
        return None
    callback = _set_compiler(None)
    if callback is not None:
        _set_compiler(callback)
    return callback


class _OutsideModes:
    """Disables torch functions, dispatch modes and Dynamo."""

    __slots__ = ("_compiler", "_dispatch", "_function")

    @never_compile
    def __enter__(self) -> None:
        self._function = torch._C.DisableTorchFunction()
        self._function.__enter__()
        self._dispatch = None if _no_dispatch is None else _no_dispatch()
        if self._dispatch is not None:
            self._dispatch.__enter__()
        self._compiler = None if _set_compiler is None else _set_compiler(None)

    @never_compile
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._compiler is not None:
            _set_compiler(self._compiler)
        if self._dispatch is not None:
            self._dispatch.__exit__(kind, error, trace)
        self._function.__exit__(kind, error, trace)


@never_compile
def isolated() -> Any:
    """A context in which no mode, subclass or compiler of the script sees a tensor operation.

    Dispatch modes and compiled callers are rare, and leaving them costs more than everything else
    here. So it happens only if there is one.
    """
    if (_dispatch_modes is not None and _dispatch_modes()) or _compiler() is not None:
        return _OutsideModes()
    return torch._C.DisableTorchFunction()


def in_functorch() -> bool:
    """Whether a transformation of ``torch.func`` runs on this thread."""
    return _functorch_level is not None and _functorch_level() is not None


@never_compile
def capturing() -> bool:
    """Whether this thread records a CUDA graph: operations do not run, the graph repeats them.

    Before CUDA is in use, PyTorch's function raises on a machine without a driver.
    """
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    """The tensors that the script has not dropped."""
    tensors = [tensor for tensor in (each() for each in references) if tensor is not None]
    if _fix_weakref is not None:
        for tensor in tensors:
            _fix_weakref(tensor)
    return tensors


def is_plain(tensor: Any) -> bool:
    """Whether the tensor holds values that can be read without calling code of the script.

    False for fake, meta and functional tensors, and for subclasses that define
    ``__torch_dispatch__``. A DTensor is such a subclass: pass its ``local_part``.
    """
    kind = type(tensor)
    if kind not in _ORDINARY_TYPES and _overrides_dispatch(kind):
        return False
    return not tensor.is_meta and not _is_traced(tensor)


def is_real_number(value: Any) -> bool:
    """Whether the value is a number, or a 0-dim tensor whose number can be read."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (int, float, numbers.Real))  # NumPy's are registered
    return not (value.dim() or value.is_complex()) and is_plain(value)


def number_at_once(value: Any) -> float | None:
    """The real number; None if there is none, or if reading it would wait for a device."""
    if not is_real_number(value):
        return None
    if not isinstance(value, torch.Tensor):
        return float(value)
    return float(value.item()) if value.is_cpu else None


def is_abstract(tensor: Any) -> bool:
    """Whether the tensor has a shape and no values: meta, fake or functional."""
    return bool(tensor.is_meta) or type(tensor).__name__ in _ABSTRACT or _is_traced(tensor)


def _is_traced(tensor: Any) -> bool:
    return _is_functional is not None and bool(_is_functional(tensor))


def _overrides_dispatch(kind: type) -> bool:
    method: Any = getattr(kind, "__torch_dispatch__", None)
    return method is not getattr(torch.Tensor, "__torch_dispatch__", None)


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor. If no module of DTensor is imported, there is none."""
    if type(tensor) in _ORDINARY_TYPES:
        return False
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: Any) -> Any:
    """The shard of a DTensor on this rank; any other tensor unchanged."""
    if not is_dtensor(tensor):
        return tensor
    shard = getattr(tensor, "_local_tensor", None)
    return tensor.detach().to_local() if shard is None else shard


def version_of(tensor: Any) -> int:
    """A number that changes with each write; a DTensor and its local part have one each."""
    version: int = tensor._version
    part = local_part(tensor)
    return version if part is tensor else version + int(part._version)


def has_readable_grad(parameter: Any) -> bool:
    """PyTorch warns if ``.grad`` of a tensor that is no leaf is read."""
    return bool(parameter.is_leaf) and is_plain(local_part(parameter))
