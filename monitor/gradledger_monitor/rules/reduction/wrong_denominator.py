"""reduction.wrong_denominator"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.rules.balance.beside import cross_entropy_beside
from gradledger_monitor.rules.balance.counts import followed_count
from gradledger_monitor.rules.balance.divisors import is_mean_of_sums, is_sum_of_steps
from gradledger_monitor.rules.balance.evidence import Near, divides_by_samples, ignores_targets
from gradledger_monitor.rules.balance.patterns import Pattern, wrong_windows
from gradledger_monitor.rules.framework_fixes import framework
from gradledger_monitor.rules.gradient_scale_effects import changing_factor_effect
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.objective_names import counted_name, element_name, objective_name
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    diagnosed,
    factor,
    factor_effect,
    intended,
    severity_of_one,
    share_sentence,
    shows,
    tokens,
    varies,
)
from gradledger_monitor.rules.reduction.fixes import TOKEN_MEAN, of_loop, token_mean
from gradledger_monitor.rules.rule import OK, Rule, Window, as_count, finding

FIX = TOKEN_MEAN["plain"]
FIX_OF_WINDOW = """\
count = sum(number_of_targets(y) for _, y in window)     # of all K, before the first backward
for x, y in window:
    (sum_of_losses(model(x), y) / count).backward()"""

FIX_OF_SMOOTHING = """\
# before the sum over the positions, as for the negative log-likelihood:
smooth_loss = smooth_loss.masked_fill(target.unsqueeze(-1) == ignore_index, 0.0)
# a mean over positions divides by those that count"""

FIX_OF_UNSHIFTED = """\
# before the Trainer, which counts the labels after the shift of a model of this type (5.23):
model.loss_type = "ForCausalLM\""""

WITHOUT_WEIGHT = "those without a weight (padding, or what a mask leaves out)"
SAMPLES = (
    " The divisor is the number of samples: if the loss is a sum for each of them on purpose, "
    'declare contract="sequence".'
)


FIX_OF_STEPS = """\
# For equal steps of the optimizer, divide the sum by the number of means that it adds up."""


