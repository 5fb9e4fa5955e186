"""What changed in the window of an alarm: the settings, and the micro-batch that stands out.

An alarm about a symptom (a spike, a divergence, a collapse) is easier to act on with what changed
when it began: a learning rate that jumped, a new loss scale, a smaller batch, a resumed optimizer,
one micro-batch whose loss is far above the others. This module states such facts. It does not state
that they are the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, ClassVar

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules import outliers
from gradledger_monitor.rules.balance.patterns import Closed
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import Window, counted
from gradledger_monitor.rules.state import declare

BEFORE = 3  # windows before the alarm: a loss shows a change of the learning rate one step later
CHANGED = 1.5  # factor from which a setting has changed: schedules move by less in such a time
TOKENS_CHANGED = 4.0  # the same of the tokens of a window, which differ in most runs

NOTHING = "Nothing that is recorded changed at step {step:,}"  # and what that is


class Onset:
    """The step at which an alarm began, and what changed there. A part of the state of rules."""

    state: ClassVar[Mapping[str, Any]] = declare(step=int, changed=dict[str, Any])

    def __init__(self) -> None:
        self.step = 0
        self.changed: dict[str, Any] = {}

    def note(self, window: Window, within: int = BEFORE) -> None:
        """It begins in this window; ``within`` is how many windows before may show a change."""
        self.step = window.facts.step
        self.changed = changed_at(window, within)

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
    if resumed:
        changed["resumed"] = resumed
    outlier = outliers.outlier_of(window.facts, window.past)
    if outlier is not None:
        changed["micro_batch"] = outlier
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
    parts += [changed["resumed"]] if "resumed" in changed else []
    parts += [outliers.sentence(changed["micro_batch"])] if "micro_batch" in changed else []
    return f"At step {changed['step']:,}, {'; '.join(parts)}." if parts else ""


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
    """The tokens of the window, against the median of those before."""
    counts = [c.tokens for c in past if c.tokens]
    now = facts.batch_tokens
    if not counts or not now:
        return
    usual = median(counts)
    if not 1 / TOKENS_CHANGED < now / usual < TOKENS_CHANGED:
        yield "batch in tokens", past[-1].step, usual, now


def _resumed(window: Window) -> str:
    """Whether the script resumed shortly before: an optimizer or a process that is new."""
    facts, record = window.facts, window.facts.record
    if facts.own_calls("load_state"):
        return "the state of the optimizer was loaded"
    if record.replaced is not None:
        steps = counted(record.replaced.steps, "step")
        return f"this optimizer takes over parameters that another one had trained for {steps}"
    first = record.micro_batches[0].number if record.micro_batches else 0
    if window.past and 0 < first < window.past[-1].number:
        return "the process was started again"
    return ""


def _compared(window: Window) -> Iterator[str]:
    """The settings that are known, of this window and of one before."""
    facts, past = window.facts, window.past
    if number(facts.record.lr) is not None and any(c.lr is not None for c in past):
        yield "learning rate"
    if facts.scale is not None and any(c.scale is not None for c in past):
        yield "loss scale"
    if facts.samples is not None and any(c.samples is not None for c in past):
        yield "batch size"
