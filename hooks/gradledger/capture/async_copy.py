"""Reads tensor values later, without ever waiting for a device.

Values on the CPU are read at once. Values on an accelerator that belong to one step travel in one
asynchronous copy into pinned memory (``start_copies``). The background thread reads that copy when
its event has completed. It is the only tensor that the background thread touches: an operation on
any other tensor would run under the modes and subclasses of the training thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from gradledger import guard
from gradledger.capture.isolation import is_plain, local_part

_POLL_SECONDS = 0.001
_END_SECONDS = 1.0  # at the end of the process, which may not wait for a device that hangs


class Deferred:
    """The values of a small tensor, to be read later.

    ``volatile``: the script may write over the tensor before ``start_copies``. On a device it is
    then cloned. Raises TypeError for a tensor that is not plain (fake, meta, wrapper subclass).
    """

    __slots__ = ("_event", "_host", "_values", "dtype", "tensor")

    def __init__(self, tensor: torch.Tensor, volatile: bool = False) -> None:
        local = local_part(tensor)
        if not is_plain(local):
            raise TypeError(f"a {type(local).__name__} on {local.device} cannot be read")
        self.dtype = local.dtype
        self.tensor: torch.Tensor | None = None
        self._values: list[float] | None = None
        self._host: torch.Tensor | None = None
        self._event: Any = None
        if local.is_cpu:
            self._values = flat_values(local)
        else:
            self.tensor = local.detach().clone() if volatile else local.detach()

    @classmethod
    def of(cls, values: list[float]) -> Deferred:
        """Values that have been read already."""
        deferred = cls.__new__(cls)
        deferred.tensor = deferred.dtype = deferred._event = deferred._host = None
        deferred._values = values
        return deferred

    @property
    def has_no_copy(self) -> bool:
        """Whether the values are on a device and no copy to the host was started."""
        return self._values is None and self._host is None

    @property
    def ready(self) -> bool:
        """Whether ``values`` returns without waiting."""
        return self._event is None or bool(self._event.query())

    def values(self) -> list[float]:
        """The values, in order. Waits for the copy: only the background thread may call it, or
        another one if they are ``ready``.

        Raises RuntimeError if no copy was started: the device has no asynchronous copies, or the
        tensor came after ``start_copies``.
        """
        if self._values is None:
            if self._host is None:
                raise RuntimeError("no copy of values on a device was started")
            while self._event is not None and not self._event.query():
                time.sleep(_POLL_SECONDS)
            self._values = self._host.tolist()
        return self._values

    def value(self) -> float:
        """The single value."""
        return self.values()[0]

    def read_from(self, host: torch.Tensor, event: Any) -> None:
        """The values are in ``host`` once ``event`` has completed."""
        self._host, self._event, self.tensor = host, event, None


def joined(parts: Sequence[Deferred | None]) -> Deferred | None:
    """The values of all parts as one; None if there are none, or if they are not on one device."""
    present = [part for part in parts if part is not None]
    on_device = [part.tensor for part in present if part.tensor is not None]
    if not on_device:
        values = [value for part in present for value in part.values()]
        return Deferred.of(values) if present else None
    if len(on_device) < len(present) or len({tensor.device for tensor in on_device}) > 1:
        return None
    return Deferred(torch.cat(on_device))


def flat_values(tensor: torch.Tensor) -> list[float]:
    """The values of a CPU tensor, flat; of a complex one, real and imaginary parts alternate."""
    flat = as_real(tensor)
    values: Any = flat.tolist() if flat.dim() < 2 else flat.reshape(-1).tolist()
    return values if isinstance(values, list) else [float(values)]


def start_copies(pending: list[Deferred]) -> None:
    """Start one asynchronous copy to the host per accelerator, with all values that are on it."""
    on_device: dict[torch.device, list[Deferred]] = {}
    for deferred in dict.fromkeys(pending):  # losses may share a divisor
        if deferred.tensor is not None:
            on_device.setdefault(deferred.tensor.device, []).append(deferred)
    for device, group in on_device.items():
        with guard.fail_open(f"reading values from {device.type}"):  # if it fails: not measured
            _start_copy(device, group)


def values_soon(pending: list[Deferred]) -> list[list[float]] | None:
    """The values of each, at the end of the process; None if a device does not deliver in time."""
    start_copies(pending)
    end = time.monotonic() + _END_SECONDS
    while not all(each.ready for each in pending) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
    if any(each.has_no_copy or not each.ready for each in pending):
        return None
    return [each.values() for each in pending]


def _start_copy(device: torch.device, group: list[Deferred]) -> None:
    tensors = [as_real(item.tensor).reshape(-1) for item in group if item.tensor is not None]
    wide = torch.float32 if device.type == "mps" else torch.float64  # MPS has no float64
    flat = torch.cat([tensor.to(wide) for tensor in tensors])
    host = _on_the_host(flat)
    event = _record_event(device)
    start = 0
    for item, tensor in zip(group, tensors, strict=True):
        item.read_from(host[start : start + tensor.numel()], event)
        start += tensor.numel()


def _on_the_host(flat: torch.Tensor) -> torch.Tensor:
    """Where the values will be."""
    pinned = flat.device.type != "mps"  # MPS shares its memory with the CPU
    host = torch.empty(flat.shape, dtype=flat.dtype, device="cpu", pin_memory=pinned)
    return host.copy_(flat, non_blocking=True)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A complex tensor as a real one whose last dimension holds real and imaginary part."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def _record_event(device: torch.device) -> Any:
    """An event after the copies on the device's current stream."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
