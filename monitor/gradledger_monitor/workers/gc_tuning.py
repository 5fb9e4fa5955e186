"""How often Python looks for garbage in a process that decodes and judges records."""

from __future__ import annotations

import gc

THRESHOLDS = (100_000, 50, 100)


def collect_seldom() -> None:
    """Leave what was imported alone, and look seldom for cycles: records have none.

    With Python's own thresholds, looking takes more time than decoding; `bench/service_ingest.py`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
