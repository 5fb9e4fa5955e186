"""Keeps the hooks away from a device while a CUDA graph is captured.

What a hook runs on the capturing stream becomes a part of the graph: see ``isolation.capturing``,
with which the hooks of the capturing thread do nothing. In the mode "global", PyTorch's default, a
call on another thread fails the capture, too, if CUDA considers it unsafe
(``cudaThreadExchangeStreamCaptureMode`` of the CUDA runtime API); to query an event is such a call.
The background thread does that, so it waits until the capture has ended.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gradledger.observers.base import Observer

WAIT_SECONDS = 1.0  # for the background thread, which reads values that have arrived


class GraphCaptures(Observer):
    """Holds ``device_calls`` during each capture that calls on other threads could fail."""

    def __init__(self) -> None:
        super().__init__()
        self.device_calls = threading.Lock()
        self._holder: Any = None  # the graph whose capture holds the lock

    def install(self) -> None:
        """Wrap the two methods that every capture by PyTorch calls."""
        if torch.backends.cuda.is_built():
            self.patch(torch.cuda.CUDAGraph, "capture_begin", self._wrap_begin, always=True)
            self.patch(torch.cuda.CUDAGraph, "capture_end", self._wrap_end, always=True)

    def _wrap_begin(self, original: Any) -> Any:
        def capture_begin(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            with self._guard:
                self._begin(graph, *args, **kwargs)
            try:
                return original(graph, *args, **kwargs)
            except BaseException:
                with self._guard:
                    self._end(graph)
                raise

        return capture_begin

    def _wrap_end(self, original: Any) -> Any:
        def capture_end(graph: Any, /, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(graph, *args, **kwargs)
            finally:
                with self._guard:
                    self._end(graph)

        return capture_end

    def _begin(
        self, graph: Any, pool: Any = None, capture_error_mode: str = "global", *_: Any, **__: Any
    ) -> None:
        if capture_error_mode == "global" and self.device_calls.acquire(timeout=WAIT_SECONDS):
            self._holder = graph

    def _end(self, graph: Any) -> None:
        if self._holder is graph:
            self._holder = None
            self.device_calls.release()
