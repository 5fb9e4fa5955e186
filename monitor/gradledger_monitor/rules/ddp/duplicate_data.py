"""ddp.duplicate_data"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from gradledger_monitor.ingest.schema import StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, combines_nothing, names
from gradledger_monitor.rules.ddp.replicas import Replicas
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.fingerprints import Fingerprints
from gradledger_monitor.rules.framework_fixes import ONE_TRAINING
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.objective_names import by_hand, of_tokens
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    about_steps,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

LOSS_BITS = 20.0  # of the losses of a window, in float32

FIX = """\
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=B, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)"""

OF_ALL_RANKS = (
    "the loss is one of features that the ranks gather: its targets may be equal on all ranks, "
    "although their data are not"
)
NO_WRAPPER = not_applicable("no data-parallel wrapper is in use")


class DuplicateData(Rule):
    """Ranks train on the same data.

    **What it sees**

    Two ranks have the same fingerprints of loss targets, micro-batch by micro-batch, in three
    windows in a row, or in as many more as chance makes unlikely: batches of few labels are often
    equal. Equal losses count, too. Fingerprints that do not vary are not compared. The ranks are
    those of a data-parallel wrapper; or all their parameters are equal, and the loop communicates
    at least once for each parameter between the last backward and the step. If nothing combines
    the gradients of ranks with equal parameters, each of them computes the same training, which is
    information. So it is if targets are equal, none of them is known to be of tokens, and the
    losses differ: the inputs may be different views of the same samples on purpose, as in repeated
    augmentation. It is a warning for a cross entropy by hand, whose targets may be tokens.

    **Why it matters**

    The gradient is that of one rank's batch: the other ranks add cost but no data, and an epoch
    processes each sample once per rank.

    **What to do**

    Use a ``DistributedSampler``. If you draw data yourself, seed the generator by rank.

    **When it is silent**

    Targets that do not vary (the diagonal of a contrastive loss), or that the ranks gather; ranks
    that are not known to be data-parallel, such as tensor-parallel or context-parallel ones, which
    share their data by design.

    **Incidents**

    PatrickHua/SimSiam#16, k2-fsa/icefall#1616
    """

    points_at = ("batches", "backward")
    by_window = False
    secondary = True

    windows = Parameter(3, "windows in a row with equal fingerprints")

    precondition = SEVERAL_RANKS

    state = declare(
        _replicas=Replicas,
        _windows=deque[dict[int, tuple[float, ...]]],
        _fingerprints=Fingerprints,
        _surprise=dict[int, float],
        _losses=list[float],
        _since_other_losses=dict[int, int],
        _steps=deque[int],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._replicas = Replicas()  # of ranks without a wrapper
        self._windows: deque[dict[int, tuple[float, ...]]] = deque(maxlen=self.windows)
        self._fingerprints = Fingerprints()
        self._surprise: dict[int, float] = {}  # by rank: bits of what equals the first rank's
        self._losses: list[float] = []  # of the first rank, in the last window
        self._since_other_losses: dict[int, int] = {}  # windows, by rank: other than the first's
        self._steps: deque[int] = deque(maxlen=self.windows)  # of ``_windows``

    def evaluate(self, window: Window) -> Outcome:
        """Equal fingerprints on two ranks, in several windows in a row."""
        apart = combines_nothing(window.facts)
        outcome = self._evaluate(window.facts, apart)
        return NO_WRAPPER if apart and outcome.status != "finding" else outcome

    def _evaluate(self, facts: StepFacts, apart: bool) -> Outcome:
        """``apart``: nothing combines the gradients of the ranks."""
        if facts.record.wrapper is None and not self._may_be_replicas(facts, apart):
            return NO_WRAPPER
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        if any("gathered" in m.missing for r in facts.records.values() for m in r.micro_batches):
            return not_measured(OF_ALL_RANKS)
        prints = {rank: _prints(record) for rank, record in facts.records.items()}
        if not all(prints.values()):
            return not_measured("no fingerprint of the loss targets")
        self._windows.append(prints)
        self._steps.append(facts.step)
        self._add_surprise(facts.records, prints)
        self._compare_losses(facts)
        if len(self._windows) < self.windows:
            return not_measured(f"needs {counted(self.windows, 'window')}")
        first, *others = sorted(prints)
        twins = [rank for rank in others if self._same(first, rank)]
        if not twins or not self._varied():
            return OK
        if apart:
            return about_steps(_each_alone([first, *twins]), self._steps)
        of_texts = any(map(of_tokens, facts.record.micro_batches))  # equal ones are equal data
        if not of_texts and all(self._since_other_losses[rank] < self.windows for rank in twins):
            severity: Severity = (
                "warning" if any(map(by_hand, facts.record.micro_batches)) else "info"
            )
            of_inputs = _of_other_inputs(
                [first, *twins], list(prints[first]), self.windows, severity
            )
            return about_steps(of_inputs, self._steps)
        report = finding(
            "error",
            "Ranks train on the same data",
            f"{names(twins)} of {facts.run.world_size} had the same fingerprints of loss targets "
            f"as rank {first} in the last {counted(self.windows, 'window')}, so the same "
            "data count more than once.",
            FIX,
            ranks=[first, *twins][:64],
            fingerprints=list(prints[first])[:16],
        )
        return about_steps(report, self._steps)

    def _may_be_replicas(self, facts: StepFacts, apart: bool) -> bool:
        """Whether the loop may have combined each gradient of replicas, all after backward; or
        none, and yet all ranks have the same parameters.

        Equal gradients do not show that. Tensor-parallel ranks hold different parameters, and
        communicate inside backward.
        """
        self._replicas.add(facts)
        parameters = self._replicas.total
        if not parameters or self._replicas.apart:
            return False
        return apart or all(
            (record.collectives_after or 0) >= parameters
            and not any(m.collectives for m in record.micro_batches)
            for record in facts.records.values()
        )

    def _add_surprise(
        self, records: Mapping[int, StepRecord], prints: Mapping[int, tuple[float, ...]]
    ) -> None:
        """Equal losses, unless they are always the same, are the strongest sign of equal data."""
        first, *others = sorted(prints)
        bits = sum(map(self._fingerprints.add, prints[first]))
        losses = {rank: _losses(records[rank]) for rank in prints}
        vary = bool(losses[first]) and losses[first] != self._losses
        self._losses = losses[first]
        for rank in others:
            same = vary and losses[rank] == losses[first]
            earlier = self._surprise.get(rank, 0.0)
            equal = prints[rank] == prints[first]
            self._surprise[rank] = earlier + bits + LOSS_BITS * same if equal else 0.0

    def _compare_losses(self, facts: StepFacts) -> None:
        """Count the windows since the losses of a rank differed by more than rounding errors."""
        first, *others = sorted(facts.records)
        own, half = _losses(facts.records[first]), facts.tolerance > tolerances.WEIGHT
        bound = facts.tolerance if half else tolerances.NORM
        for rank in others:
            pairs = zip(own, _losses(facts.records[rank]), strict=False)
            differ = any(abs(a - b) > bound * max(abs(a), abs(b)) for a, b in pairs)
            before = self._since_other_losses.get(rank, self.windows)
            self._since_other_losses[rank] = 0 if differ else before + 1

    def _same(self, first: int, second: int) -> bool:
        if self._surprise.get(second, 0.0) < self._fingerprints.needed:
            return False
        return all(prints.get(first) == prints.get(second) for prints in self._windows)

    def _varied(self) -> bool:
        """Whether most micro-batches of the first rank differ from each other."""
        values = [p for prints in self._windows for p in prints[min(prints)]]
        return len(set(values)) * 2 > len(values)


def _each_alone(ranks: Sequence[int]) -> Outcome:
    """Ranks that each compute the same training, such as processes that know of no other."""
    return finding(
        "info",
        "The ranks compute the same training",
        f"{names(ranks)} have the same parameters and the same data, and no wrapper and no "
        "collective combines their gradients: each of them trains the same model, and those after "
        "the first add cost alone.",
        ONE_TRAINING,
        ranks=list(ranks)[:64],
    )


def _of_other_inputs(
    ranks: Sequence[int], prints: list[float], windows: int, severity: Severity
) -> Outcome:
    """Views of the same samples, which may be meant to differ, or a dropout."""
    first, *twins = ranks
    return finding(
        severity,
        "Ranks train on the same targets, with different losses",
        f"{names(twins)} had the same fingerprints of loss targets as rank {first} in the last "
        f"{counted(windows, 'window')}, but other losses. If the inputs are different views "
        "of the same samples on purpose, as in repeated augmentation, this is intended. If the "
        "inputs are equal, and only a dropout differs, the same data count more than once.",
        FIX,
        ranks=list(ranks)[:64],
        fingerprints=prints[:16],
    )


def _prints(record: StepRecord) -> tuple[float, ...]:
    prints = [number(m.fingerprint) for m in record.micro_batches if not m.constant_target]
    return tuple(p for p in prints if p is not None) if None not in prints else ()


def _losses(record: StepRecord) -> list[float]:
    losses = [number(m.loss) for m in record.micro_batches]
    return [loss for loss in losses if loss is not None and math.isfinite(loss)]
