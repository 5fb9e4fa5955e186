"""data.same_order_each_epoch"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

MOST = 2**20  # fingerprints in memory

FIX = """\
for epoch in range(epochs):
    sampler.set_epoch(epoch)         # DistributedSampler shuffles with seed + epoch
    for batch in loader: ..."""


class SameOrderEachEpoch(Rule):
    """Every epoch repeats the order of the previous one.

    **What it sees**

    The sequence of micro-batches of an epoch, by the fingerprints of their targets, repeats
    exactly, although the sampler of the ``DataLoader`` shuffles.

    **Why it matters**

    The gradient of each step is right, but the noise of shuffling is lost: the same samples are
    combined in every epoch.

    **What to do**

    Call ``sampler.set_epoch(epoch)``, and do not reseed the generator of the sampler at each
    epoch.

    **When it is silent**

    The ``DataLoader`` has no shuffling sampler; fewer than 4 micro-batches repeat (overfitting
    one batch on purpose); targets that do not vary.

    **Incidents**

    pytorch/pytorch#31771, NVIDIA/tacotron2#241, huggingface/nanoVLM#124
    """

    secondary = True

    least = Parameter(4, "smallest number of micro-batches that counts as an epoch")

    state = declare(_places=dict[float, int], _count=int, _distance=int, _matches=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._places: dict[float, int] = {}  # fingerprint -> its last position
        self._count = 0
        self._distance = 0
        self._matches = 0

    def evaluate(self, window: Window) -> Outcome:
        """The last P micro-batches have the fingerprints of the P before them."""
        record = window.facts.record
        if record.sampler != "random":
            return not_applicable("no shuffling DataLoader sampler")
        prints = [number(m.fingerprint) for m in record.micro_batches]
        if any(p is None for p in prints):
            return not_measured("no fingerprint of the loss targets")
        repeated = max([self._push(p) for p in prints if p is not None], default=0)
        if repeated < self.least:
            return OK
        return finding(
            "warning",
            "Every epoch repeats the same order",
            f"The last {repeated:,} micro-batches have the same targets, in the same order, as the "
            f"{repeated:,} before them, although the sampler shuffles.",
            FIX,
            period=repeated,
        )

    def _push(self, fingerprint: float) -> int:
        """Add a fingerprint; return the period once a whole one has repeated, else 0."""
        before = self._places.get(fingerprint)
        distance = 0 if before is None else self._count - before
        self._matches = self._matches + 1 if distance and distance == self._distance else 1
        self._distance = distance
        if len(self._places) > MOST:
            self._places.clear()
        self._places[fingerprint] = self._count
        self._count += 1
        return distance if distance and self._matches >= distance else 0
