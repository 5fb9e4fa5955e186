"""Ranks that average or exchange their models: local SGD, DiLoCo, gossip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.findings import Outcome, Status, Withdrawal
from gradledger_monitor.model.ranks.exchange import Exchange
from gradledger_monitor.model.ranks.mixtures import centre_moves, changes_of, is_outer_step
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.rules.state import declare

SHOWS_A_PERIOD = 2  # times in which models became equal

LOCAL_SGD = "local SGD: the ranks average their parameters from time to time"
AT_THE_END = "local SGD: the ranks average their parameters after the last step"
AVERAGED = "the ranks average their parameters from time to time"
MAYBE_AT_THE_END = (
    "the ranks step on their own gradients, and all of their models are equal at the end, after "
    "steps that were not sampled: whether they are averaged, or one of them is copied, is not known"
)
NOT_SAMPLED = "the last steps were not sampled"
NOT_AVERAGED = "what changed the models after the last step is no average"
EQUALISED = "the ranks make their parameters equal from time to time"
MAYBE_OUTER_STEPS = (
    "the ranks step on their own gradients, and several times all of their models became one that "
    "is neither exactly their average nor that of one rank: whether an outer step or an average in "
    "half precision did this, or a checkpoint that all of them load, is not known"
)
MIXED = (
    "the ranks step on their own gradients, and exchange parts of their models: whether these mix "
    "over all ranks, as in gossip or elastic averaging, is not known"
)


class ModelAverages:
    """What the loop makes of the ranks' models between steps: local SGD, or DiLoCo.

    A copy of one rank's model on all of them, as before an evaluation, is no average. Equal models
    that are no average either come of an outer step, or of a checkpoint that all ranks load. The
    steps of SGD are recognised; those of other outer optimizers are not.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        equal=bool,
        mixed=bool,
        shown=bool,
        equalised=int,
        earlier=list[list[float]],
        centres=list[float | None],
    )

    def __init__(self) -> None:
        self.equal = False  # the models have become equal
        self.mixed = False  # ranks have exchanged theirs, or parts of them
        self.shown = False  # they became an average, or a weighted one
        self.earlier: list[list[float]] = []  # of the last equal models: see ``is_outer_step``
        self.centres: list[float | None] = []  # where each value was last drawn to
        self.equalised = 0  # times in which they became equal, and neither averages nor copies

    def add(self, facts: StepFacts) -> None:
        """Take in what happened to the models before this step."""
        exchange = facts.exchange
        if exchange is None:
            records = facts.records.values()
            averager = any(r.averaging for r in records) and all(r.models is None for r in records)
            self.equal |= averager
            self.shown |= averager
            return
        # In gossip, what one rank has changed alone may be equal on all once it has gone round.
        self.equal |= exchange.equal and exchange.mixture is not None
        before, (row, *_) = exchange.before, exchange.after
        if exchange.equal and exchange.whole:
            outer = exchange.mixture == "other" and is_outer_step(before, row, self.earlier)
            self.shown |= exchange.mixture == "average" or outer
            self.equalised += exchange.mixture == "other"
            self.earlier = changes_of(before, row, self.earlier)
        elif exchange.mixture != "copy":
            self.mixed |= exchange.keeps_mean or self._is_drawn(exchange)

    def _is_drawn(self, exchange: Exchange) -> bool:
        """Whether the ranks' models are drawn to a centre that moves: they exchange it."""
        if exchange.drawn is None:
            return False
        centres = exchange.drawn.centres
        moves = centre_moves(self.centres, exchange.drawn, exchange.before)
        # fragments of the models are exchanged at different steps
        last = self.centres if len(self.centres) == len(centres) else [None] * len(centres)
        pairs = zip(centres, last, strict=True)
        self.centres = [then if centre is None else centre for centre, then in pairs]
        return moves

    def after_the_last_step(self, window: Window, apart: bool, other: bool) -> Outcome:
        """Take in what happened to the models then: an average withdraws as an earlier one does.

        Steps that were not sampled change the models, too: no average can be recognised after them.
        """
        facts, exchange = window.facts, window.facts.exchange
        if window.past and window.past[-1].step < facts.step - 1:
            equal = exchange is not None and exchange.equal and exchange.whole
            if equal and not (self.shown or other):
                return Withdrawal("not_measured", MAYBE_AT_THE_END)
            return Outcome("not_applicable", NOT_SAMPLED)
        self.add(facts)
        if not self.shown:
            return Outcome("not_applicable", NOT_AVERAGED)
        return self.outcome("ok", AT_THE_END, apart, other)

    @property
    def mixes(self) -> bool:
        """Whether something besides the optimizers has made the models more alike."""
        return self.equal or self.mixed

    def outcome(
        self, status: Status, reason: str, apart: bool = True, other: bool = False
    ) -> Outcome:
        """Once the models have been mixed; that they became equal once withdraws nothing.

        ``apart``: the rule has reported that the ranks train apart. ``other``: it has reported
        something else, which averages of models do not disprove. A finding from before a restart
        without the rule's state is neither; later steps repeat it if it is of the other kind.
        """
        if self.shown:
            return Outcome(status, reason) if other else Withdrawal(status, reason)
        if not other and (self.mixed or (apart and self.equalised >= SHOWS_A_PERIOD)):
            return Withdrawal("not_measured", MIXED if self.mixed else MAYBE_OUTER_STEPS)
        return Outcome(status, EQUALISED)
