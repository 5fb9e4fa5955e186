"""Rounds: the order in which the optimizers of a run step, repeated again and again.

Steps may only be skipped between two moments at which no window is open; otherwise the skip would
cut a window in two. A round ends at such a moment: every optimizer has stepped at least once since
the last round, and no optimizer has gradients that wait for a later step. With one optimizer,
every step is a round.

Example: a GAN that steps the discriminator D twice for each step of the generator G. The backward
of G's loss passes through D, so it also adds gradients to D:

    step                    D   D   G   D   D   G   D   D   G   D
    open window afterwards          D           D           D
    round ends                          ^           ^           ^

After the third step, both optimizers have stepped, but the window of D holds a micro-batch: the
round goes on until D has stepped once more. The first round is D D G D; every later one is D G D.
The second round of D G D repeats the first one, so rounds may be skipped after it.

If the loop detaches D while it trains G, G's backward leaves D's window closed, and the rounds are
D D G, D D G.

A round has a number if some optimizer steps exactly once in it, its *leader* (G in both cases): the
number of the leader's step. Ranks number their rounds alike, so they skip the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradledger.capture.windows import OptimizerWindow

MAX_STEPS = 64  # in a round; if the order repeats more slowly, every step is sampled


class OptimizerRounds:
    """The round that is being sampled, and the one before it."""

    def __init__(self, windows: Iterable[OptimizerWindow]) -> None:
        self._windows = windows
        self._last: list[OptimizerWindow] = []
        self._current: list[OptimizerWindow] = []
        self.ended = False

    def add(self, window: OptimizerWindow) -> None:
        """An optimizer has stepped."""
        if self.ended:
            self._last, self._current = self._current, []
        elif len(self._current) == MAX_STEPS:
            self.reset()
        self._current.append(window)
        alive = {w for w in self._windows if w.optimizer is not None}
        self.ended = alive <= set(self._current) and not any(w.micro_batches for w in alive)

    def reset(self) -> None:
        """Forget the order: the optimizers do not step in it any more."""
        self._last, self._current, self.ended = [], [], False

    @property
    def matches_last(self) -> bool:
        """Whether the round so far has the order of the last one, and the last one has a leader."""
        same_order = self._current == self._last[: len(self._current)]
        return same_order and _leader(self._last) is not None

    @property
    def repeats_last(self) -> bool:
        """Whether a round has just ended that equals the last one."""
        return self.ended and self.matches_last and len(self._current) == len(self._last)

    @property
    def begun_number(self) -> int | None:
        """The number of a round at its first step, if it is expected to repeat the last one.

        None at any other step, and if the last round has no leader.
        """
        leader = _leader(self._last)
        if leader is None or len(self._current) != 1 or not self.matches_last:
            return None
        return leader.steps + (leader not in self._current)

    def next_sampled_step(self, window: OptimizerWindow, skipped_rounds: int) -> int | None:
        """The optimizer's next sampled step, if ``skipped_rounds`` follow this round.

        None if the optimizer steps once more in this round.
        """
        if window in self._last[len(self._current) :]:
            return None
        return window.steps + 1 + skipped_rounds * self._last.count(window)

    def skip(self, rounds: int) -> SkippedRounds:
        """The next rounds, which are skipped, in the order of the one that has ended."""
        return SkippedRounds(self._current, rounds)


class SkippedRounds:
    """Rounds whose steps are skipped. It follows the order, to end the skip at a round's end."""

    def __init__(self, order: list[OptimizerWindow], rounds: int) -> None:
        self._order = order
        self._leader = _leader(order)
        self._index = 0  # in the order, of the next step
        self.left = rounds
        self.broken = False  # the last step was not the one that the order expects

    def add(self, window: OptimizerWindow) -> None:
        """An optimizer has stepped."""
        self.broken = window is not self._order[self._index]
        self._index = (self._index + 1) % len(self._order)
        if not self._index:
            self.left -= 1

    @property
    def ended_number(self) -> int | None:
        """The number of the round that ended with the last step; None inside a round."""
        return self._leader.steps if self._leader and not self._index else None


def _leader(order: list[OptimizerWindow]) -> OptimizerWindow | None:
    """An optimizer that steps exactly once in a round."""
    return next((window for window in order if order.count(window) == 1), None)
