"""reduction.partial_window"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.balance.divisors import BY_ACCELERATE, DIVIDED_BY
from gradledger_monitor.rules.balance.patterns import wrong_windows
from gradledger_monitor.rules.gradient_scale_effects import (
    constant_factor_effect,
    intermittent_factor_effect,
)
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    micro_batches,
    of_constant,
    of_declared,
    shows,
)
from gradledger_monitor.rules.reduction.fixes import (
    PLAIN_LOOPS,
    WINDOW_LENGTH,
    factor_fix,
    of_plain_loop,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = WINDOW_LENGTH["plain"]

# the batches at the end of an epoch are those that the next one begins with
FIX_LONGER = """\
# for batch i of an epoch: also step at its end, so that none is left for the next one
left = len(loader) - i // K * K                 # batches from this window on; of an unknown length:
(loss / min(K, left)).backward()                # zero the gradients before each epoch instead
if (i + 1) % K == 0 or i + 1 == len(loader):
    optimizer.step()
    optimizer.zero_grad()"""

FIX_BEFORE = """\
# count the micro-batches from 1, so that the first window is a full one:
if (i + 1) % K == 0:
    optimizer.step()
    optimizer.zero_grad()"""

COUNT_FROM_ONE = """\
# Count the micro-batches from 1, so that the first window is a full one."""

FIX_COUNTED = """\
# accumulate() counts a micro-batch each time it is entered.
# enter it once for each micro-batch, with all models:
for x, y in loader:
    with accelerator.accumulate(model, other):
        accelerator.backward(loss_fn(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
# if the loader ends before K micro-batches, where the Accelerator is created instead:
plugin = GradientAccumulationPlugin(num_steps=K, sync_with_dataloader=False)
accelerator = Accelerator(gradient_accumulation_plugin=plugin)
# without accumulate(), for each micro-batch; what backward divides by is undone:
accelerator.backward(loss * accelerator.gradient_accumulation_steps / len(window))"""

FIX_LEFT_OUT = """\
# before the loop:
done = 0
# for each micro-batch:
if torch.isfinite(loss):
    loss.backward()                        # not (loss / K).backward()
    done += 1                              # counts those that have a backward
# before clipping and the step:
for p in model.parameters():
    if p.grad is not None:
        p.grad.div_(max(done, 1))
done = 0"""


