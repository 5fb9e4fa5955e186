"""An update that no optimizer of PyTorch made, as the training thread observed it."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger.capture.async_copy import Deferred


@dataclass
class OpenUpdate:
    """What an update did: samples of the parameters before and after it, and of the gradients."""

    parameters_before: Deferred | None
    parameters_after: Deferred | None
    gradient: Deferred | None  # as the update found it; None if that is not known
    untouched: bool  # the gradients themselves are still there
    precision: float  # of the parameters' dtype, relative
