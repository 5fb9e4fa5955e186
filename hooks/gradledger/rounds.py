"""Rounds: every optimizer of the run has stepped once, and no gradient waits for a later step.

Between two rounds no window is open, so that steps may pass there and cut none in two. With one
optimizer every step is a round. Optimizers that share a backward step one after the other; a GAN's
discriminator gets gradients from the generator's loss too, and ends the round when it has stepped.
Where one optimizer steps more often than another, there are no rounds.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradledger.windows import Track


class Rounds:
    """Which optimizers have stepped in this round, and whether in the order of the last one."""

    def __init__(self, tracks: Iterable[Track]) -> None:
        self._tracks = tracks
        self._before: list[Track] = []
        self.stepped: list[Track] = []
        self.ended = False

    def add(self, track: Track) -> None:
        """An optimizer has stepped."""
        if self.ended:
            self._before, self.stepped = self.stepped, []
        if track in self.stepped:  # the round begins anew, after its step before
            self._before, self.stepped = [], self.stepped[self.stepped.index(track) + 1 :]
        self.stepped.append(track)
        alive = {each for each in self._tracks if each.optimizer is not None}
        self.ended = alive == set(self.stepped) and not any(each.micro_batches for each in alive)

    @property
    def as_before(self) -> bool:
        """Whether the same ones have stepped in the same order as in the last round."""
        return self.stepped == self._before[: len(self.stepped)]

    @property
    def begins(self) -> bool:
        """Whether a round that promises to be like the last one has just begun."""
        return len(self.stepped) == 1 and self.as_before
