"""All that a post-mortem says of a run, put together; how it is written down comes after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradledger_monitor.common import clock
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import SEVERITIES, EvaluationResult, Finding
from gradledger_monitor.model.step_facts import IMPORTED_FROM
from gradledger_monitor.reports.events import Event, timeline
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import checkpoints, event_queries, queries
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun
from gradledger_monitor.store.steps import curves
from gradledger_monitor.store.steps.curves import Curves, Span

AROUND = 60  # steps drawn before and after the onset
WHOLE_POINTS = 400


@dataclass(frozen=True)
class Cost:
    """What was spent since the onset, the first bad step included."""

    steps: int
    tokens: float
    seconds: float
    gpu_hours: float | None
    note: str  # what the hours are of, or why they are not known


@dataclass(frozen=True)
class Losses:
    """What the script reported at a step, and what one large batch would have reported."""

    step: int
    reported: float | None
    token_weighted: float | None


@dataclass(frozen=True)
class Incident:
    """A run, looked back on."""

    run: RunRow
    made: float
    evaluation: EvaluationResult
    onset: Finding | None  # what showed first, of what nothing else explains
    last_good: schema.CheckpointRecord | None
    checkpoints: list[schema.CheckpointRecord]
    cost: Cost | None
    losses: list[Losses]
    events: list[Event]
    left_out: int  # events further away
    whole: Curves
    around: Curves
    evaluations: dict[str, Curves]

    @property
    def optimizer(self) -> int:
        """The one that the charts are of."""
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
        """Rules that could not look, with the reason."""
        said = ((rule, text.partition(": ")) for rule, text in self.evaluation.coverage.items())
        return [(rule, why) for rule, (status, _, why) in said if status == "not_measured"]

    @property
    def restart(self) -> str:
        """From where to go on, in one sentence."""
        if self.onset is None:
            return "Nothing was found after which a run would have to be taken back."
        if self.last_good is not None:
            where = f" ({self.last_good.path})" if self.last_good.path else ""
            return (
                f"The last checkpoint before it was saved after step {self.last_good.step}{where}."
            )
        if not self.checkpoints:
            return "No checkpoint was reported: ledger.checkpoint(path) tells of one."
        first = self.checkpoints[0].step
        return f"No checkpoint is good: the first was saved after step {first}."


def build_incident(store: Store, run: str, now: float | None = None) -> Incident:
    """Put a run's post-mortem together. Raises ``UnknownRun``."""
    row = queries.get_run(store, run)
    if row is None:
        raise UnknownRun(run)
    now = clock.now() if now is None else now
    evaluation = queries.evaluation(store, run, now)
    onset = _onset(evaluation)
    saved = checkpoints.of_run(store, run)
    optimizer, step = (onset.optimizer, onset.first_step) if onset else (0, None)
    events = timeline(store, row, evaluation, saved, optimizer, step)
    whole, around = _drawn(store, run, optimizer, step)
    return Incident(
        run=row,
        made=now,
        evaluation=evaluation,
        onset=onset,
        last_good=_last_good(saved, onset),
        checkpoints=saved,
        cost=_cost(store, row, onset),
        losses=_losses(around, step),
        events=events.shown,
        left_out=events.left_out,
        whole=whole,
        around=around,
        evaluations=curves.eval_curves(store, run, points=WHOLE_POINTS),
    )


def _onset(evaluation: EvaluationResult) -> Finding | None:
    """The first bad step: of errors where there are some, else of warnings."""
    causes = [f for f in evaluation.findings if f.inhibited_by is None and f.severity != "info"]
    worst = max((SEVERITIES.index(f.severity) for f in causes), default=0)
    gravest = [f for f in causes if SEVERITIES.index(f.severity) == worst]
    return min(gravest, key=lambda f: f.first_step, default=None)


def _last_good(
    saved: Sequence[schema.CheckpointRecord], onset: Finding | None
) -> schema.CheckpointRecord | None:
    if onset is None:
        return saved[-1] if saved else None
    before = [each for each in saved if each.step < onset.first_step]
    return before[-1] if before else None


def _cost(store: Store, run: RunRow, onset: Finding | None) -> Cost | None:
    if onset is None:
        return None
    spent = event_queries.spent_since(store, run.id, onset.optimizer, onset.first_step)
    if spent is None:
        return None
    usual = (spent.ended - spent.begun) / (spent.steps - 1) if spent.steps > 1 else 0.0
    seconds = spent.ended - spent.begun + usual  # the first bad step took its time too
    hours, note = _hours(run, seconds)
    return Cost(spent.steps, spent.tokens, seconds, hours, note)


def _hours(run: RunRow, seconds: float) -> tuple[float | None, str]:
    device = run.environment.get("device")
    if device is None:
        who = run.environment.get(IMPORTED_FROM, "the record")
        return None, f"{who} does not say what it ran on"
    if device == "cpu":
        return None, "it ran on CPUs"
    ranks = f"{run.world_size} x " if run.world_size > 1 else ""
    return seconds * run.world_size / 3600, f"{ranks}{device}"


def _losses(around: Curves, step: int | None) -> list[Losses]:
    """At the onset and at the end of what is drawn around it."""
    if not around["step"]:
        return []
    at = {s: n for n, s in enumerate(around["step"])}
    places = dict.fromkeys([at[step], len(at) - 1] if step in at else [len(at) - 1])
    told = [
        Losses(around["step"][n], around["loss_reported"][n], around["loss_token"][n])
        for n in places
    ]
    return [one for one in told if one.reported is not None or one.token_weighted is not None]


def _drawn(store: Store, run: str, optimizer: int, step: int | None) -> tuple[Curves, Curves]:
    whole = curves.curves(store, run, Span(optimizer), points=WHOLE_POINTS)
    last = whole["step"][-1] if whole["step"] else 0
    middle = last if step is None else step
    span = Span(optimizer, max(middle - AROUND, 0), middle + AROUND)
    return whole, curves.curves(store, run, span, points=2 * AROUND + 1)
