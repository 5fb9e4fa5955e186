"""reduction.token_weights_unequal"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.losses.repeated import has_gradients_beside_parts
from gradledger_monitor.model.losses.reported import loss_of_large_batch
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import Entry, total
from gradledger_monitor.model.unmeasured import SKIPPED, WITHOUT_BACKWARD
from gradledger_monitor.rules.balance.beside import counted_by, leaves_out_elements
from gradledger_monitor.rules.balance.diagnosis import (
    reason_without_objective,
    weighted_by_design,
    why_no_loss_is_evaluated,
)
from gradledger_monitor.rules.balance.evidence import (
    is_divided_by_a_count,
    is_divided_by_two_ks,
)
from gradledger_monitor.rules.balance.masked import may_count_more
from gradledger_monitor.rules.balance.patterns import is_fair
from gradledger_monitor.rules.balance.several_losses import why_undecided
from gradledger_monitor.rules.ddp.common import names
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import counted, percent, significant, times
from gradledger_monitor.rules.objective_names import (
    element_name,
    needs_name,
    objective_list,
    objective_name,
)
from gradledger_monitor.rules.reduction.common import LEAST_SHARE
from gradledger_monitor.rules.reduction.common import share as share_of
from gradledger_monitor.rules.reduction.fixes import TOKEN_MEAN, token_mean, without_short_batch
from gradledger_monitor.rules.reduction.positions import Positions
from gradledger_monitor.rules.reduction.short_batches import ShortBatch, ShortBatches
from gradledger_monitor.rules.reduction.weights_not_evaluated import (
    BY_DATA,
    COUNTS_IGNORED,
    ONE_MICRO_BATCH,
    OTHER_DIVISOR,
    why_not_evaluated,
)
from gradledger_monitor.rules.rule import (
    Rule,
    Window,
    about_steps,
    as_count,
    deferred_finding,
    finding,
    not_applicable,
    not_measured,
    ok,
)
from gradledger_monitor.rules.state import declare

FIX = TOKEN_MEAN["plain"]
NOT_OBSERVED = "no backward of the first window was observed"


class TokenWeightsUnequal(Rule):
    """Tokens of one optimizer step have different weights.

    **What it sees**

    The weight of each micro-batch's tokens in the applied gradient, on every rank. The
    misallocation d is the share of gradient weight on the wrong tokens: half the sum of (n_t /
    N) * abs(rho_t - 1) over all micro-batches. n_t is the number of tokens of a micro-batch, N
    that of the window, and rho_t the weight of a token relative to the equal weight.

    **Why it matters**

    A mean of micro-batch means gives every micro-batch equal weight, regardless of its number
    of tokens: a token in a short micro-batch counts more than one in a long micro-batch. The
    gradient differs in direction from that of the same data in one large batch, so no learning
    rate fixes it.

    **What to do**

    If only the last batch of an epoch is short, leave it out (``drop_last=True``), or: sum the
    loss over tokens, and divide by the number of tokens in the whole window, over all
    ranks. transformers does this since 4.46 (``num_items_in_batch``).

    **When it is silent**

    - All micro-batches hold equally many tokens. The mean of means is then right; of means by class
      weights, or by others, it is near, and the verdict states it.
    - The loss itself gives the tokens of one micro-batch different weights (advantages, a mean per
      sequence), and its elements have equal weights, or a mask may have left some of them out.
    - A micro-batch may count once: it has as many elements as a ranked list has pairs; it adds the
      mean of several losses of one form, each of which may be that of one sample; its elements
      compare its examples, as triplets do; or the loss multiplies its elements by returns or
      advantages, and it may be an episode.
    - A loss other than a cross entropy is divided by another number than a count, such as a sum of
      targets.
    - Micro-batches of equal counts have weights that follow from their data, such as a loss that is
      divided by its detached value.
    - The micro-batches have different numbers of losses of one form: which are the same is unknown.
    - Several micro-batches are of one batch, as of views of it or in adversarial training, and each
      batch has the same weight in sum.
    - A further loss moves less than the warning's share of the gradient.
    - A further plain mean is beside a main loss that the tokens of the window divide: it is
      information only, as its author knows that mean, and may intend another one. If the further
      loss counts the tokens of the main one, or leaves out a number of elements that depends on
      the data (as a mask does, and a slice does not), it is a warning or an error.
    - Each backward has a separate loss (real and fake batches of a GAN critic).
    - The run declares ``contract="sequence"`` or ``contract="sample"``.

    **Incidents**

    huggingface/transformers#34191, unslothai/unsloth#1134, meta-pytorch/torchtune#1875,
    Lightning-AI/pytorch-lightning#21386, karpathy/nanochat#59, pytorch/torchtitan#2206
    """

    points_at = ("loss", "backward")
    error = Parameter(0.05, "misallocation from which it is an error", most=1.0)
    warning = Parameter(LEAST_SHARE, "misallocation from which it is a warning", most=1.0)
    recent = Parameter(50, "windows over which misallocation is averaged")

    state = declare(
        _recent=deque[float],
        _short_batches=ShortBatches,
        _own_divisors=list[str],
        _positions=Positions,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._recent: deque[float] = deque(maxlen=self.recent)
        self._short_batches = ShortBatches()
        self._own_divisors: list[str] = []  # of losses that are divided by no count
        self._positions = Positions()

    def after_gap(self) -> None:
        """The windows just before the next one are missing."""
        self._short_batches.after_gap()

    def evaluate(self, window: Window) -> Outcome:
        """OK if the weights of every objective are even in some unit; else the heaviest's d."""
        facts = window.facts
        if facts.record.skipped:  # no token has a weight in a gradient that is not applied
            return not_applicable(SKIPPED)
        if facts.unmeasured in WITHOUT_BACKWARD and facts.step == 1:
            return not_applicable(NOT_OBSERVED)  # the optimizer was created after it
        if facts.unmeasured:
            return (not_applicable if facts.is_of_changes else not_measured)(facts.unmeasured)
        intended = weighted_by_design(facts)
        if intended:
            return not_applicable(intended)
        if reason := why_no_loss_is_evaluated(facts):
            return not_measured(reason)
        if facts.objective is None:
            return not_measured(reason_without_objective(facts))
        if undecided := why_undecided(facts, window.of_same_loss):
            return not_measured(undecided)
        objectives = [] if facts.together else [o for o in facts.objectives if not o.is_penalty]
        excuses = [self._excuse(o, objectives, window) for o in objectives]
        if excuses and all(excuses):
            return _excused(facts, objectives, [*filter(None, excuses)])
        balanced = _even_weights(facts, objectives, excuses)
        evaluated = [o for o, excuse in zip(objectives, excuses, strict=True) if excuse is None]
        uneven = next((o for o in evaluated if not o.reading.is_even(facts.tolerance)), None)
        share = 0.0 if uneven is None else share_of(uneven, objectives)
        self._recent.append(0.0 if uneven is None else uneven.ledger.misallocation * share)
        shown = uneven or next(iter(evaluated), None)
        lines = () if shown is None else shown.ledger.lines
        short = self._short_batches.see(facts.step, lines)
        if uneven is None or (uneven is objectives[0] and window.balance.pattern == "padding"):
            return balanced
        if short is not None and short.windows is not None and short.relative_weight > 1:
            return deferred_finding(self._report_short_batch, facts, uneven, share, short)
        steps = (*self._positions.before(uneven, facts.step), facts.step)
        report = deferred_finding(self._report, facts, uneven, share, tuple(self._recent))
        return about_steps(report, steps)

    def _excuse(
        self, objective: Objective, objectives: list[Objective], window: Window
    ) -> Outcome | None:
        """Why an objective is not evaluated; a divisor may equal a count in some window."""
        facts = window.facts
        if any(d.objective is objective for d in window.diagnoses if d.pattern == "term_padding"):
            return not_applicable(COUNTS_IGNORED)  # which makes its weights differ, too
        excuse = why_not_evaluated(objective, objectives, window, self.warning)
        if excuse is not None and excuse.reason == OTHER_DIVISOR:
            self._own_divisors = sorted({*self._own_divisors, objective.name})
        elif excuse is None and objective.name in self._own_divisors:
            return (
                None if objective.reading.is_even(facts.tolerance) else not_measured(OTHER_DIVISOR)
            )
        if excuse is not None or objective.reading.is_even(facts.tolerance):
            return excuse
        by_data = self._positions.may_be_of_data(objective, facts.tolerance, facts.step)
        if not by_data or is_divided_by_a_count(facts, objective):
            return None
        last = window.past[-1].micro_batches if window.past else 1
        return None if is_divided_by_two_ks(facts, objective, last) else not_measured(BY_DATA)

    def _severity(self, facts: StepFacts, objective: Objective, misallocation: float) -> Severity:
        """Information only, too, on a plain mean beside a main loss that is normalised.

        Its author knows the token mean, and may intend another one here. A main loss whose
        micro-batches have equal counts does not show that: its weights are equal anyway. Nor does
        it of a loss that counts the tokens of the main one, or that leaves elements out by the
        data: these have a count in the window, as the tokens of the main loss do.
        """
        main = facts.objectives[0]
        knows = objective is not main and is_fair(facts, main) and _shows_token_mean(main)
        own_count = leaves_out_elements(objective) or counted_by(objective) == counted_by(main)
        if misallocation < self.warning or (knows and not own_count):
            return "info"
        return "error" if misallocation >= self.error else "warning"

    def _report_short_batch(
        self, facts: StepFacts, objective: Objective, share: float, short: ShortBatch
    ) -> Outcome:
        assert short.windows is not None
        moved = objective.ledger.misallocation * share
        of_epoch = moved / short.windows
        steps, element = counted(short.windows, "step"), element_name(objective)
        held = counted(round(short.tokens), element)
        return finding(
            self._severity(facts, objective, of_epoch),
            "A short batch has the weight of a full one",
            f"One micro-batch of step {facts.step} holds {held}, all others hold "
            f"{short.usual:,.0f}, as the last batch of an epoch does. Each of its {element}s "
            f"counts {times(short.relative_weight)} as much as another: {percent(moved)} of the "
            f"weight of the {_whole(facts, objective)} in this step is on the wrong {element}s, "
            f"and {percent(of_epoch)} on average in the {steps} since the last short batch.",
            without_short_batch(facts, objective),
            objective=objective_name(objective, facts.objectives),
            misallocation=round(objective.ledger.misallocation, 6),
            misallocation_recent=round(of_epoch, 6),
            tokens=as_count(short.tokens),
            usual_tokens=as_count(short.usual),
            steps=short.windows,
        )

    def _report(
        self, facts: StepFacts, objective: Objective, share: float, history: tuple[float, ...]
    ) -> Outcome:
        ledger, entries = objective.ledger, objective.ledger.entries
        recent, steps = math.fsum(history) / len(history), len(history)
        name = objective_name(objective, facts.objectives)
        several = len(facts.objectives) > 1
        of_loss = f" of the {name}" if needs_name(facts) else ""
        # of several losses, another one may have been the heaviest with unequal weights before
        alone = not several and steps > 1
        average = f" ({percent(recent)} on average over the last {steps} windows)" if alone else ""
        whole = _whole(facts, objective)
        of_part = "" if whole == name else of_loss
        where, element = _where(entries, facts.tolerance), element_name(objective)
        besides = f", besides those that the loss gives its {element}s"
        besides = besides if objective.weighted_inside else ""
        summary = (
            f"In step {facts.step}, {percent(ledger.misallocation * share)} of the {whole}'s "
            f"weight is on the wrong {element}s{of_part}{average}. "
            f"Weights differ {where}{besides}: "
            f"{_contrast(entries, element, objective.reading.unit, facts.tolerance)}"
        )
        return finding(
            self._severity(facts, objective, recent),
            f"{element.capitalize()} weights{of_loss} differ {where}",
            summary + _ranks_sentence(facts) + _loss_sentence(facts, objective),
            token_mean(facts, objective),
            objective=name,
            misallocation=round(ledger.misallocation, 6),
            misallocation_recent=None if several else round(recent, 6),
            balance=None if facts.factor_unmeasured else round(ledger.balance, 6),
            differ=where,
            tokens=[as_count(e.tokens) for e in entries[:64]],
            relative_weights=[round(e.relative, 4) for e in entries[:64]],
            loss_reported=facts.loss_reported,
            loss_token=_loss_token(facts),
        )


