"""What the evaluation of one step leaves to store: metrics, or why there are none (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger_monitor.evaluation.quarantine import failure_reason
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.step_facts import StepFacts

OptimizerStep = tuple[int, int]  # optimizer, step


@dataclass(frozen=True)
class QuarantinedStep:
    """A step that could not be evaluated."""

    optimizer: int
    step: int
    time: float
    ranks: int
    reason: str


@dataclass
class EvaluatedStep:
    """One step as it is shown: its metrics, and the number of ranks they come from."""

    optimizer: int
    step: int
    time: float
    ranks: int
    metrics: dict[str, float | None]
    failure: str | None = None  # why it could not be evaluated, or its metrics not be computed

    @classmethod
    def of(cls, result: StepFacts | QuarantinedStep) -> EvaluatedStep:
        """The step behind a result of ``RunState.add_step``."""
        if isinstance(result, QuarantinedStep):
            return cls(
                optimizer=result.optimizer,
                step=result.step,
                time=result.time,
                ranks=result.ranks,
                metrics={},
                failure=result.reason,
            )
        metrics, failure = _metrics(result)
        return cls(
            optimizer=result.optimizer,
            step=result.step,
            time=result.time,
            ranks=len(result.records),
            metrics=metrics,
            failure=failure,
        )


def _metrics(facts: StepFacts) -> tuple[dict[str, float | None], str | None]:
    """The metrics of a step, or why they cannot be computed. Rules do not depend on them."""
    try:
        return chart_metrics(facts), None
    except Exception as error:
        return {}, failure_reason(facts.step, error)
