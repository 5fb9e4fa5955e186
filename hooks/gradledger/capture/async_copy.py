"""Numbers that are needed later, read without ever waiting for a device.

On the CPU they are read at once. On an accelerator, everything that one step needs travels in one
asynchronous copy into pinned memory (``ship``), and is read by the background thread when the
copy's event has completed. That copy is the only tensor that the background thread ever touches:
an operation on any other would run under the modes and subclasses of the training thread.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from gradledger import guard
from gradledger.capture.isolation import is_plain, local_part

_POLL_SECONDS = 0.001


class Deferred:
    """The values of a small tensor.

    ``volatile`` says that somebody may write over it before ``ship``: on a device it is copied.
    Raises TypeError for a tensor without numbers of its own (fake, meta, a wrapper subclass).
    """

    __slots__ = ("_event", "_host", "_read", "dtype", "tensor")

    def __init__(self, tensor: torch.Tensor, volatile: bool = False) -> None:
        local = local_part(tensor)
        if not is_plain(local):
            raise TypeError(f"a {type(local).__name__} on {local.device} cannot be read")
        self.dtype = local.dtype
        self.tensor: torch.Tensor | None = None
        self._read: list[float] | None = None
        self._host: torch.Tensor | None = None
        self._event: Any = None
        if local.is_cpu:
            self._read = numbers(local)
        else:
            self.tensor = local.detach().clone() if volatile else local.detach()

    @classmethod
    def of(cls, numbers: list[float]) -> Deferred:
        """Numbers that are known already."""
        known = cls.__new__(cls)
        known.tensor = known.dtype = known._event = known._host = None
        known._read = numbers
        return known

    @property
    def unread(self) -> bool:
        """Whether the values are on a device, and no copy of them was started."""
        return self._read is None and self._host is None

    @property
    def ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def values(self) -> list[float]:
        """The values, in order; waits for the copy, so only for the background thread.

        Raises RuntimeError where no copy was started: the device has no asynchronous copies, or
        they came after ``ship``.
        """
        if self._read is None:
            if self._host is None:
                raise RuntimeError("no copy of values on a device was started")
            while self._event is not None and not self._event.query():
                time.sleep(_POLL_SECONDS)
            self._read = self._host.tolist()
        return self._read

    def value(self) -> float:
        """The single value."""
        return self.values()[0]

    def arrive(self, host: torch.Tensor, event: Any) -> None:
        """The value now comes from ``host`` once ``event`` has completed."""
        self._host, self._event, self.tensor = host, event, None


def numbers(tensor: torch.Tensor) -> list[float]:
    """The numbers of a CPU tensor, flat; a complex one gives real and imaginary parts in turn."""
    flat = as_real(tensor)
    read: Any = flat.tolist() if flat.dim() < 2 else flat.reshape(-1).tolist()
    return read if isinstance(read, list) else [float(read)]


def ship(wanted: list[Deferred]) -> None:
    """Start one asynchronous copy to the host for all values that are on an accelerator."""
    on_device: dict[torch.device, list[Deferred]] = {}
    for item in wanted:
        if item.tensor is not None:
            on_device.setdefault(item.tensor.device, []).append(item)
    for device, items in on_device.items():
        with guard.fail_open(f"reading values from {device.type}"):  # then they are not measured
            _ship_from(device, items)


def _ship_from(device: torch.device, items: list[Deferred]) -> None:
    tensors = [as_real(item.tensor).reshape(-1) for item in items if item.tensor is not None]
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    flat = torch.cat([tensor.to(wide) for tensor in tensors])
    pinned = device.type != "mps"  # which shares its memory with the CPU
    host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)
    host.copy_(flat, non_blocking=True)
    event = _record_event(device)
    start = 0
    for item, tensor in zip(items, tensors, strict=True):
        item.arrive(host[start : start + tensor.numel()], event)
        start += tensor.numel()


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of real and imaginary parts, in a last dimension of two."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def _record_event(device: torch.device) -> Any:
    """An event behind the copies on the device's current stream."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event
    event = torch.Event(device)  # other accelerators: torch 2.6 and later
    event.record(torch.accelerator.current_stream(device))
    return event