BESIDE_PARTS = (
    "but for parameters beside the cached features, such as a temperature: each backward of the "
    "one loss adds their whole gradient again"
)


def _shows_token_mean(objective: Objective) -> bool:
    """Whether its micro-batches have different counts, so that equal weights are a choice."""
    return len({entry.tokens for entry in objective.ledger.entries}) > 1


def _excused(facts: StepFacts, objectives: list[Objective], excuses: list[Outcome]) -> Outcome:
    """Why the first one is not evaluated; of single micro-batches, with their losses."""
    reason = excuses[0].reason
    if reason != ONE_MICRO_BATCH:
        return excuses[0]
    alone = [o for o, e in zip(objectives, excuses, strict=True) if e.reason == reason]
    return not_applicable(f"{reason}: {', '.join(objective_list(alone, facts.objectives))}")


def _even_weights(
    facts: StepFacts, objectives: list[Objective], excuses: list[Outcome | None]
) -> Outcome:
    """Equal weights: of which objectives, and why not of the others."""
    beside = [BESIDE_PARTS] if has_gradients_beside_parts(facts.applied) else []
    if facts.together is not None:
        together = f"equal weights: {objective_name(facts.together, facts.objectives)}"
        return ok("; ".join([together, *beside]))
    evaluated: dict[str, list[Objective]] = {}  # by what is equal
    excused: dict[str, list[Objective]] = {}  # by the reason
    for objective, excuse in zip(objectives, excuses, strict=True):
        if excuse is None:
            evaluated.setdefault(_besides(objective, facts.tolerance), []).append(objective)
        else:
            excused.setdefault(str(excuse.reason), []).append(objective)
    equal = [
        f"{name}{what}"
        for what, group in evaluated.items()
        for name in objective_list(group, facts.objectives)
    ]
    not_evaluated = [
        f"not evaluated: {name} ({reason})"
        for reason, group in excused.items()
        for name in objective_list(group, facts.objectives)
    ]
    ranks = [facts.missing_ranks] if facts.missing_ranks else []
    stages = [rank for rank, _ in facts.run.earlier_stages]
    if stages:
        ranks.append(f"not evaluated: the gradients of {names(stages).lower()}, without a loss")
    if facts.run.apart:
        others = ", ".join(str(other.rank) for other in facts.run.apart)
        ranks.append(f"not evaluated: ranks {others}, with other data and in another group")
    return ok("; ".join([f"equal weights: {', '.join(equal)}", *not_evaluated, *beside, *ranks]))


