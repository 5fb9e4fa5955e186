"""reduction.balance_off"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.balance.evidence import Idle, Near, without_tokens
from gradledger_monitor.rules.balance.patterns import wrong_balances
from gradledger_monitor.rules.framework_fixes import framework
from gradledger_monitor.rules.gradient_scale_effects import intermittent_factor_effect
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import objective_name
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    factor,
    factor_effect,
    shows,
    varies,
)
from gradledger_monitor.rules.reduction.fixes import SUM_OVER_WINDOW, token_mean
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FEWEST, LEAST = 3, 1e-6  # micro-batches of an accumulation; the smallest factor of one

FIX = """\
# if the factor B is intended, declare it; it is then no longer reported:
gradledger.watch(model, optimizer, scale=B)"""

FIX_VARIES = """\
# no scale= declares a factor that changes. If a sample is to weigh the same whatever it holds (an
# episode, a graph), declare it; the balance is then not evaluated:
gradledger.watch(model, optimizer, contract="sample")"""

FIX_BY_HAND = """\
dist.all_reduce(p.grad)
p.grad /= dist.get_world_size()      # by R in all: what divides before it, and after it, together
# if another factor is intended, declare it: gradledger.watch(model, optimizer, scale=B)"""

JOINED = (
    " This is the default in a Join context of DDP, and what PyTorch's comm hooks do in any: what "
    "is left of the data has the weight that it has in full windows."
)
FIX_JOIN = """\
# for the mean over the ranks that have data left:
with model.join(divide_by_initial_world_size=False):   # a comm hook divides by itself"""

FIX_LEFT = """\
# Multiply the loss by the number of ranks that have data left in the step, not by all ranks."""

FIX_IDLE = """\
tokens = torch.tensor(own_tokens)              # 0 on a rank without data
dist.all_reduce(tokens)
loss = F.cross_entropy(logits, labels, reduction="sum") * dist.get_world_size() / tokens"""


class BalanceOff(Rule):
    """The balance is not 1, and no recognised mistake explains it.

    **What it sees**

    A balance that differs from 1 (or from the declared ``scale``) in at least two windows, and
    that matches no function of K, the ranks or the tokens. It is constant; or it varies in a
    loss that is a mean over its own elements, or whose token weights are unequal. If each
    micro-batch adds up several means, each with a balance of 1, as the losses of the models of an
    ensemble, the finding states their number. It is a warning
    where a loop that all-reduces the gradients itself multiplies their average by this number, and
    where ranks have no token in a window, and are counted in the average over the ranks; and in a
    ``Join`` context in which DDP divides by the ranks that have data left, where the loss is
    multiplied by the number of all ranks.

    **Why it matters**

    The factor may be intended: a loss weight, a temperature. It scales the gradient, so it
    changes the effective learning rate of SGD and the meaning of a clipping threshold.

    **What to do**

    If the factor is intended, declare it with ``scale=``, or with ``contract="sample"`` if it
    differs between windows. If not, remove it.

    **When it is silent**

    The balance is 1 or the declared scale; a constant multiplier of the loss explains it;
    another rule of the family names the cause; the loss is divided by a number that is no count
    of its elements, and the balance varies: then it is not measured.

    **Incidents**

    textbook (a predivide factor that is not undone)
    """

    points_at = ("loss", "backward")
    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B is off, and no recognised mistake explains it."""
        if shows(window, "ranks_left"):
            return _left(window)
        if not shows(window, "constant"):
            return OK
        b, by_loop = balance(window), _factor_of_loop(window)
        if by_loop is not None:
            return _by_loop(window, by_loop)
        idle = without_tokens(window.facts, window.balance.objective)
        if idle is not None:
            return _of_idle(window, idle)
        name = _one_of_several(window)
        return finding(
            "info",
            f"The balance{f' of the {name}' if name else ''} is {significant(b)}, not "
            f"{significant(declared(window))}",
            f"{_history(window)}. {_cause(window)}. If it is not: {_effect(window, name)}."
            f"{_accumulation(window)}",
            FIX_VARIES if varies(window) else FIX,
            balance=round(b, 6),
            factor=round(factor(window), 6),
        )


def _left(window: Window) -> Outcome:
    b, active, left = balance(window), window.facts.run.world_size, window.facts.run.left
    have, others = ("has" if left == 1 else "have"), "other" if active == 1 else f"{active} others"
    ranks = counted(active + left, "rank")
    return finding(
        "warning",
        f"DDP divides by the ranks that have data left, and the loss is multiplied by all {ranks}",
        f"In this window, {left} of {ranks} {have} left the Join context, and DDP divides the sum "
        f"of the gradients by the {others} alone (divide_by_initial_world_size=False). The balance "
        f"is {significant(b)} here and {significant(declared(window))} before ranks left, so the "
        "loss is multiplied by the number of all ranks. "
        f"{intermittent_factor_effect(factor(window), window.facts)}.",
        FIX_LEFT,
        balance=round(b, 6),
        factor=round(factor(window), 6),
        left=left,
        world_size=active + left,
    )


def _one_of_several(window: Window) -> str | None:
    """The name of the loss, if other losses of the window have other balances."""
    objectives, objective = window.facts.objectives, window.balance.objective
    if objective is None or objective not in objectives:
        return None
    near = Near(objective.ledger.balance, window.facts.tolerance)
    alike = all(near(each.ledger.balance) for each in objectives)
    return None if alike else objective_name(objective, objectives)


def _effect(window: Window, name: str | None) -> str:
    """On the update, if the gradients of all losses have the factor."""
    if name is None:
        return factor_effect(window)
    return f"the gradient of this loss is {significant(factor(window))} times the intended one"


def _factor_of_loop(window: Window) -> float | None:
    """What the loop multiplies the sum of the ranks' gradients by, if that alone explains B."""
    facts = window.facts
    by_loop = None if varies(window) else facts.all_reduce_factor
    if by_loop is None or (facts.all_reduce and facts.all_reduce.of_groups):
        return None
    near = Near(factor(window), facts.tolerance)
    return by_loop if near(by_loop * facts.run.world_size) else None


