"""What an alarm states of the window in which it began."""

from __future__ import annotations

import math
from typing import Any

from gradledger.records import Event, MicroBatch, Replaced, Resumed, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.circumstances import Onset, changed_at, report_of, sentence_of
from gradledger_monitor.rules.rule import Window
from helpers.facts import facts, record, term


def step(number: int, *losses: float, samples: int = 8, **more: Any) -> StepRecord:
    """A window of as many micro-batches as losses."""
    terms = [term(10, 1 / 10, rows=samples // len(losses)) for _ in losses]
    window = record(terms, number, **more)
    for micro_batch, loss in zip(window.micro_batches, losses, strict=True):
        micro_batch.loss, micro_batch.number = loss, 10 * number + micro_batch.number
    return window


def changed(*windows: StepRecord | StepFacts) -> dict[str, Any]:
    """What changed at the last of these."""
    past: list[Any] = []
    window: Window | None = None
    for each in windows:
        known = each if isinstance(each, StepFacts) else facts(each)
        window = Window(known, list(past))
        past.append(window.closed())
    assert window is not None
    return changed_at(window)


def sentence(*windows: StepRecord | StepFacts) -> str:
    return sentence_of(changed(*windows))


def watched(*windows: StepRecord) -> str:
    """What an alarm at the last of these states, which watched those before."""
    past: list[Any] = []
    onset = Onset()
    for each in windows:
        window = Window(facts(each), list(past))
        past.append(window.closed())
        if each is windows[-1]:
            onset.note(window)
        else:
            onset.watch(window)
    return onset.text.strip()


CALM = [step(number, 1.0) for number in range(1, 7)]


def test_nothing_that_changed_is_a_statement_of_what_was_compared() -> None:
    assert sentence(*CALM) == ""
    assert report_of(changed(*CALM)) == (
        "Nothing that is recorded changed at step 6: learning rate, batch size. No micro-batch "
        "stands out."
    )
    assert report_of({}) == ""


def test_a_setting_is_compared_with_the_latest_window_that_had_another_value() -> None:
    jump = [step(7, 1.0, lr=10.0), step(8, 1.0, lr=10.0)]
    assert sentence(*CALM, jump[0]) == "At step 7, the learning rate went from 0.1 (step 6) to 10."
    late = "At step 8, the learning rate had gone from 0.1 (step 6) to 10."
    assert sentence(*CALM, *jump) == late
    assert sentence(*CALM, *[step(n, 1.0, lr=10.0) for n in range(7, 12)]) == ""  # long ago


def test_a_micro_batch_far_above_the_others_is_named_with_its_rank() -> None:
    two = facts(step(7, 1.0, 1.0), step(7, 1.0, 40.0))
    assert sentence(*CALM, two).endswith(
        "micro-batch 2 of 2 of rank 1 has a loss of 40 over 10 elements, where the others have 1."
    )
    alone = sentence(*CALM, step(7, 40.0))
    assert alone == (
        "At step 7, the batch has a loss of 40 over 10 elements, where those before had 1."
    )
    assert sentence(*CALM, step(7, 9.0)) == ""
    assert sentence(*CALM[:3], step(4, 40.0)) == ""  # few to compare with
    assert "a loss of NaN over" in sentence(*CALM, step(7, 1.0, math.nan))


def test_a_window_whose_micro_batches_all_have_a_large_loss_is_named() -> None:
    pairs = [step(number, 0.5, 0.5) for number in range(1, 7)]
    together = changed(*pairs, step(7, 30.0, 31.0))
    assert sentence_of(together) == (
        "At step 7, the loss of the window is 61, where those before had 1, and none of its 2 "
        "micro-batches stands out from the others."
    )
    assert report_of(together) == sentence_of(together)
    assert sentence(*pairs, step(7, 4.0, 4.0)) == ""
    assert sentence(*pairs[:3], step(4, 30.0, 31.0)) == ""  # few to compare with
    assert "micro-batch 2 of 2" in sentence(*pairs, step(7, 0.5, 60.0))  # it explains the rest
    assert "is NaN" in sentence(*pairs, step(7, math.nan, math.nan))
    for apart in ([0.25, 30.0, 31.0], [0.25, math.nan, math.nan, math.nan]):
        assert sentence(*pairs, step(7, *apart)) == ""  # one stands out, and explains nothing


def test_a_batch_of_a_loss_that_diverges_does_not_stand_out() -> None:
    """Its loss is far above that of each batch before, and so was theirs."""
    growing = [step(7, 1e3), step(8, 1e7), step(9, 1e16), step(10, 1e34)]
    assert sentence(*CALM, *growing) == ""
    assert sentence(*CALM, *growing, step(11, math.inf)) == ""
    assert sentence(*CALM, *growing[:1]) != ""  # the first of them
    assert sentence(*CALM, step(7, math.inf)) != ""
    near_zero = [step(number, 0.0) for number in range(1, 7)]
    assert sentence(*near_zero, step(7, 1.0)) != ""  # above all of them


def test_a_micro_batch_that_makes_most_of_the_gradient_is_named_with_its_share() -> None:
    window = step(7, 1.0, 1.0, 1.0, 1.2)
    norms = (1.0, 1.0, 1.0, 8.0)
    for micro_batch, norm in zip(window.micro_batches, norms, strict=True):
        micro_batch.sample_norm = norm
    assert sentence(*CALM, window).endswith(
        "micro-batch 4 of 4 has a loss of 1.2 over 10 elements, where the others have 1, and "
        "carries 95.5% of the squared norm of the gradient."
    )
    for micro_batch, norm in zip(window.micro_batches, norms, strict=True):
        micro_batch.sample_norm = 1e200 * norm  # its square overflows
    assert "carries 95.5%" in sentence(*CALM, window)
    first: MicroBatch = window.micro_batches[0]
    first.sample_norm = None  # not all were measured
    assert "carries" not in sentence(*CALM, window)


def test_a_resume_is_named() -> None:
    loaded = step(7, 1.0, events=[Event("load_state", 0)])
    assert sentence(*CALM, loaded) == "At step 7, the state of the optimizer was loaded."
    prepared = step(7, 1.0, events=[Event("load_state", 0)], resumed=Resumed(loaded=True))
    assert sentence(*CALM, prepared) == ""
    replaced = step(7, 1.0, replaced=Replaced(0, 12))
    assert sentence(*CALM, replaced) == (
        "At step 7, this optimizer took over parameters that another one had trained for 12 steps."
    )
    replaced = step(7, 1.0, lr=0.1, replaced=Replaced(0, 12, lr=0.001))
    assert "trained for 12 steps (learning rate 0.001, now 0.1)." in sentence(replaced)
    replaced = step(7, 1.0, lr=0.1, lrs=[0.1, 0.001], replaced=Replaced(0, 12, lr=0.001))
    assert "trained for 12 steps." in sentence(replaced)  # the rate of the second group stayed
    again = step(7, 1.0)
    again.micro_batches[0].number = 1
    assert sentence(*CALM, again) == "At step 7, the process was started again."


def test_a_resume_some_steps_before_is_named_with_its_step() -> None:
    later = [step(number, 1.0) for number in range(8, 33)]
    loaded = step(7, 1.0, events=[Event("load_state", 0)])
    assert sentence(*CALM, loaded, *later) == "At step 7, the state of the optimizer was loaded."
    assert sentence(*CALM, loaded, *later[:-1], step(32, 40.0)) == (
        "At step 32, the batch has a loss of 40 over 10 elements, where those before had 1. "
        "At step 7, the state of the optimizer was loaded."
    )
    replaced = step(1, 1.0, replaced=Replaced(0, 12))
    assert sentence(replaced, *[step(number, 1.0) for number in range(2, 27)]) == (
        "At step 1, this optimizer took over parameters that another one had trained for 12 steps."
    )
    again = [step(number, 1.0) for number in range(7, 33)]
    for number, window in enumerate(again, 1):
        for micro_batch in window.micro_batches:
            micro_batch.number = number
    assert sentence(*CALM, *again) == "At step 7, the process was started again."
    long_ago = [step(number, 1.0) for number in range(8, 90)]
    assert sentence(*CALM, loaded, *long_ago) == ""


def test_another_loss_in_the_backward_is_no_larger_batch() -> None:
    """Its own count is not compared with that of the loss before it."""
    calm = [record([term(32, 1 / 32)], number) for number in range(1, 7)]
    further = term(4_096, 100.0 / 4_096, kind="MseLossBackward0")
    assert sentence(*calm, record([[term(32, 1 / 32), further]], 7)) == ""
    more = [record([[term(32, 1 / 32), further]], number) for number in range(7, 12)]
    assert sentence(*calm, *more) == ""
    larger = sentence(*calm, record([term(320, 1 / 320)], 7))
    assert larger.startswith("At step 7, the batch in ")


def test_the_step_at_which_the_loss_left_its_range_is_named_some_steps_later() -> None:
    outlier, overflow = step(7, 1.0, 400.0), step(9, math.nan, math.nan)
    assert watched(*CALM, outlier, step(8, 3e4, 3e4), overflow).startswith(
        "At step 7, micro-batch 2 of 2 has a loss of 400 over 10 elements, where the others have 1"
    )
    back = watched(*CALM, outlier, step(8, 1.0, 1.0), overflow)  # recovered
    assert "step 7" not in back
    assert watched(*CALM, step(7, 1.0)) == ""
