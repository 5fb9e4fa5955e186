"""eval.diverging"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, HistoryRule, finding, not_measured

RISES = 3  # evaluations in a row that are worse than the one before
LEAST = 0.03  # share of the best evaluation by which the last one is worse, at least

FIX = """\
# restore the checkpoint of the best evaluation; then check for
# repeated data, a train / eval mismatch, a learning rate that is too high"""


class Diverging(HistoryRule):
    """Validation loss rises while training loss falls.

    **What it sees**

    A loss or perplexity from ``log_eval`` (or the Trainer) that is higher at each of three
    evaluations than at the one before, and at the last one at least 3% worse than the best,
    while the mean training loss over the 10 steps before each evaluation falls.

    **Why it matters**

    The run overfits, or its training objective differs from the metric. Wrong token weights can
    have this symptom, too: check the other nodes of the decision tree first.

    **What to do**

    Keep the best checkpoint. Compare the weighting of the training loss with that of the
    evaluation.

    **When it is silent**

    Fewer than four evaluations; a plateau that fluctuates; metrics other than a loss or
    perplexity.

    **Incidents**

    huggingface/transformers#34191 (a symptom), karpathy/build-nanogpt#30 (a symptom)
    """

    points_at = ()
    kind = "T"
    works_on_metric_logs = True

    def evaluate_history(self, history: RunHistory) -> Iterator[tuple[int, Outcome]]:
        """Each evaluation of each loss, against the three before it."""
        losses = {n: v for n, v in history.evaluations.items() if _is_loss(n)}
        if not losses:
            yield 0, not_measured("no validation loss was logged with log_eval")
        elif max(map(len, losses.values())) <= RISES:
            yield 0, not_measured(f"needs {RISES + 1} evaluations of a loss")
        order = sorted(history.losses)
        training = {
            step: [history.losses[s] for s in history.steps_before(step, order)]
            for step in {step for values in losses.values() for step in values}
        }
        for name, values in sorted(losses.items()):
            steps = sorted(values)
            for end in range(RISES, len(steps)):
                yield steps[end], _compare(name, steps[end - RISES : end + 1], values, training)


def _is_loss(name: str) -> bool:
    return "loss" in name.lower() or "perplexity" in name.lower()


def _compare(
    name: str, steps: list[int], values: dict[int, float], training: dict[int, list[float]]
) -> Outcome:
    losses = [total(training[step]) / len(training[step]) for step in steps if training[step]]
    if len(losses) < len(steps):
        return not_measured("no training loss before an evaluation")
    best = min(value for step, value in values.items() if step <= steps[-1])
    rises = all(values[b] > values[a] for a, b in pairwise(steps))
    rises = rises and values[steps[-1]] - best >= LEAST * abs(best)
    falls = all(b < a for a, b in pairwise(losses))
    if not (rises and falls):
        return OK
    first, last = steps[0], steps[-1]
    return finding(
        "warning",
        "Validation diverges from training",
        f"{name} rose from {significant(values[first])} (step {first}) to "
        f"{significant(values[last])} (step {last}) over {RISES} evaluations, while the training "
        f"loss fell from {significant(losses[0])} to {significant(losses[-1])}.",
        FIX,
        metric=name,
        steps=steps,
        validation=[values[s] for s in steps],
        training=losses,
    )
