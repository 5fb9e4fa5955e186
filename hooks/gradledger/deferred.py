"""Numbers that live on a device: copied without waiting, read one or more steps later.

On an accelerator, everything that one step needs travels in one asynchronous copy into pinned
memory (``ship``), and is read by the background thread once the copy's event has completed.
On the CPU the tensor itself is kept. Either way the training thread never waits.
"""

from __future__ import annotations

import time
from typing import Any

import torch

_POLL_SECONDS = 0.001


class Deferred:
    """A small tensor whose values are wanted later.

    ``volatile`` says that somebody may write over it before then: on the CPU it is read at once,
    on a device it is copied.
    """

    __slots__ = ("_event", "_host", "_read", "dtype", "tensor")

    def __init__(self, tensor: torch.Tensor, volatile: bool = False) -> None:
        local = tensor if type(tensor) is torch.Tensor else getattr(tensor, "_local_tensor", tensor)
        self.dtype = local.dtype
        self.tensor: torch.Tensor | None = None
        self._read: Any = None
        self._host: torch.Tensor | None = None
        self._event: Any = None
        if not volatile:
            self.tensor = local.detach() if local.requires_grad else local
        elif local.is_cpu:
            self._read = local.tolist()
        else:
            self.tensor = local.detach().clone()

    @classmethod
    def of(cls, numbers: list[float]) -> Deferred:
        """Numbers that are known already."""
        known = cls.__new__(cls)
        known.tensor = known.dtype = known._event = known._host = None
        known._read = numbers
        return known

    @property
    def ready(self) -> bool:
        """Whether the values can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def values(self) -> list[float]:
        """The values, in order; waits for the copy, so only for the background thread."""
        if self._read is not None:
            return _numbers(self._read)
        while self._event is not None and not self._event.query():
            time.sleep(_POLL_SECONDS)
        source = self.tensor if self._host is None else self._host
        assert source is not None
        self._read = source.reshape(-1).tolist()
        return _numbers(self._read)

    def value(self) -> float:
        """The single value."""
        return self.values()[0]

    def arrive(self, host: torch.Tensor, event: Any) -> None:
        """The value now comes from ``host`` once ``event`` has completed."""
        self._host, self._event, self.tensor = host, event, None


def _numbers(read: Any) -> list[float]:
    return read if isinstance(read, list) else [float(read)]


def ship(wanted: list[Deferred]) -> None:
    """Start one asynchronous copy to the host for all values that are on an accelerator."""
    on_device: dict[torch.device, list[Deferred]] = {}
    for item in wanted:
        if item.tensor is not None and item.tensor.device.type == "cuda":
            on_device.setdefault(item.tensor.device, []).append(item)
    for device, items in on_device.items():
        _ship_from(device, items)


def _ship_from(device: torch.device, items: list[Deferred]) -> None:
    tensors = [item.tensor.reshape(-1).double() for item in items if item.tensor is not None]
    flat = torch.cat(tensors)
    host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
    host.copy_(flat, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    start = 0
    for item, tensor in zip(items, tensors, strict=True):
        item.arrive(host[start : start + tensor.numel()], event)
        start += tensor.numel()