def _besides(objective: Objective, tolerance: float) -> str:
    """What is equal, if not the weights of the tokens."""
    if objective.is_of_weighted_means(tolerance):
        weights = "weights" if objective.weighted_inside else "class weights"
        return f" (of micro-batches, each the mean by its own {weights})"
    if objective.is_mean_of_entries:
        return " (of entries: its mean divides by the classes, too)"
    is_weighted = objective.weighted_inside or objective.reading.unit == "loss_weights"
    return " (besides those that the loss gives its elements)" if is_weighted else ""


def _whole(facts: StepFacts, objective: Objective) -> str:
    """What a misallocation is a share of: of the heaviest of several losses, that loss alone."""
    heaviest = len(facts.objectives) > 1 and objective is facts.objectives[0]
    return objective_name(objective, facts.objectives) if heaviest else "gradient"


# by unit: what is compared in micro-batches whose sums of weights differ
_OF_WEIGHTS = {
    "class_weight": (" of a class", "one of this class", "class weights"),
    "loss_weights": (" of a weight", "one of this weight", "weights"),
}


def _contrast(entries: Iterable[Entry], element: str, unit: str, tolerance: float) -> str:
    """The largest weight against the smallest, which may be zero."""
    entries = list(entries)
    heavy = max(entries, key=lambda e: e.relative)
    light = min(entries, key=lambda e: e.relative)
    if not light.relative:
        which = _part(light, entries, element, unit, tolerance)
        return f"the {element}s of {which} have no weight."
    heavy_one, light_one = (_part(e, entries, element, unit, tolerance) for e in (heavy, light))
    if heavy.rank != light.rank:
        heavy_one, light_one = (
            f"{heavy_one} on rank {heavy.rank}",
            f"{light_one} on rank {light.rank}",
        )
    elif heavy_one == light_one and heavy.micro_batch == light.micro_batch:
        heavy_one, light_one = "one loss", "another loss"
    elif heavy_one == light_one:
        heavy_one, light_one = (f"micro-batch {e.micro_batch + 1}" for e in (heavy, light))
    which, one, _ = _OF_WEIGHTS.get(unit, ("", "one", ""))
    article = "an" if element[0] in "eu" else "a"
    return (
        f"{article} {element}{which} in {heavy_one} counts "
        f"{times(heavy.relative / light.relative)} as much as {one} in {light_one}."
    )


