"""Rounds: the order in which the optimizers of a run step, again and again.

A round ends when each has stepped and no gradient waits for a later step: between two rounds no
window is open, so that steps may pass there and cut none in two. With one optimizer every step is
a round. Optimizers that share a backward step one after the other; a critic may step five times for
one step of the actor. A GAN's discriminator gets gradients from the generator's loss, too, and ends
the round when it has stepped next.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradledger.capture.windows import Track

LONGEST = 64  # steps; in an order that is longer, every step is watched


class Rounds:
    """The round that is watched now, beside the last one."""

    def __init__(self, tracks: Iterable[Track]) -> None:
        self._tracks = tracks
        self._before: list[Track] = []
        self._stepped: list[Track] = []
        self.ended = False

    def add(self, track: Track) -> None:
        """An optimizer has stepped."""
        if self.ended:
            self._before, self._stepped = self._stepped, []
        elif len(self._stepped) == LONGEST:
            self.forget()
        self._stepped.append(track)
        alive = {each for each in self._tracks if each.optimizer is not None}
        self.ended = alive <= set(self._stepped) and not any(each.micro_batches for each in alive)

    def forget(self) -> None:
        """The order is not the one that was known."""
        self._before, self._stepped, self.ended = [], [], False

    @property
    def as_before(self) -> bool:
        """Whether the same ones have stepped in the same order as in the last round, which was one
        that can be numbered."""
        in_order = self._stepped == self._before[: len(self._stepped)]
        return in_order and _once(self._before) is not None

    @property
    def repeated(self) -> bool:
        """Whether a round has just ended that was like the last one."""
        return self.ended and self.as_before and len(self._stepped) == len(self._before)

    @property
    def begins(self) -> int | None:
        """The number of a round that promises to be like the last one and has just begun.

        It is that of the step which some optimizer takes once a round; None where none does.
        """
        leader = _once(self._before)
        if leader is None or len(self._stepped) != 1 or not self.as_before:
            return None
        return leader.steps + (leader not in self._stepped)

    def next_of(self, track: Track, rounds: int) -> int | None:
        """The step after the one that it has just taken, if so many rounds pass after this one;
        None where that is in this round."""
        if track in self._before[len(self._stepped) :]:
            return None
        return track.steps + 1 + rounds * self._before.count(track)

    def rest(self, rounds: int) -> Rest:
        """The rounds that pass from now on, in the order of the one that has ended."""
        return Rest(self._stepped, rounds)


class Rest:
    """Rounds that only pass."""

    def __init__(self, order: list[Track], rounds: int) -> None:
        self._order = order
        self._leader = _once(order)
        self._place = 0
        self.left = rounds
        self.broken = False

    def add(self, track: Track) -> None:
        """An optimizer has stepped, in its turn or not."""
        self.broken = track is not self._order[self._place]
        self._place = (self._place + 1) % len(self._order)
        if not self._place:
            self.left -= 1

    @property
    def number(self) -> int | None:
        """Of the round that has ended with the last step; None in the middle of one."""
        return self._leader.steps if self._leader and not self._place else None


def _once(order: list[Track]) -> Track | None:
    """Who steps once in a round."""
    return next((track for track in order if order.count(track) == 1), None)
