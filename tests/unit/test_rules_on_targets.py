"""Steps whose cross entropy counts no target."""

from __future__ import annotations

from gradledger import records
from gradledger_monitor.model.findings import EvaluationResult
from helpers.facts import facts, judged, record, term

EMPTY = term(0, 1.0, "sum", size=64, rows=64)
LABELLED = term(64, 1 / 64)


def evaluation(
    is_empty: list[bool], terms: tuple[records.Term, ...] = (), **more: object
) -> EvaluationResult:
    """Steps with a target, and some without; ``terms``: beside these."""
    steps = [
        record(
            [[EMPTY if empty else LABELLED, *terms]], n, **{"norm": 0.0 if empty else 1.0, **more}
        )
        for n, empty in enumerate(is_empty, 1)
    ]
    return judged([facts(each) for each in steps])


def found(result: EvaluationResult) -> dict[str, object] | None:
    """The evidence of the finding."""
    return next((f.evidence for f in result.findings if f.rule == "loss.no_targets"), None)


def test_many_steps_without_a_target_are_reported() -> None:
    assert found(evaluation([False, True] * 15)) == {"without_targets": 15, "of": 30}


def test_a_few_steps_without_a_target_are_not() -> None:
    assert found(evaluation([*[False] * 9, True] * 12)) is None


def test_another_loss_of_the_step_is_no_step_without_a_target() -> None:
    beside = term(64, 1 / 64, kind="MseLossBackward0")
    assert found(evaluation([False, True] * 15, (beside,), norm=1.0)) is None


def test_a_gradient_shows_that_something_else_is_trained() -> None:
    assert found(evaluation([False, True] * 15, norm=1.0)) is None


def test_targets_on_another_rank_count() -> None:
    ranks = [(record([EMPTY], n, norm=0.0), record([LABELLED], n, norm=0.0)) for n in range(1, 31)]
    assert found(judged([facts(*each) for each in ranks])) is None


def test_a_target_in_another_micro_batch_counts() -> None:
    steps = [record([EMPTY, LABELLED], n, norm=0.0) for n in range(1, 31)]
    assert found(judged([facts(each) for each in steps])) is None


def test_rewards_of_0_are_no_ignored_targets() -> None:
    weighted = term(0, 0.0, "none", size=64)
    steps = [record([weighted], n, norm=0.0) for n in range(1, 31)]
    assert found(judged([facts(each) for each in steps])) is None


def test_other_losses_have_no_targets_to_count() -> None:
    squared = term(0, 1.0, "sum", size=64, kind="MseLossBackward0")
    steps = [record([squared], n, norm=0.0) for n in range(1, 31)]
    result = judged([facts(each) for each in steps])
    assert result.coverage["loss.no_targets"].startswith("not_applicable")