def _part(entry: Entry, entries: list[Entry], element: str, unit: str, tolerance: float) -> str:
    """The micro-batch of an entry, by its elements; or its loss, if others there weigh more."""
    of = (entry.rank, entry.micro_batch)
    parts = [e for e in entries if (e.rank, e.micro_batch) == of]
    noun = "micro-batch"
    if _differ([e.relative for e in parts], tolerance):
        noun, parts = "loss", [entry]
    tokens = total(e.tokens for e in parts)
    if unit in _OF_WEIGHTS:
        return f"the {noun} whose {_OF_WEIGHTS[unit][-1]} add up to {significant(tokens)}"
    return f"the {noun} with {counted(round(tokens), element)}"


def _where(entries: Iterable[Entry], tolerance: float) -> str:
    """Between micro-batches, ranks, or both; else between several losses of a micro-batch.

    Ranks differ only on average if all of them give one micro-batch one weight.
    """
    by_rank: dict[int, dict[int, list[Entry]]] = {}
    for entry in (e for e in entries if e.tokens):
        by_rank.setdefault(entry.rank, {}).setdefault(entry.micro_batch, []).append(entry)
    ranks = [[e for part in parts.values() for e in part] for parts in by_rank.values()]
    where = []
    if any(_differ(map(_average, parts.values()), tolerance) for parts in by_rank.values()):
        where.append("between micro-batches")
    indices = {index for parts in by_rank.values() for index in parts}
    alike = where and all(
        all(index in parts for parts in by_rank.values())
        and not _differ((_average(parts[index]) for parts in by_rank.values()), tolerance)
        for index in indices
    )
    if _differ(map(_average, ranks), tolerance) and not alike:
        where.append("between ranks")
    return " and ".join(where) or "between the losses of a micro-batch"


