"""Scripts and tests with every tensor on another device: ``GRADLEDGER_TEST_DEVICE=cuda``.

They are written for a CPU. What they create without naming a device is created on that device, and
what they name ``"cpu"`` in a GradScaler, an autocast or a mesh is of that device too.

``GRADLEDGER_TEST_DEVICE=late`` needs no other device: the hooks take tensors of the CPU for ones of
a device, so they read no value at once, and all values of a step when it has ended.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gradledger

DEVICE = os.environ.get("GRADLEDGER_TEST_DEVICE", "cpu")
HOOKS = os.path.join(os.path.dirname(gradledger.__file__), "")


def occupy() -> None:
    """Put what this process creates from now on on the device."""
    if DEVICE == "late":
        arrive_late(setattr)
    if DEVICE in ("cpu", "late"):
        return
    import torch.distributed.device_mesh  # noqa: PLC0415 - the stage imports torch by itself

    class Generator(torch.Generator):
        def __new__(cls, device: Any = None) -> Generator:
            where: Any = device or torch.get_default_device()
            return super().__new__(cls, where)  # type: ignore[call-arg]

    create_there()
    torch.Generator = Generator  # type: ignore[misc]
    for kind in (torch.amp.GradScaler, torch.autocast):
        kind.__init__ = _elsewhere(kind.__init__, 1)  # type: ignore[method-assign]
    meshes = torch.distributed.device_mesh
    meshes.init_device_mesh = _elsewhere(meshes.init_device_mesh, 0)
    setattr(torch.distributed, "init_device_mesh", meshes.init_device_mesh)  # noqa: B010 - mypy


def create_there() -> None:
    """Make the device the default of this thread."""
    if DEVICE not in ("cpu", "late"):
        import torch  # noqa: PLC0415

        torch.set_default_device(DEVICE)


def arrive_late(replace: Callable[[Any, str, Any], object]) -> None:
    """Let the hooks take tensors of the CPU for ones of a device; ``replace`` is ``setattr``."""
    import torch  # noqa: PLC0415

    from gradledger.capture import async_copy  # noqa: PLC0415

    is_cpu: Any = torch.Tensor.is_cpu

    def shown(tensor: torch.Tensor) -> bool:
        of_hooks = HOOKS in sys._getframe(1).f_code.co_filename
        return bool(is_cpu.__get__(tensor)) and (not of_hooks or _is_a_number(tensor))

    replace(torch.Tensor, "is_cpu", property(shown))
    replace(async_copy, "_on_the_host", lambda flat: flat.clone())
    replace(async_copy, "_record_event", lambda device: None)


def _is_a_number(tensor: Any) -> bool:
    """Whether a number of Python was wrapped: it is on the CPU whatever it is multiplied with."""
    import torch  # noqa: PLC0415

    least = {torch.float64: torch.float32, torch.int64: torch.int32}.get(tensor.dtype)
    if tensor.dim() or least is None:
        return False
    return torch.result_type(torch.zeros((), dtype=least), tensor) == least


def _elsewhere(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """The function with the device in place of the argument that names one."""

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        named = {k: v for k, v in named.items() if k not in ("device", "device_type")}
        return function(*arguments[:place], DEVICE, *arguments[place + 1 :], **named)

    return called


@contextmanager
def no_waits(fault: Callable[[BaseException], None]) -> Iterator[None]:
    """Report each place of the hooks at which the calling thread waits for a CUDA device."""
    if DEVICE != "cuda":
        yield
        return
    import torch  # noqa: PLC0415

    thread, shown = threading.get_ident(), warnings.showwarning

    def show(
        message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
    ) -> None:
        if "synchronizing CUDA operation" not in str(message):
            shown(message, category, filename, lineno, file, line)
        elif threading.get_ident() == thread and _is_of_the_hooks(sys._getframe(1)):
            stack = "".join(traceback.format_stack(sys._getframe(1), 6))
            fault(RuntimeError(f"the hooks wait for the device:\n{stack}"))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


PASSES_ON = ("warnings.py", *(os.path.join("torch", n) for n in ("utils/_device.py", "_tensor.py")))


def _is_of_the_hooks(frame: FrameType | None) -> bool:
    """Whether the hooks themselves called what waits, and not a function of PyTorch."""
    while frame is not None and frame.f_code.co_filename.endswith(PASSES_ON):
        frame = frame.f_back
    return frame is not None and HOOKS in frame.f_code.co_filename
