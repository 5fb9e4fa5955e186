"""loss.on_some_ranks"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.loss.common import OPPOSED, may_be_opposed
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.objective_names import objective_name
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

MODEL_PARALLEL = not_applicable("the ranks hold parts of one model")
UNKNOWN = not_applicable("the weights of the losses are not known")
NOT_AVERAGED = not_applicable("the gradients of the ranks are not averaged")

FIX = """\
loss = main_loss + auxiliary_loss  # on every rank, each on its part of the data
# or, if one rank computes the term for all on purpose:
if rank == 0:
    loss = loss + auxiliary_loss * dist.get_world_size()"""


class OnSomeRanks(Rule):
    """Only some of the ranks have a term of the loss, and the gradients of all are averaged.

    **What it sees**

    One rank has all losses that another one has, and a further one, which the other never has: at
    10 steps or more, and at a quarter of all. The ranks' gradients are averaged, so that they
    contain the term divided by the number of ranks.

    **Why it matters**

    DDP divides by all ranks, also where only one computes the term: it has 1/R of the weight that
    the script gives it, and less on more devices. The reported loss of that rank contains it in
    full.

    **What to do**

    Compute the term on every rank. If one rank computes it for all on purpose, multiply it by the
    number of ranks; if its coefficient already contains that number, acknowledge the finding.

    **When it is silent**

    The term has a balance of 1 or more; the gradients are summed, not averaged; the ranks have
    different losses, such as stages or experts; a rank has no data; each rank has the term at some
    steps; several optimizers train on different losses. The term is of the same kind as another
    loss of that rank, and has the same coefficient: the two are then one objective.

    **Incidents**

    textbook (``if rank == 0: loss = loss + auxiliary``)
    """

    points_at = ("loss", "backward")
    by_window = False
    needed = Parameter(10, "steps with the term on each of these ranks")
    share = Parameter(0.25, "of the steps, on each of these ranks", most=1.0)

    precondition = SEVERAL_RANKS
    state = declare(_windows=int, _steps=dict[str, dict[int, int]])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._windows = 0  # whose losses are known on all ranks
        self._steps: dict[str, dict[int, int]] = {}  # by loss and rank, those with the loss

    def evaluate(self, window: Window) -> Outcome:
        """The losses of each rank, where the average of all gradients is known."""
        facts = window.facts
        unmet = _unmet(facts)
        if unmet is not None:
            return unmet
        losses = _losses_by_rank(facts)
        if not all(losses.values()):
            return OK  # a rank without data
        self._windows += 1
        for rank, names in losses.items():
            for name in names:
                steps = self._steps.setdefault(name, {})
                steps[rank] = steps.get(rank, 0) + 1
        for objective in facts.objectives:
            if _is_further(objective.name, losses, facts) and _has_part_of_its_weight(
                objective, facts
            ):
                return self._outcome(objective, facts)
        return OK

    def _outcome(self, objective: Objective, facts: StepFacts) -> Outcome:
        steps = self._steps[objective.name]
        if any(term.rank not in steps for term in objective.terms):
            return OK
        with_term = sorted(steps)
        least = min(steps.values())
        if len(with_term) == len(facts.records):
            return OK  # each rank has it at some steps
        if least < self.needed:
            return not_measured(
                f"needs {self.needed} steps with a loss that only some ranks have, has {least}"
            )
        if least < self.share * self._windows:
            return OK
        return self._report(objective, facts, with_term, least)

    def _report(
        self, objective: Objective, facts: StepFacts, with_term: list[int], least: int
    ) -> Outcome:
        ranks, share = facts.run.world_size, least / self._windows
        name = objective_name(objective, facts.objectives)
        shown = ", ".join(map(str, with_term[:8])) + (" ..." if len(with_term) > 8 else "")
        where = f"rank {shown}" if len(with_term) == 1 else f"ranks {shown}"
        return finding(
            "warning",
            "Only some ranks have a term of the loss",
            f"Only {where} of {counted(ranks, 'rank')} had the loss {name}, at {percent(share)} of "
            f"{counted(self._windows, 'step')}. The gradients are averaged over all ranks, so they "
            f"contain {len(with_term)}/{ranks} of the weight that the script gives it: its balance "
            f"is {significant(objective.ledger.balance)}. Unless its coefficient contains the "
            "number of ranks, compute it on every rank.",
            FIX,
            loss=name,
            ranks=with_term[:64],
            of_ranks=ranks,
            share_of_steps=round(share, 6),
            balance=objective.ledger.balance,
        )


def _unmet(facts: StepFacts) -> Outcome | None:
    run = facts.run
    if facts.missing_ranks:
        return not_measured(facts.missing_ranks)
    if run.earlier_stages or run.parts or run.tensor_peers:
        return MODEL_PARALLEL
    if may_be_opposed(facts):
        return OPPOSED
    if not facts.averaged:
        return NOT_AVERAGED
    # the rules on the reduction state why, where it should be known
    return UNKNOWN if facts.unmeasured or facts.factor_unmeasured else None


def _losses_by_rank(facts: StepFacts) -> dict[int, set[str]]:
    losses: dict[int, set[str]] = {rank: set() for rank in facts.records}
    for term in facts.terms:
        losses[term.rank].add(term.term)
    return losses


def _is_further(name: str, losses: Mapping[int, set[str]], facts: StepFacts) -> bool:
    """Whether some ranks have this loss and all that the other ranks have, in more terms."""
    with_it = [rank for rank, names in losses.items() if name in names]
    without = [rank for rank, names in losses.items() if name not in names]
    most = max((_number_of_terms(facts, rank) for rank in without), default=0)
    return bool(without) and all(
        losses[rank].issuperset(losses[other]) and _number_of_terms(facts, rank) > most
        for rank in with_it
        for other in without
    )


def _number_of_terms(facts: StepFacts, rank: int) -> int:
    """Of a micro-batch: the most that one has, also of terms that count nothing."""
    return max((len(m.terms) for _, m in facts.applied_by_rank[rank]), default=0)


def _has_part_of_its_weight(objective: Objective, facts: StepFacts) -> bool:
    """Whether the average divided the term, and no coefficient makes up for it visibly."""
    intended = facts.intended or 1.0
    limit = (1 + facts.tolerance) / facts.run.world_size
    divided = all(term.own_factor <= limit for term in objective.terms)
    return divided and objective.ledger.balance < intended * (1 - facts.tolerance)