def _average(entries: list[Entry]) -> float:
    """The average weight of an element."""
    return total(e.share for e in entries) / total(e.tokens for e in entries)


def _differ(weights: Iterable[float], tolerance: float) -> bool:
    weights = list(weights)
    return max(weights) > min(weights) * (1 + tolerance)


def _ranks_sentence(facts: StepFacts) -> str:
    missing = facts.missing_ranks
    return f" This holds for the ranks that reported: {missing}." if missing else ""


def _loss_token(facts: StepFacts) -> float | None:
    """The mean loss over all tokens, times the constant that the loss is multiplied by."""
    return loss_of_large_batch(facts.loss_token, facts.objectives, facts.tolerance)


def _loss_sentence(facts: StepFacts, objective: Objective) -> str:
    """The losses, unless the objective is read in another unit, of which the mean is not known, or
    the loop multiplies the gradients of each rank by another number, or a mask leaves out elements
    that its divisor may count."""
    reported, token = facts.loss_reported, _loss_token(facts)
    if objective.reading.unit in ("rows", "weighted_rows", "positions") or may_count_more(
        facts, objective
    ):
        return ""
    by_rank = facts.all_reduce is not None and bool(facts.all_reduce.factors)
    if reported is None or token is None or by_rank:
        return ""
    loss, factor = "The accumulated loss", _factor_after_backward(facts)
    if abs(factor - 1) > facts.tolerance:
        loss += f", times the {significant(factor)} that the loop multiplies the gradients by,"
        reported *= factor
    if significant(reported) == significant(token):
        return ""
    by_class = objective.reading.unit == "class_weight"
    if by_class and any(t.loss_term.reduction != "mean" for t in objective.terms):
        return ""  # the mean by class weights is not known
    by_elements = f"over all {element_name(objective)}s"
    whole = "by the class weights of the window" if by_class else by_elements
    means = f"{significant(reported)}; the mean {whole} is {significant(token)}"
    return f" {loss} is {means}."


def _factor_after_backward(facts: StepFacts) -> float:
    """What the loop multiplies the gradients by after backward; 1 if that is not known."""
    if facts.factor_unmeasured:
        return 1.0
    return facts.shared_factors[facts.lowest_rank] * (facts.scale or 1.0)
