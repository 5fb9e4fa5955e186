"""loop.step_every_microbatch"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules import framework_fixes
from gradledger_monitor.rules.balance.counts import steps_of_one_window
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import element_name
from gradledger_monitor.rules.reduction.common import (
    balance,
    factor,
    intended,
    no_mistake,
    of_declared,
    shows,
)
from gradledger_monitor.rules.rule import OK, Precondition, Rule, Window, finding

FIX = """\
loss.backward()                      # divided for the accumulation, as before
if (i + 1) % K == 0:                 # step once per window, not once per micro-batch
    optimizer.step()
    optimizer.zero_grad()
# if backward stands after the loop over the micro-batches, move it into that loop;
# if nothing should be accumulated, leave out the division"""

NOT_PREPARED = " Accelerate accumulates meanwhile: the optimizer was not prepared."


FIX_OF_OTHER = """\
if (i + 1) % K == 0:                 # all optimizers of this loss, at the end of the window
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()"""


def _unmet(window: Window) -> Outcome | None:
    return no_mistake(window) if window.facts.record.stepped_each is None else None


OFF_OR_BESIDE = Precondition("the balance is off, or another optimizer steps more often", _unmet)


class StepEveryMicrobatch(Rule):
    """The loss is divided for accumulation, but the optimizer steps after every micro-batch.

    **What it sees**

    Windows of one micro-batch with a balance of 1/m, for the same whole number m in every
    window whose balance is wrong. The loss is a cross entropy with one division; or Accelerate
    states at such a step that the window has not ended. Or such windows are divided by the number
    of tokens that several of them in a row have together: three, or twice two. Or another
    optimizer accumulates the same micro-batches, and is right: the loss is normalised for its
    windows.

    **Why it matters**

    Accumulation has no effect: the optimizer takes m steps on noisy gradients instead of one
    step on m micro-batches. With Adam each of them has full size. The loss curve may look
    better for a while.

    **What to do**

    Step, clip, schedule and zero once per m micro-batches. If ``backward`` stands after the loop
    over the micro-batches, so that only the last of them is trained on, move it into that loop. If
    m is another number, such as ``len(loader)``, leave out the division.

    **When it is silent**

    One micro-batch and a balance of 1; a constant multiplier of the loss explains 1/m. Of
    another optimizer's: no loss reaches both, the loop divides the gradients and not the loss, a
    GradScaler unscales them, or several ranks average them.

    **Incidents**

    lucidrains/reformer-pytorch#97, coqui-ai/Trainer#120, huggingface/accelerate#2790,
    lucidrains/x-transformers (train_enwik8_lejepa_style.py)
    """

    points_at = ("step",)
    # of windows before those that show the cause
    inhibits = ("reduction.wrong_denominator", "reduction.balance_off")
    precondition = OFF_OR_BESIDE

    def evaluate(self, window: Window) -> Outcome:
        """K = 1 and B = 1/m, in two windows; or another optimizer has such windows."""
        other = window.facts.record.stepped_each
        if other is not None and shows(window, "fair"):
            return _of_other(window.facts, other) if _is_divided(window) else OK
        if shows(window, "early_steps"):
            return _of_counts(window)
        if not shows(window, "early_step", "unprepared"):
            return OK
        m, unprepared = round(1 / factor(window)), shows(window, "unprepared")
        divided = (
            f"the loss is divided for an accumulation over {m} micro-batches that does not take "
            f"place.{NOT_PREPARED}"
            if unprepared
            else f"the loss is divided as for an accumulation over {m} micro-batches, which does "
            f"not take place. If {m} is another number, such as that of the batches in an epoch "
            "(len(loader)), the division is too much."
        )
        return finding(
            "warning",
            f"The loss is divided by {m}, and the optimizer steps after 1 micro-batch",
            f"The window holds 1 micro-batch, and its balance is 1/{m}{of_declared(window)}: "
            f"{divided}",
            framework_fixes.PREPARED if unprepared else FIX,
            balance=round(balance(window), 6),
            micro_batches=1,
            intended_micro_batches=m,
        )


def _of_counts(window: Window) -> Outcome:
    """The divisors are the token counts of several steps."""
    facts, objective = window.facts, window.balance.objective
    assert objective is not None
    steps = steps_of_one_window(facts, objective, window.of_same_loss)
    assert steps is not None  # it is what the pattern was diagnosed from
    m, elements = steps.micro_batches, counted(round(steps.divisor), element_name(objective))
    return finding(
        "warning",
        f"The optimizer steps after 1 micro-batch instead of {m}",
        f"At each of the steps {steps.first:,} to {steps.last:,}, the loss of 1 micro-batch was "
        f"divided by {elements}, which is what these {m} steps have together: it is divided for an "
        f"accumulation over {m} micro-batches that does not take place. The balance of step "
        f"{facts.step:,} is {significant(balance(window))} instead of "
        f"{significant(intended(window))}.",
        FIX,
        balance=round(balance(window), 6),
        divisor=round(steps.divisor, 4),
        micro_batches=1,
        intended_micro_batches=m,
    )


def _is_divided(window: Window) -> bool:
    """Whether the loss is divided for the window, and not the gradients of this optimizer alone."""
    facts, objective = window.facts, window.balance.objective
    if objective is None or facts.micro_batches == 1 or facts.discarded:
        return False
    return all(abs(term.factor - 1) <= facts.tolerance for term in objective.terms)


def _of_other(facts: StepFacts, other: int) -> Outcome:
    k, fast = facts.micro_batches, facts.run.optimizer_label(other)
    return finding(
        "warning",
        f"{fast} steps after 1 micro-batch instead of {k}",
        f"{facts.optimizer_name} accumulates {k} micro-batches, whose loss is normalised for all "
        f"of them. {fast} steps on each of them alone, so its gradient has 1/{k} of the weight "
        "that one micro-batch needs.",
        FIX_OF_OTHER,
        optimizer=other,
        micro_batches=1,
        intended_micro_batches=k,
    )
