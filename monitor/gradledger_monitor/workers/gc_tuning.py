"""Settings of Python's garbage collector for processes that decode and evaluate records."""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 50, 100)


def collect_seldom() -> None:
    """Exclude imported objects from collections, and collect seldom: records have no cycles.

    With Python's own thresholds, collections take more time than decoding: see
    `bench/service_ingest.py`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