class WrongDenominator(Rule):
    """The loss is divided by something other than the number of tokens that count.

    **What it sees**

    All tokens have nearly equal weight (d < 1%), but the balance differs between windows and
    matches no other mistake; or the divisor is the token count of an earlier window; or it follows
    the count of the first or the last micro-batch, or of the window before, in six windows of at
    least three different counts; or the token weights match a division by all positions of a
    micro-batch, including those whose targets are ignored; of one of several losses, too. Or a loss
    beside a cross entropy leaves out as many elements as that ignores targets, and is divided by
    all of them, in batches whose sizes and shares of ignored targets differ, as with padding. Or a
    label smoothing by hand adds up positions that the cross entropy on the same logits ignores, and
    the weights of the two add up to 1, or the number of positions differs between batches, and the
    share of ignored ones does by more than chance, as with padding.

    It is information if the graph shows a mean, over the samples of the window, of one sum for
    each (``losses.sum(-1).mean()``): the log-likelihood of sequences is such a loss. So it is if
    the only micro-batch adds up a mean for each step, as a loop over a decoder does; and if the
    Trainer of transformers counts one label more for each sequence, as it does for models such as
    GPT-2, whose loss it does not know to shift its labels.

    **Why it matters**

    The divisor is another quantity: all positions, the number of samples, the token count of
    another window. If it does not follow the tokens that count, the size of the gradient
    changes, and with SGD the effective learning rate. Ignored positions in the divisor also
    lower the reported loss.

    **What to do**

    Count the labels that are not ignored, over all micro-batches of this window and all ranks. If
    the divisor is the number of sequences on purpose, declare ``contract="sequence"``.
    For a causal language model, count them after the shift: the first token of each sequence is
    not a target.

    **When it is silent**

    The balance is 1; K, the world size or a plain sum explains it (other rules); it is constant and
    the divisor does not match all positions. What has no weight is not ignored by the loss itself,
    and its share is the same in every window, or differs by chance, or drifts; or a mean, or a loss
    of each element, is masked, and its batches have one size: the mask may be intended. The same
    applies to a divisor between the number of elements with a weight and that of all, such as all
    targets beside the hard ones. It also applies to the count of another loss, such as the anchors
    of a detector that match an object. A divergence on the logits of a cross entropy counts
    positions that this one ignores: the verdict is then incomplete, if they may be padding. Of a
    further loss with less than 1% of the gradient's weight, it is information.

    **Incidents**

    OpenNMT/OpenNMT-py#526, hiyouga/LlamaFactory#6639, NVIDIA/Megatron-LM#2417
    """

    points_at = ("loss", "backward")
    inhibits = ("reduction.balance_off",)  # of windows before the one that shows the cause
    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B differs between windows with even weights, or the divisor is another count."""
        further = diagnosed(window, "term_padding")
        if further is not None and further.objective is not None:
            return _of_further(window, further.objective, further.constant)
        smoothing = diagnosed(window, "smoothing")
        if smoothing is not None and smoothing.objective is not None:
            return _of_smoothing(window, smoothing.objective)
        if shows(window, "other_count"):
            return _of_other_count(window)
        if not shows(window, "wandering", "padding", "stale"):
            return OK
        b, n = balance(window), tokens(window)
        excess = factor(window)  # with the constant of the loss
        divisor = n / excess if excess else math.inf  # a declared scale may be as large as a float
        pattern, objective = window.balance.pattern, window.balance.objective
        assert objective is not None
        if pattern == "wandering" and is_mean_of_sums(window.facts, objective):
            return _of_mean_of_sums(window, objective)
        if pattern == "wandering" and is_sum_of_steps(window.facts, objective):
            return _of_steps(window, objective)
        of_samples = divides_by_samples(window.facts, objective)
        positions = pattern == "padding"
        constant = window.balance.constant
        if of_samples and not positions:
            constant = abs(objective.coefficient or 1.0)
        divisor *= constant
        cause = _cause(pattern, divisor, constant, objective, window.facts.tolerance)
        unshifted = pattern == "wandering" and constant == 1 and _counts_first_labels(window)
        by_trainer = unshifted and framework(window.facts.run) == "transformers"
        if unshifted:
            sequences = counted(window.facts.samples or 0, "sequence")
            cause += (
                f". It has one more for each of {sequences}, as labels that are not shifted yet"
            )
        return finding(
            "info" if by_trainer else "warning",
            "The loss divisor counts ignored positions"
            if positions
            else f"The loss divisor is not the {element_name(objective)} count",
            f"The balance is {significant(b)} instead of {significant(intended(window))}: "
            f"{cause}.{_changes(window)} {factor_effect(window)}.{SAMPLES if of_samples else ''}",
            FIX_OF_UNSHIFTED if by_trainer else token_mean(window.facts, objective),
            balance=round(b, 6),
            tokens=as_count(n),
            divisor=round(divisor, 4),
            padding=positions,
            earlier_balances=[round(c.balance, 6) for c in window.of_same_loss if c.balance][-8:],
        )


def _counts_first_labels(window: Window) -> bool:
    """Whether the divisor has one label more per sequence, in all windows whose samples are known.

    The labels of a causal language model are shifted: the first of each sequence is no target.
    """
    facts, objective = window.facts, window.balance.objective
    if objective is None or objective.reading.unit != "tokens" or not facts.samples:
        return False
    earlier = [(c.balance, c.tokens, c.samples) for c in wrong_windows(window.of_same_loss)]
    counts = [(b, n, samples) for b, n, samples in earlier if b and n and samples]
    scale = facts.run.declared_scale or 1.0
    return all(
        Near(scale * n / b, facts.tolerance)(n + samples)
        for b, n, samples in [*counts, (balance(window), tokens(window), facts.samples)]
    )


def _of_mean_of_sums(window: Window, objective: Objective) -> Outcome:
    """A log-likelihood of samples: their author may mean it so."""
    facts, element = window.facts, element_name(objective)
    samples = sum(term.loss_term.elements or 0 for term in objective.terms)
    name = objective_name(objective, facts.objectives)
    return finding(
        "info",
        f"The {name} is a mean of sums over {element}s",
        f"The mean over the {counted(samples, 'sample')} of this window is taken of one sum for "
        f"each, as of a log-likelihood: {significant(tokens(window) / samples)} {element}s on "
        f"average, which have equal weights. The gradient is as many times as large as that of a "
        f"mean over all {element}s, and differs with the lengths of the samples.",
        token_mean(facts, objective),
        objective=name,
        balance=round(balance(window), 6),
        tokens=as_count(tokens(window)),
        samples=samples,
    )


def _of_steps(window: Window, objective: Objective) -> Outcome:
    """The steps of a sequence: their author may add them up on purpose."""
    steps, element = len(objective.terms), element_name(objective)
    name = objective_name(objective, window.facts.objectives)
    held = counted(round(objective.terms[0].tokens), element)
    return finding(
        "info",
        f"The {name} is a sum of {steps} means",
        f"In this window, the {name} adds up {steps} means of {held} each, as over the steps of a "
        f"sequence, and nothing divides the sum. The gradient is {steps} times as large as that of "
        f"a mean over all {element}s, and differs with the number of steps. If the loss of a "
        "sequence is meant to be the sum over its steps, this is right.",
        FIX_OF_STEPS,
        objective=name,
        balance=round(balance(window), 6),
        tokens=as_count(tokens(window)),
        means=steps,
    )


def _of_other_count(window: Window) -> Outcome:
    """The unit of the loss is not known, but the divisor follows a count of too little data."""
    facts, objective = window.facts, window.balance.objective
    assert objective is not None
    followed = followed_count(facts, objective, window.of_same_loss)
    assert followed is not None  # it is what the pattern was diagnosed from
    counts, k = followed.counts, facts.micro_batches_of(objective)
    counted_one = next(o for o in facts.objectives if o.name == counts.objective)
    unit = f"{counted_name(counted_one, counts.unit)}s"
    main, other = (objective_name(o, facts.objectives) for o in (objective, counted_one))
    of_other = "" if other == main else f" of the {other}"
    if followed.part == "previous":
        part, divisor = "the window before", f"{followed.divisor:,.0f}"
    else:
        part = f"the {followed.part} micro-batch alone"
        divisor = f"{k} times {followed.divisor / k:,.0f}"
    return finding(
        "warning",
        "The loss divisor is the count of other data",
        f"In {followed.windows} windows, what divides the {main} is proportional to the number of "
        f"{unit}{of_other} in {part}: {divisor}, where this window has "
        f"{counts.window:,.0f}. With the count of each whole window, the gradient of this one "
        f"would be {significant(followed.divisor / counts.window)} times as large. "
        f"{changing_factor_effect(facts)}.",
        of_loop({"plain": FIX_OF_WINDOW}, facts),
        objective=main,
        counted=counts.window,
        divisor=followed.divisor,
        part=followed.part,
    )


def _of_smoothing(window: Window, smoothing: Objective) -> Outcome:
    """A smoothing by hand, which adds up positions that its cross entropy ignores."""
    facts = window.facts
    main = cross_entropy_beside(facts, smoothing)
    all_of_them = smoothing.ledger.tokens
    if main is None:  # the smoothing is a part of it
        main = smoothing
        all_of_them = total(float(term.loss_term.smoothed or 0) for term in main.terms)
    counted_ones = main.ledger.tokens
    name = objective_name(main, facts.objectives)
    ignored = 1 - counted_ones / all_of_them
    return finding(
        "warning",
        "The label smoothing counts ignored positions",
        f"The {name} has {counted_ones:,.0f} tokens in this window. The smoothing on the same "
        f"logits adds up the log-probabilities of {all_of_them:,.0f} positions: {percent(ignored)} "
        "of them are ignored by the cross entropy, as padding is. They pull the weights to equal "
        "probabilities, more so in a batch of which more is ignored.",
        FIX_OF_SMOOTHING,
        objective=objective_name(smoothing, facts.objectives),
        tokens=as_count(counted_ones),
        positions=as_count(all_of_them),
    )


def _of_further(window: Window, objective: Objective, constant: float) -> Outcome:
    ledger, objectives = objective.ledger, window.facts.objectives
    name, main = objective_name(objective, objectives), objective_name(objectives[0], objectives)
    held = counted(round(ledger.tokens), element_name(objective))
    itself = ignores_targets(objective)
    ignored = "ignored targets" if itself else f"those that the {main} ignores"
    return finding(
        severity_of_one(objective, objectives),
        f"The divisor of the {name} counts ignored positions",
        f"The {main} is normalised. The weights of the {held} of "
        f"the {name} match a division by all positions, including {ignored}: they add up to "
        f"{significant(ledger.balance)} instead of {significant(constant)}. So the share of the "
        f"{name} in the gradient changes with the number of ignored targets."
        f"{share_sentence(objective, objectives)}",
        token_mean(window.facts, objective),
        objective=name,
        balance=round(ledger.balance, 6),
        tokens=as_count(ledger.tokens),
        padding=True,
    )


def _cause(
    pattern: Pattern, divisor: float, constant: float, objective: Objective, tolerance: float
) -> str:
    besides = f" besides the constant {significant(constant)}" if constant != 1 else ""
    element = element_name(objective)
    if pattern == "padding":
        targets = "ignored targets (padding, or the first token of each sequence)"
        ignored = targets if ignores_targets(objective) else WITHOUT_WEIGHT
        return (
            f"the {element}s' weights match a division by all positions of each "
            f"micro-batch{besides}, including {ignored}"
        )
    n = objective.ledger.tokens
    if objective.reading.unit in ("class_weight", "loss_weights"):
        weights = "class weights" if objective.reading.unit == "class_weight" else "weights"
        they = "they" if pattern == "stale" else f"the {weights}"
        quantity, count = f"sum of the {weights}", f"{they} add up to {significant(n)}"
    else:
        verb = "counts" if round(n) == 1 else "count"
        quantity, count = f"number of {element}s", f"{counted(round(n), element)} {verb}"
    if pattern == "stale":
        of_earlier = f"the {quantity} of an earlier window"
        return f"the divisor is {significant(divisor)}, {of_earlier}, but {count} in this one"
    on_average = "" if objective.reading.is_even(tolerance) else " on average"
    return f"the divisor is {significant(divisor)}{on_average}{besides}, but {count}"


def _changes(window: Window) -> str:
    return " The balance differs between windows." if varies(window) else ""
