"""The content of a post-mortem, collected from the store; ``render`` formats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradledger_monitor.common import clock
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import SEVERITIES, EvaluationResult, Finding
from gradledger_monitor.model.layers.combined import Layer
from gradledger_monitor.model.step_facts import IMPORTED_FROM
from gradledger_monitor.reports.events import TimelineEvent, timeline
from gradledger_monitor.reports.layers import layers_by_step
from gradledger_monitor.reports.objectives import ObjectiveSummary, recent_objectives
from gradledger_monitor.reports.topology import RunTopology, run_topology
from gradledger_monitor.rules import circumstances
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import checkpoints, event_queries, queries
from gradledger_monitor.store.runs.attempts import MOST_SHOWN, Attempt, attempts
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Curves, Span

STEPS_AROUND = 60  # steps drawn before and after the onset
MOST_POINTS = 400  # of a chart of the whole run


@dataclass(frozen=True)
class Cost:
    """The resources spent since the onset, including the first bad step."""

    steps: int
    tokens: float
    seconds: float
    gpu_hours: float | None
    note: str  # the devices, or why the GPU-hours are unknown


@dataclass(frozen=True)
class Losses:
    """The reported loss at a step, and the loss that one large batch would have reported."""

    step: int
    reported: float | None
    token_weighted: float | None


@dataclass(frozen=True)
class Incident:
    """Everything that a post-mortem shows."""

    run: RunRow
    created: float
    evaluation: EvaluationResult
    onset: Finding | None  # the first of the gravest findings that nothing else explains
    last_good: schema.CheckpointRecord | None
    checkpoints: list[schema.CheckpointRecord]
    cost: Cost | None
    losses: list[Losses]
    objectives: list[ObjectiveSummary]
    topology: RunTopology | None
    events: list[TimelineEvent]
    omitted_events: int
    whole: Curves
    around: Curves
    evaluations: dict[str, Curves]
    layers: list[tuple[int, list[Layer]]]
    attempts: list[Attempt]

    @property
    def absent(self) -> dict[int, int | None]:
        """The ranks without a record of the last step, with their last one; 0 for none."""
        return self.topology.absent if self.topology else {}

    @property
    def optimizer(self) -> int:
        """The optimizer of the charts."""
        return self.onset.optimizer if self.onset else 0

    @property
    def causes(self) -> list[Finding]:
        """Findings that nothing else explains, the gravest first."""
        return [f for f in self.evaluation.findings if f.inhibited_by is None]

    @property
    def symptoms(self) -> list[Finding]:
        """Findings that another one explains."""
        return [f for f in self.evaluation.findings if f.inhibited_by is not None]

    @property
    def unmeasured(self) -> list[tuple[str, str]]:
        """The rules that were not measured, with the reason."""
        coverage = ((rule, text.partition(": ")) for rule, text in self.evaluation.coverage.items())
        return [
            (rule, reason) for rule, (status, _, reason) in coverage if status == "not_measured"
        ]

    @property
    def changed(self) -> str:
        """What changed where the trouble began; "" if no finding is about a symptom.

        The first bad step comes first, then the symptom that began first. If nothing changed at the
        first bad step, a symptom that led to it may show more: a spike before the loss was NaN.
        """
        onset = [] if self.onset is None else [self.onset]
        by_step = sorted(self.evaluation.findings, key=lambda finding: finding.first_step)
        symptoms = [f for f in by_step if f.severity != "info" and f.evidence.get("changed")]
        changes = [f.evidence["changed"] for f in onset if f.evidence.get("changed")]
        changes += [f.evidence["changed"] for f in symptoms if not changes or _led_to(f, onset[0])]
        stated = filter(circumstances.sentence_of, changes)
        return circumstances.report_of(next(stated, changes[0] if changes else {}))

    @property
    def restart(self) -> str:
        """The checkpoint to restart from, in one sentence."""
        if self.onset is None:
            return "No restart is needed: there are no errors or warnings."
        if self.last_good is not None:
            path = f" ({self.last_good.path})" if self.last_good.path else ""
            return f"Restart from the checkpoint saved after step {self.last_good.step}{path}."
        if not self.checkpoints:
            return "No checkpoint was reported. Report them with ledger.checkpoint(path)."
        first = self.checkpoints[0].step
        return f"No checkpoint is good: the first one was saved after step {first}."


def _led_to(symptom: Finding, onset: Finding) -> bool:
    """Whether a symptom began before the first bad step, and went on up to it."""
    until = symptom.last_step + circumstances.BEFORE
    return symptom.first_step < onset.first_step <= until


def build_incident(store: Store, run: str, now: float | None = None) -> Incident:
    """Collect the content of the post-mortem of a run. Raises ``UnknownRun``."""
    row = queries.get_run(store, run)
    if row is None:
        raise UnknownRun(run)
    now = clock.now() if now is None else now
    evaluation = queries.evaluation(store, run, now)
    onset = _onset(evaluation)
    saved = checkpoints.of_run(store, run)
    optimizer, step = (onset.optimizer, onset.first_step) if onset else (0, None)
    events = timeline(store, row, evaluation, saved, optimizer, step)
    whole, around = _curves(store, run, optimizer, step)
    return Incident(
        run=row,
        created=now,
        evaluation=evaluation,
        onset=onset,
        last_good=_last_good(saved, onset),
        checkpoints=saved,
        cost=_cost(store, row, onset),
        losses=_losses(around, step),
        objectives=recent_objectives(store, run, evaluation.findings),
        topology=run_topology(store, run, optimizer),
        events=events.shown,
        omitted_events=events.omitted,
        whole=whole,
        around=around,
        evaluations=curves.eval_curves(store, run, points=MOST_POINTS),
        layers=layers_by_step(store, run, optimizer),
        attempts=attempts(store, run, MOST_SHOWN),
    )


def _onset(evaluation: EvaluationResult) -> Finding | None:
    """The earliest error; without errors, the earliest warning."""
    causes = [f for f in evaluation.findings if f.inhibited_by is None and f.severity != "info"]
    worst = max((SEVERITIES.index(f.severity) for f in causes), default=0)
    gravest = [f for f in causes if SEVERITIES.index(f.severity) == worst]
    return min(gravest, key=lambda f: f.first_step, default=None)


def _last_good(
    saved: Sequence[schema.CheckpointRecord], onset: Finding | None
) -> schema.CheckpointRecord | None:
    if onset is None:
        return saved[-1] if saved else None
    before = [checkpoint for checkpoint in saved if checkpoint.step < onset.first_step]
    return before[-1] if before else None


def _cost(store: Store, run: RunRow, onset: Finding | None) -> Cost | None:
    if onset is None:
        return None
    spent = event_queries.spent_since(store, run.id, onset.optimizer, onset.first_step)
    if spent is None:
        return None
    per_step = (spent.ended - spent.started) / (spent.steps - 1) if spent.steps > 1 else 0.0
    seconds = spent.ended - spent.started + per_step  # the first bad step took time, too
    hours, note = _gpu_hours(run, seconds)
    return Cost(spent.steps, spent.tokens, seconds, hours, note)


def _gpu_hours(run: RunRow, seconds: float) -> tuple[float | None, str]:
    device = run.environment.get("device")
    if device is None:
        source = run.environment.get(IMPORTED_FROM, "the record")
        return None, f"{source} does not name the device"
    if device == "cpu":
        return None, "the run used CPUs"
    ranks = f"{run.world_size} x " if run.world_size > 1 else ""
    return seconds * run.world_size / 3600, f"{ranks}{device}"


def _losses(around: Curves, step: int | None) -> list[Losses]:
    """The losses at the onset and at the end of the steps around it."""
    steps = around["step"]
    if not steps:
        return []
    rows = {number: row for row, number in enumerate(steps)}
    shown = [rows[step], len(steps) - 1] if step in rows else [len(steps) - 1]
    losses = [
        Losses(steps[row], around["loss_reported"][row], around["loss_token"][row])
        for row in dict.fromkeys(shown)
    ]
    return [x for x in losses if x.reported is not None or x.token_weighted is not None]


def _curves(store: Store, run: str, optimizer: int, step: int | None) -> tuple[Curves, Curves]:
    """The curves of the whole run, and of the steps around the onset."""
    whole = curves.curves(store, run, Span(optimizer), points=MOST_POINTS)
    last = whole["step"][-1] if whole["step"] else 0
    middle = last if step is None else step
    span = Span(optimizer, max(middle - STEPS_AROUND, 0), middle + STEPS_AROUND)
    return whole, curves.curves(store, run, span, points=2 * STEPS_AROUND + 1)