class PartialWindow(Rule):
    """A shorter or longer window is divided by the usual K.

    **What it sees**

    A window of k micro-batches has a balance of k/K, where K is the number of micro-batches in
    the last window with a correct balance; or in the first one, if it comes later. Or windows of
    several lengths have a balance of k/K of one number, where most hold K micro-batches, or where
    the graph shows that number, and all are shorter. Or
    Accelerate states K, the graph shows this division, and no window holds K micro-batches. Or all
    have k, and a division by k - 1 or k + 1 is written: that is information, because the number may
    be a weight.

    **Why it matters**

    The number of micro-batches per epoch is rarely a multiple of K. The last step of the epoch
    then applies a gradient that is k/K of the right size. A loop that steps at ``i % K == 0``
    does so in its first step, after one micro-batch. A guard that skips the backward of a batch,
    such as one whose loss is not finite, leaves fewer micro-batches in its window.

    **What to do**

    Divide by the number of micro-batches in the window, or by its tokens. If a guard leaves out
    batches, count those that have a backward.

    **When it is silent**

    The balance of the short window is correct; all windows are equally long, and what divides them
    differs from their length by more than 1, or is 2, or may be a count of the batch, and is not
    stated by Accelerate.

    **Incidents**

    huggingface/transformers#38837, modelscope/ms-swift#10084,
    Lightning-AI/pytorch-lightning#19987
    """

    points_at = ("backward", "loss")
    inhibits = ("batch.changed_without_lr",)

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = k/K in a window of k, after a fair window of K."""
        if shows(window, "partial_before"):
            return _before(window)
        if not shows(window, "partial"):
            return OK
        k, ratio = micro_batches(window), window.balance.ratio
        full, constant = round(k / ratio), window.balance.constant
        usual = f"The last balanced window held {counted(full, 'micro-batch')}"
        if window.balance.evidence == DIVIDED_BY.format(full):
            return _always(window, full)
        if window.balance.evidence == BY_ACCELERATE.format(full):
            return _of_accelerate(window, full)
        if constant != 1:
            held = counted(full, "micro-batch")
            usual = f"Windows of {held} have a balance of {significant(constant)}"
        return finding(
            "warning",
            f"A window of {counted(k, 'micro-batch')} is divided by {full}",
            f"{usual}. This one holds {k}, and its balance is {significant(balance(window))} = "
            f"{k}/{full}{of_declared(window) or of_constant(window)}. {_left_out(window)}"
            f"{intermittent_factor_effect(ratio, window.facts)}.",
            _fix(window, k > full),
            balance=round(balance(window), 6),
            micro_batches=k,
            usual_micro_batches=full,
            factor=round(ratio, 6),
            **({"batches_left_out": window.balance.left_out} if window.balance.left_out else {}),
        )


def _of_accelerate(window: Window, divisor: int) -> Outcome:
    """Its windows end elsewhere than where the optimizer steps."""
    k, ratio = micro_batches(window), window.balance.ratio
    return finding(
        "warning",
        f"A window of {counted(k, 'micro-batch')} is divided by {divisor}",
        f"{window.balance.evidence}. This window holds {counted(k, 'micro-batch')}, so its balance "
        f"is {significant(balance(window))} = {k}/{divisor}{of_declared(window)}. accumulate() "
        "counts one micro-batch each time it is entered, and ends a window where the loader ends, "
        f"unless sync_with_dataloader=False. {constant_factor_effect(ratio, window.facts)}.",
        FIX_COUNTED if k > divisor or divisor % k == 0 else WINDOW_LENGTH["accelerate"],
        balance=round(balance(window), 6),
        micro_batches=k,
        usual_micro_batches=divisor,
        factor=round(ratio, 6),
    )


def _left_out(window: Window) -> str:
    """Why it is shorter, if the DataLoader shows it."""
    left_out = window.balance.left_out
    if not left_out:
        return ""
    return (
        f"The DataLoader yielded {counted(window.facts.record.batches or 0, 'batch')} "
        f"for it, and no backward followed {left_out} of them: a guard against a loss that is "
        "not finite may skip it. "
    )


def _always(window: Window, divisor: int) -> Outcome:
    """Information: the loop counts one micro-batch too many, or too few, or this is a weight."""
    k, ratio = micro_batches(window), window.balance.ratio
    held = counted(k, "micro-batch")
    lengths = [k, *(closed.micro_batches for closed in wrong_windows(window.of_same_loss))]
    most = max(lengths)
    one_off = most == divisor - 1 and 2 * lengths.count(most) > len(lengths)
    if min(lengths) < most < divisor and not one_off:
        return _of_several_lengths(window, divisor, sorted(lengths))
    off = "one too few" if k < divisor else "one too many"
    return finding(
        "info",
        f"Windows of {held} are divided by {divisor}",
        f"{window.balance.evidence}, and a window holds {held}, so the balance is "
        f"{significant(balance(window))} = {k}/{divisor}{of_declared(window)}. If {divisor} is "
        f"meant as the length of a window, the loop counts {off}. "
        f"If it is a weight, the division by K = {k} is missing, unless the loss of a window is "
        f"meant as a sum. {constant_factor_effect(ratio, window.facts)}.",
        _fix(window, longer=False),
        balance=round(balance(window), 6),
        micro_batches=k,
        divisor=divisor,
        factor=round(ratio, 6),
    )


def _of_several_lengths(window: Window, divisor: int, lengths: list[int]) -> Outcome:
    """What a window weighs depends on its length, whatever the number is meant as."""
    k, ratio = micro_batches(window), window.balance.ratio
    held = f"from {lengths[0]} to {lengths[-1]}"
    return finding(
        "warning",
        f"Windows of different lengths are divided by {divisor}",
        f"{window.balance.evidence}, and windows held {held} micro-batches so far. This one holds "
        f"{k}, so its balance is {significant(balance(window))} = {k}/{divisor}"
        f"{of_declared(window)}. {intermittent_factor_effect(ratio, window.facts)}.",
        _fix(window, longer=False),
        balance=round(balance(window), 6),
        micro_batches=k,
        divisor=divisor,
        factor=round(ratio, 6),
    )


def _before(window: Window) -> Outcome:
    """The windows before the first balanced one were shorter or longer, and divided by its K."""
    full, ratio = micro_batches(window), window.balance.ratio
    k = round(full * ratio)
    return finding(
        "warning",
        f"A window of {counted(k, 'micro-batch')} is divided by {full}",
        f"The first balanced window holds {counted(full, 'micro-batch')}. The one before held {k}, "
        f"and its balance was {significant(ratio * declared(window))} = {k}/{full}"
        f"{of_declared(window)}. {intermittent_factor_effect(ratio, window.facts)}.",
        _fix(window, longer=False)
        if ratio > 1
        else of_plain_loop(FIX_BEFORE, window.facts, COUNT_FROM_ONE),
        balance=round(ratio * declared(window), 6),
        micro_batches=k,
        usual_micro_batches=full,
        factor=round(ratio, 6),
    )


def _fix(window: Window, longer: bool) -> str:
    facts, objective = window.facts, window.balance.objective
    if window.balance.left_out:
        return factor_fix({"plain": FIX_LEFT_OUT}, facts, objective)
    fixes = dict.fromkeys(PLAIN_LOOPS, FIX_LONGER) if longer else WINDOW_LENGTH
    return factor_fix(fixes, facts, objective)
