"""What changed in the window of an alarm: the settings, and the micro-batch that stands out.

An alarm about a symptom (a spike, a divergence, a collapse) is easier to act on with what changed
when it began: a learning rate that jumped, a new loss scale, a smaller batch, a resumed optimizer,
one micro-batch whose loss is far above the others. This module states such facts. It does not state
that they are the cause.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, ClassVar

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules import outliers
from gradledger_monitor.rules.balance.patterns import Closed, forms
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.rules.state import declare

BEFORE = 3  # windows before the alarm: a loss shows a change of the learning rate one step later
CHANGED = 1.5  # factor from which a setting has changed: schedules move by less in such a time
RESUMED = 50  # steps before it in which a resume is named: a wrong one may show later
TOKENS_CHANGED = 4.0  # the same of the tokens of a window, which differ in most runs

NOTHING = "Nothing that is recorded changed at step {step:,}"  # and what that is


class Onset:
    """The step at which an alarm began, and what changed there. A part of the state of rules."""

    state: ClassVar[Mapping[str, Any]] = declare(
        step=int, changed=dict[str, Any], usual=float, departure=dict[str, Any]
    )

    def __init__(self) -> None:
        self.step = 0
        self.changed: dict[str, Any] = {}
        self.usual = 0.0  # size of the loss before it left its range
        # what changed where the loss left its range, until it is back
        self.departure: dict[str, Any] = {}

    def watch(self, window: Window) -> None:
        """The alarm has not begun: note what changed where the loss leaves its range.

        One batch may drive the parameters so far that the loss overflows some steps later, where
        nothing stands out any more.
        """
        loss, past = window.facts.loss_reported, window.past
        if loss is None or not math.isfinite(loss):
            return
        if self.departure and abs(loss) <= outliers.TIMES_BEFORE * self.usual:
            self.departure = {}
        before = past[-1].loss if past else None
        if self.departure or before is None or abs(loss) <= outliers.TIMES_BEFORE * abs(before):
            return
        usual = outliers.usual_before(abs(loss), past)
        if usual is not None:
            self.usual, self.departure = abs(usual), changed_at(window)

    def note(self, window: Window, within: int = BEFORE) -> None:
        """It begins in this window; ``within`` is how many windows before may show a change."""
        self.step = window.facts.step
        self.changed = self.departure or changed_at(window, within)

    @property
    def text(self) -> str:
        """The changes as sentences, with a space before them; "" if there are none."""
        sentence = sentence_of(self.changed)
        return f" {sentence}" if sentence else ""

    @property
    def evidence(self) -> dict[str, Any]:
        """For the evidence of a finding: the step is in it, also if nothing changed."""
        return {"changed": self.changed} if self.step else {}


def changed_at(window: Window, within: int = BEFORE) -> dict[str, Any]:
    """What changed up to a window, and which of its micro-batches stands out."""
    changed: dict[str, Any] = {"step": window.facts.step}
    settings = {name: [step, was, now] for name, step, was, now in _settings(window, within)}
    if settings:
        changed["settings"] = settings
    resumed = _resumed(window)
    if resumed is not None:
        changed["resumed"] = list(resumed)
    outlier = outliers.outlier_of(window.facts, window.past)
    if outlier is not None:
        changed["micro_batch"] = outlier
    elif (apart := outliers.window_of(window.facts, window.past)) is not None:
        changed["window"] = apart
    changed["compared"] = list(_compared(window))
    return changed


def sentence_of(changed: Mapping[str, Any]) -> str:
    """``At step 61, the learning rate went from 0.1 (step 60) to 50.``; "" if nothing changed.

    It had gone to 50 if that was at one of the steps in between.
    """
    parts = [
        f"the {name} {'went' if step + 1 == changed['step'] else 'had gone'} from "
        f"{significant(was)} (step {step:,}) to {significant(now)}"
        for name, (step, was, now) in changed.get("settings", {}).items()
    ]
    step, resumed = changed.get("resumed", (0, ""))
    parts += [resumed] if step == changed["step"] else []
    parts += [outliers.sentence(changed["micro_batch"])] if "micro_batch" in changed else []
    parts += [outliers.sentence_of_window(changed["window"])] if "window" in changed else []
    sentences = [f"At step {changed['step']:,}, {'; '.join(parts)}."] if parts else []
    if resumed and step != changed["step"]:
        sentences.append(f"At step {step:,}, {resumed}.")
    return " ".join(sentences)


def report_of(changed: Mapping[str, Any]) -> str:
    """The same for the beginning of a report, which also states that nothing changed."""
    if not changed:
        return ""
    sentence = sentence_of(changed)
    if sentence:
        return sentence
    compared = changed.get("compared") or []
    what = f": {', '.join(compared)}" if compared else ""
    return f"{NOTHING.format(step=changed['step'])}{what}. No micro-batch stands out."


def _settings(window: Window, within: int) -> Iterator[tuple[str, int, float, float]]:
    """Settings that differ from those of the latest window that had another value: name, that
    window's step, its value, the value now."""
    facts, past = window.facts, list(window.past)[-within:]
    pairs = (
        ("learning rate", number(facts.record.lr), [(c.step, c.lr) for c in past]),
        ("loss scale", facts.scale, [(c.step, c.scale) for c in past]),
        ("batch in samples", facts.samples, [(c.step, c.samples) for c in past]),
    )
    for name, now, values in pairs:
        for step, was in reversed(values):
            if was and now and not 1 / CHANGED < now / was < CHANGED:
                yield name, step, was, now
                break
    yield from _tokens(facts, window.past)


def _tokens(facts: StepFacts, past: Sequence[Closed]) -> Iterator[tuple[str, int, float, float]]:
    """The tokens of the window, against the median of those before that have the same losses."""
    losses = tuple(sorted(forms(facts.terms)))
    counts = [c.batch_tokens for c in past if c.batch_tokens and c.losses == losses]
    now = facts.batch_tokens
    if not counts or not now:
        return
    usual = median(counts)
    if not 1 / TOKENS_CHANGED < now / usual < TOKENS_CHANGED:
        yield "batch in tokens", past[-1].step, usual, now


def _resumed(window: Window) -> tuple[int, str] | None:
    """The latest resume up to this window: the step, and what is new there."""
    since = window.facts.step - RESUMED
    windows = [*(closed for closed in window.past if closed.step >= since), window.closed()]
    for earlier, closed in zip(reversed([None, *windows[:-1]]), reversed(windows), strict=True):
        if closed.resumed:
            return closed.step, closed.resumed
        if earlier is not None and 0 < closed.first < earlier.number:
            return closed.step, "the process was started again"
    return None


def _compared(window: Window) -> Iterator[str]:
    """The settings that are known, of this window and of one before."""
    facts, past = window.facts, window.past
    if number(facts.record.lr) is not None and any(c.lr is not None for c in past):
        yield "learning rate"
    if facts.scale is not None and any(c.scale is not None for c in past):
        yield "loss scale"
    if facts.samples is not None and any(c.samples is not None for c in past):
        yield "batch size"
