"""Samples steps, so that the hooks take a small share of the run's time.

The first ``FIRST_STEPS`` steps are all sampled, because most faults of a loop show there. After
that, the sampler measures what the hooks cost. If they exceed their share, which happens only with
steps of milliseconds, they sample a burst of steps in a row and skip the steps up to the next
burst, as a sampling profiler does. A skipped step costs a few microseconds.

Example: steps take 1 ms and sampling one takes 25 us, 2.5% instead of 0.25%. A burst of 16 steps
then begins every 256 steps: 16 * 25 us = 0.16% of 256 ms.

The period between bursts is ``BURST`` times a power of two, and a burst begins right after a
multiple of the period. Ranks decide independently; the bursts of a longer period are also bursts
of every shorter one, so the ranks have sampled steps in common. A burst begins at least about
every 30 seconds, at any cost.
"""

from __future__ import annotations

from time import perf_counter

OVERHEAD_SHARE = 0.0025  # of the training thread's time
FIRST_STEPS = 256  # steps at the start, all sampled
BURST = 16  # steps in a row that are sampled later
LONGEST_PERIOD = 4096  # steps from the start of one burst to the start of the next
LONGEST_SKIP_SECONDS = 30.0  # a loop may become slower, and silence looks like a stall


class StepSampler:
    """Measures what the hooks take of the training thread, and chooses the next sampled step."""

    def __init__(
        self,
        share: float | None,  # None: every step is sampled
        first_steps: int = FIRST_STEPS,
        burst: int = BURST,
        longest_period: int = LONGEST_PERIOD,
    ) -> None:
        self._share = share
        self._first_steps, self._burst = first_steps, burst
        self._longest_period = longest_period
        self.hook_seconds = 0.0  # taken by the hooks since the last decision
        self._decided_at = perf_counter()
        self._stopped_at = self._decided_at
        self._decided_step = 0

    @property
    def may_skip(self) -> bool:
        """Whether steps may be skipped."""
        return self._share is not None

    def stop_clock(self) -> None:
        """The hooks are removed: the time that passes now is not training time."""
        self._stopped_at = perf_counter()

    def start_clock(self) -> None:
        """The hooks are installed, for the first time or again."""
        self._decided_at += perf_counter() - self._stopped_at

    def choose_next(self, step: int) -> int:
        """The step to sample after ``step``, which was sampled: the next one, or a later one."""
        if self._share is None or step < self._first_steps or step % self._burst:
            if step == self._first_steps - self._burst:
                self._begin_measurement(step)  # the steps before it include warm-up
            return step + 1
        seconds_per_step = (perf_counter() - self._decided_at) / max(1, step - self._decided_step)
        period = self._period(self.hook_seconds, seconds_per_step * self._share)
        self._begin_measurement(step)
        return -(-step // period) * period + 1  # right after the next multiple of the period

    def is_overdue(self, step: int) -> bool:
        """Whether too much time has passed since the last decision to skip more steps."""
        passed = perf_counter() - self._decided_at
        return step % self._burst == 0 and passed > LONGEST_SKIP_SECONDS

    def _begin_measurement(self, step: int) -> None:
        self.hook_seconds, self._decided_step, self._decided_at = 0.0, step, perf_counter()

    def _period(self, burst_seconds: float, allowed_per_step: float) -> int:
        """The shortest period, in steps, over which one burst costs no more than allowed."""
        period = self._burst
        while period < self._longest_period and burst_seconds > allowed_per_step * period:
            period *= 2
        return period