def _by_loop(window: Window, by_loop: float) -> Outcome:
    b, ranks = balance(window), window.facts.run.world_size
    return finding(
        "warning",
        f"The all-reduce multiplies the ranks' average gradient by {significant(b)}",
        f"{_history(window)}. The loop multiplies the sum of the gradients of {ranks} ranks by "
        f"{significant(by_loop)}; this loss needs their average, {significant(by_loop / b)} times "
        "the sum. Divisions before and after the all-reduce that do not make up the number of "
        "ranks together do this, such as a predivide factor that is not undone. "
        f"{factor_effect(window)}.",
        FIX_BY_HAND,
        balance=round(b, 6),
        factor=round(factor(window), 6),
        loop_factor=round(by_loop, 6),
        world_size=ranks,
    )


def _of_idle(window: Window, idle: Idle) -> Outcome:
    """A whole rank, or single micro-batches, as where a guard drops one."""
    ranks, b = window.facts.run.world_size, balance(window)
    if idle.ranks:
        share = f"{idle.ranks} of {counted(ranks, 'rank')}"
        have = "has" if idle.ranks == 1 else "have"
        counts = f"The means of the other ranks are averaged over all {ranks}"
    else:
        of = " of all ranks" if ranks > 1 else ""
        share = f"{idle.micro_batches} of the {idle.total} micro-batches{of}"
        have = "has" if idle.micro_batches == 1 else "have"
        counts = f"The others are divided by {idle.total} all the same"
    if ranks == 1:
        fix = token_mean(window.facts, window.balance.objective)
    else:
        fix = FIX_IDLE if framework(window.facts.run) == "plain" else SUM_OVER_WINDOW
    joined = window.facts.record.join == "all"
    return finding(
        "warning" if idle.ranks and not joined else "info",
        f"{share} {have} no tokens with a weight, and the average counts "
        f"{'it' if have == 'has' else 'them'}",
        f"In this window, {share} {have} no token with a weight in this loss. {counts}, so the "
        "balance is "
        f"{significant(b)}. {intermittent_factor_effect(factor(window), window.facts)}."
        + (JOINED if joined else ""),
        FIX_JOIN if joined else fix,
        balance=round(b, 6),
        factor=round(factor(window), 6),
        idle_ranks=idle.ranks,
        idle_micro_batches=idle.micro_batches,
        world_size=ranks,
    )


def _cause(window: Window) -> str:
    shown = window.balance.evidence or "The balance alone does not show the cause"
    return f"{shown}; it may be an intended weight"


def _accumulation(window: Window) -> str:
    """What else divides the loss of one micro-batch by a whole number, which is no count of it."""
    facts, objective = window.facts, window.balance.objective
    b = factor(window)
    m = round(1 / max(b, LEAST))
    alone = len(facts.record.micro_batches) == 1 and m >= FEWEST and not varies(window)
    if objective is None or not alone or not Near(1 / m, facts.tolerance)(b):
        return ""
    terms = [term.loss_term for term in objective.terms]
    counts = {facts.samples, *(n for t in terms for n in (t.elements, t.tokens, t.size, t.rows))}
    if m in counts or not all(m in map(number, t.divisors) for t in terms):
        return ""
    return (
        f" The loss is divided by {m}, and the optimizer steps after 1 micro-batch: if an "
        f"accumulation over {m} is meant, it should step after {m}."
    )


def _history(window: Window) -> str:
    if varies(window):
        return (
            f"The balance is {significant(balance(window))} in this window and differs between "
            "windows"
        )
    b, earlier = balance(window), wrong_balances(window.of_same_loss)
    least, most = significant(min([b, *earlier])), significant(max([b, *earlier]))
    if least == most:
        return f"The balance is {significant(b)}, as in earlier windows"
    return f"The balance is {significant(b)}, and from {least} to {most} in windows so far"
