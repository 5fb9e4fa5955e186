"""Changes of the batch size and the learning rate: which are reported, and in which unit."""

from __future__ import annotations

import pytest

from gradledger.records import Term
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

Window = tuple[int, int, float]  # micro-batches, tokens of each, learning rate


def flat(tokens: int, k: int) -> Term:
    """A loss whose rows may be samples or tokens: nobody knows."""
    return term(tokens, 1 / (tokens * k))


def sequences(tokens: int, k: int) -> Term:
    """One sequence of this many tokens."""
    return term(tokens, 1 / (tokens * k), rows=tokens // 8, size=tokens)


def finding_of(
    *course: Window, ranks: int = 1, loss: object = flat, recorded: int = 1
) -> Finding | None:
    """The finding in a sequence of windows, of which two of ``2 * recorded`` are recorded."""
    make = sequences if loss is sequences else flat
    steps = [
        facts(*[record([make(n, k) for _ in range(k)], i, lr=rate, sync="averaged")] * ranks)
        for i, (k, n, rate) in enumerate(course, 1)
        if (i - 1) % (2 * recorded) < 2
    ]
    findings = judged(steps).findings
    return next((f for f in findings if f.rule == "batch.changed_without_lr"), None)


def changed(before: Window, after: Window, windows: int = 3, ranks: int = 1) -> Finding | None:
    """Six windows of one kind, then some of another."""
    return finding_of(*[before] * 6, *[after] * windows, ranks=ranks)


def test_twice_as_many_micro_batches_that_stay_are_reported_with_the_rate_that_did_not() -> None:
    finding = changed((2, 64, 0.1), (4, 64, 0.104))
    assert finding is not None and (finding.first_step, finding.last_step) == (7, 9)
    assert (
        finding.title == "The effective batch changes by a factor of 2, the learning rate does not"
    )
    assert finding.summary == (
        "Micro-batches per step over all ranks went from 2 to 4, while the learning rate went "
        "from 0.1 to 0.104. That is a scaling exponent of 0.057 (1: linear, 0.5: square root)."
    )
    over_ranks = changed((2, 64, 0.1), (4, 64, 0.1), ranks=2)
    assert over_ranks is not None
    assert (over_ranks.evidence["batch_before"], over_ranks.evidence["batch"]) == (4, 8)


def test_a_learning_rate_that_stays_has_the_exponent_zero() -> None:
    for before, after in ((2, 4), (4, 2)):
        finding = changed((before, 64, 0.1), (after, 64, 0.1))
        assert finding is not None and "a scaling exponent of 0 (" in finding.summary


def test_without_a_learning_rate_a_batch_that_stays_is_ok_and_one_that_changes_unknown() -> None:
    for later in (2, 4):
        steps = [
            facts(record([term(64, 1 / (64 * k))] * k, step, lr=None))
            for step, k in enumerate([*[2] * 6, *[later] * 3], 1)
        ]
        evaluation = judged(steps)
        assert evaluation.coverage["batch.changed_without_lr"] == "ok"
        assert not evaluation.findings


def test_where_samples_are_known_they_are_what_is_reported() -> None:
    finding = finding_of(*[(2, 64, 0.1)] * 6, *[(2, 128, 0.1)] * 3, loss=sequences)
    assert finding is not None
    assert finding.summary.startswith("Samples per step over all ranks went from 16 to 32, while")


@pytest.mark.parametrize(
    ("before", "after", "severity"),
    [
        ((2, 64, 0.1), (4, 64, 0.1), "info"),  # K alone grows: often a schedule
        ((4, 64, 0.1), (2, 64, 0.1), "warning"),
        ((2, 64, 0.1), (2, 128, 0.1), "warning"),
        ((2, 64, 0.1), (4, 128, 0.1), "warning"),
    ],
)
def test_a_batch_that_grows_by_micro_batches_alone_is_information(
    before: Window, after: Window, severity: str
) -> None:
    finding = finding_of(*[before] * 6, *[after] * 3, loss=sequences)
    assert finding is not None and finding.severity == severity


def test_samples_that_are_known_on_one_side_only_are_not_compared() -> None:
    with_samples = [record([sequences(64, 2)] * 2, number) for number in range(1, 7)]
    without_samples = [record([flat(64, 4)] * 4, number) for number in range(7, 10)]
    findings = judged([facts(sent) for sent in [*with_samples, *without_samples]]).findings
    finding = next(f for f in findings if f.rule == "batch.changed_without_lr")
    assert finding.summary.startswith("Micro-batches per step over all ranks went from 2 to 4")


@pytest.mark.parametrize(
    ("before", "after", "is_reported"),
    [(2, 3, True), (3, 2, True), (4, 5, False), (5, 4, False), (8, 2, True)],
)
def test_half_as_much_again_is_a_change_and_less_is_none(
    before: int, after: int, is_reported: bool
) -> None:
    finding = changed((before, 64, 0.1), (after, 64, 0.1), windows=13)
    assert (finding is not None) is is_reported


def test_as_many_tokens_in_more_micro_batches_are_the_same_batch() -> None:
    assert changed((2, 64, 0.1), (4, 32, 0.1)) is None


def test_a_change_must_hold_for_three_windows() -> None:
    assert changed((2, 64, 0.1), (4, 64, 0.1), windows=2) is None
    wavering = [(4, 64, 0.1), (8, 64, 0.1)] * 3
    assert finding_of(*[(2, 64, 0.1)] * 6, *wavering) is None


def test_where_every_batch_has_another_size_none_is_a_change() -> None:
    sizes = [2, 3, 5, 2, 4, 4, 5, 3, 2, 2, 4, 3, 2, 2, 2, 4, 4, 4, 4, 3, 2, 5, 5, 5]
    assert finding_of(*[(size, 64, 0.1) for size in sizes]) is None
    short_last = [*[(4, 64, 0.1)] * 4, (1, 64, 0.1)] * 3
    assert finding_of(*short_last, *[(8, 64, 0.1)] * 3) is not None


def test_a_change_within_the_first_windows_shows_no_old_size() -> None:
    assert finding_of(*[(2, 64, 0.1)] * 5, *[(4, 64, 0.1)] * 9) is None


@pytest.mark.parametrize(
    ("rate", "is_reported"), [(0.2, False), (0.106, False), (0.094, False), (0.096, True)]
)
def test_a_learning_rate_that_moves_along_is_a_choice(rate: float, is_reported: bool) -> None:
    assert (changed((2, 64, 0.1), (4, 64, rate)) is not None) is is_reported


def test_a_rate_that_was_zero_until_then_has_moved() -> None:
    assert changed((2, 64, 0.0), (4, 64, 0.1)) is None
    assert changed((2, 64, 0.0), (4, 64, 0.0)) is not None


@pytest.mark.parametrize(
    ("levels", "is_reported"),
    [
        ([(1, 6), (2, 6), (3, 4), (4, 30)], False),
        ([(1, 1), (2, 1), (3, 1), (4, 30)], False),
        ([(1, 6), (2, 12)], False),  # it may grow again
        ([(1, 6), (2, 13)], True),
        ([(1, 6), (3, 3)], True),  # a jump
        ([(2, 6), (1, 3)], True),
        ([(1, 6), (2, 24), (4, 3)], True),
        ([(1, 6), (2, 6), (3, 4), (4, 30), (1, 3)], True),
        ([(1, 6), (2, 6), (3, 30), (4, 3), (6, 3)], True),
    ],
)
def test_a_warm_up_of_the_batch_is_a_ramp_of_micro_batches_from_the_first_step_on(
    levels: list[tuple[int, int]], is_reported: bool
) -> None:
    course = [(k, 64, 0.1) for k, windows in levels for _ in range(windows)]
    assert (finding_of(*course) is not None) is is_reported


def test_a_warm_up_of_the_batch_may_grow_between_the_recorded_windows() -> None:
    levels = [(1, 14), (2, 10), (3, 8), (4, 30)]
    course = [(k, 64, 0.1) for k, windows in levels for _ in range(windows)]
    assert finding_of(*course, recorded=2) is None
