"""scheduler.step_every_microbatch"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
if (i + 1) % K == 0:
    optimizer.step()
    scheduler.step()             # once per optimizer step
    optimizer.zero_grad()"""


class StepEveryMicrobatch(Rule):
    """The LR scheduler is stepped on every micro-batch.

    **What it sees**

    A call of the scheduler between all micro-batches of a window of K > 1.

    **Why it matters**

    A schedule planned in optimizer steps ends after 1/K of the run: warm-up is K times too
    short, and the learning rate reaches its end while most of the data is still to come.

    **What to do**

    Step the scheduler once per optimizer step, or plan it in micro-batches.

    **When it is silent**

    K = 1; one call per window, by any number of steps.

    **Incidents**

    huggingface/accelerate#963, h2oai/h2o-llmstudio#663, karpathy/nanochat#775
    """

    points_at = ("schedule",)

    def evaluate(self, window: Window) -> Outcome:
        """A schedule call in every gap between the window's backwards."""
        record = window.facts.record
        if "schedule" in record.missing:
            return not_measured(record.missing["schedule"])
        calls = window.facts.calls("schedule")
        if not calls and not window.past:
            return not_applicable("no LR scheduler")
        if not calls or window.facts.micro_batches < 2:
            return OK
        positions = {event.after for event in calls}
        between = range(window.facts.applied_from + 1, len(record.micro_batches))
        if not positions.issuperset(between):
            return OK
        k = window.facts.micro_batches
        return finding(
            "warning",
            "The LR scheduler steps on every micro-batch",
            f"scheduler.step() ran between all {k} micro-batches of one optimizer step. A schedule "
            f"that is planned in optimizer steps then advances {k} times too fast.",
            FIX,
            micro_batches=k,
            schedule_after=sorted(positions)[:32],
            lr=number(record.lr),
        )
