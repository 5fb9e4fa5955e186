"""How surprising it is that fingerprints of loss targets repeat.

Batches of few labels often have equal fingerprints although their data differ. What repeats is
evidence only if chance would hardly repeat it: its information, in bits, is that of each
fingerprint by how often it was seen before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.rules.state import declare

MOST = 2**20  # fingerprints in memory
LEAST = 8  # fingerprints: two periods of 4


class Fingerprints:
    """Counts fingerprints."""

    state: ClassVar[Mapping[str, Any]] = declare(counts=dict[float, int], total=int)

    def __init__(self) -> None:
        self.counts: dict[float, int] = {}
        self.total = 0

    def add(self, fingerprint: float) -> float:
        """Count a fingerprint; returns its information in bits."""
        if len(self.counts) > MOST:
            self.counts.clear()
            self.total = 0
        before = self.counts.get(fingerprint, 0)
        self.counts[fingerprint] = before + 1
        self.total += 1
        return math.log2(self.total / max(1, before))

    @property
    def needed(self) -> float:
        """Bits that a repetition needs.

        Among n fingerprints, a sequence can repeat at about n places and n distances. With n**3 for
        each, the probability that chance repeats one stays near 6% over any number of them.
        """
        return 1 + 3 * math.log2(max(self.total, LEAST))
