"""Recordings of loops that update their parameters without an optimizer of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from helpers.training import Recording


@contextmanager
def recorded_to_the_end(step_sampler: StepSampler | None = None) -> Iterator[Recording]:
    """Hooks on for the length of a block, which also end as at the end of the process."""
    kept = Recording()
    recorder = Recorder(kept.steps.append, step_sampler)
    recorder.install()
    try:
        yield kept
        recorder.finish()
    finally:
        recorder.uninstall()
