"""ddp.duplicate_data"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, names
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    counted,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

FIX = """\
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=B, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)"""


class DuplicateData(Rule):
    """Ranks train on the same data.

    **What it sees**

    Two ranks have the same fingerprints of loss targets, micro-batch by micro-batch, in three
    windows in a row. Fingerprints that do not vary are not compared.

    **Why it matters**

    The gradient is that of one rank's batch: the other ranks add cost but no data, and an epoch
    processes each sample once per rank.

    **What to do**

    Use a ``DistributedSampler``. If you draw data yourself, seed the generator by rank.

    **When it is silent**

    Targets that do not vary (the diagonal of a contrastive loss); no data-parallel wrapper,
    such as with tensor-parallel or context-parallel ranks, which share their data by design.

    **Incidents**

    PatrickHua/SimSiam#16, k2-fsa/icefall#1616
    """

    secondary = True

    windows = Parameter(3, "windows in a row with equal fingerprints")

    precondition = SEVERAL_RANKS

    state = declare(_windows=deque[dict[int, tuple[float, ...]]])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._windows: deque[dict[int, tuple[float, ...]]] = deque(maxlen=self.windows)

    def evaluate(self, window: Window) -> Outcome:
        """Equal fingerprints on two ranks, in several windows in a row."""
        facts = window.facts
        if facts.record.wrapper is None:
            return not_applicable("no data-parallel wrapper is in use")
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        prints = {rank: _prints(record) for rank, record in facts.records.items()}
        if not all(prints.values()):
            return not_measured("no fingerprint of the loss targets")
        self._windows.append(prints)
        if len(self._windows) < self.windows:
            return not_measured(f"needs {counted(self.windows, 'window')}")
        first, *others = sorted(prints)
        twins = [rank for rank in others if self._same(first, rank)]
        if not twins or not self._varied():
            return OK
        return finding(
            "error",
            "Ranks train on the same data",
            f"{names(twins)} of {facts.run.world_size} had the same fingerprints of loss targets "
            f"as rank {first} in the last {counted(self.windows, 'window')}, so the same "
            "data count more than once.",
            FIX,
            ranks=[first, *twins][:64],
            fingerprints=list(prints[first])[:16],
        )

    def _same(self, first: int, second: int) -> bool:
        return all(prints.get(first) == prints.get(second) for prints in self._windows)

    def _varied(self) -> bool:
        """Whether most micro-batches of the first rank differ from each other."""
        values = [p for prints in self._windows for p in prints[min(prints)]]
        return len(set(values)) * 2 > len(values)


def _prints(record: StepRecord) -> tuple[float, ...]:
    prints = [number(m.fingerprint) for m in record.micro_batches if not m.constant_target]
    return tuple(p for p in prints if p is not None) if None not in prints else ()
