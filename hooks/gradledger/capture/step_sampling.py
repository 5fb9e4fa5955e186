"""Which steps are watched, so that to watch them takes a small share of the run's time.

The first steps are all watched: what is wrong with a loop shows there. From then on the hooks
count what they take. Where that is more than their share, which is so for steps of milliseconds
only, they watch a few steps in a row and let the next ones pass, as a sampling profiler does.

A burst comes at least every half a minute or so, whatever it costs; to let a step pass takes some
microseconds. Watched steps begin at multiples of a power of two, so that ranks, which each decide
for themselves, watch the same ones.
"""

from __future__ import annotations

from time import perf_counter

SHARE = 0.0025  # of the training thread's time
WHOLE = 256  # steps at the start that are all watched
BURST = 16  # steps in a row that are watched later on
LONGEST = 4096  # steps from one burst to the next
LONGEST_SECONDS = 30.0  # without a look: a loop may become slower, and silence looks like a stall


class Pace:
    """Counts what the hooks take of the training thread, and says which step they watch next."""

    def __init__(
        self,
        share: float | None,  # None: every step is watched
        whole: int = WHOLE,
        burst: int = BURST,
        longest: int = LONGEST,
    ) -> None:
        self._share = share
        self._whole, self._burst, self._longest = whole, burst, longest
        self.seconds = 0.0  # taken by the hooks since the last decision
        self._decided = perf_counter()
        self._stopped = self._decided
        self._step = 0

    @property
    def skips(self) -> bool:
        """Whether some steps may be skipped."""
        return self._share is not None

    def stop(self) -> None:
        """The hooks are taken out: what runs now is not training."""
        self._stopped = perf_counter()

    def go_on(self) -> None:
        """They are put back."""
        self._decided += perf_counter() - self._stopped

    def next_after(self, step: int) -> int:
        """The step to watch after this one, which was watched: the next, or a later one."""
        if self._share is None or step < self._whole or step % self._burst:
            if step == self._whole - self._burst:
                self._begin_anew(step)
            return step + 1
        now = perf_counter()
        usual = (now - self._decided) / max(1, step - self._step)
        period = self._period(self.seconds, usual * self._share)
        self._begin_anew(step)
        return -(-step // period) * period + 1

    def is_overdue(self, step: int) -> bool:
        """Whether too much time has passed since the last decision to let more steps pass."""
        return step % self._burst == 0 and perf_counter() - self._decided > LONGEST_SECONDS

    def _begin_anew(self, step: int) -> None:
        self.seconds, self._step, self._decided = 0.0, step, perf_counter()

    def _period(self, seconds: float, allowed: float) -> int:
        """Steps of which one burst may be watched, where each may cost so many seconds."""
        period = self._burst
        while period < self._longest and seconds > allowed * period:
            period *= 2
        return period
