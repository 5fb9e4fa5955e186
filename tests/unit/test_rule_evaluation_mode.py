"""loop.evaluation_mode: training that goes on after ``model.eval()``."""

from __future__ import annotations

from gradledger.records import Layers, StepRecord
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def step(number: int, training: int = 0, *evaluating: str) -> StepRecord:
    """A sampled step, with the modes of its last backward."""
    layers = Layers(names=["a"], sizes=[8.0], gradient=[1.0], parameter=[1.0], update=[0.01])
    layers.training, layers.evaluating = training, list(evaluating)
    return record([term(8, 1 / 8)], number, layers=layers)


def finding_of(*steps: StepRecord) -> Finding | None:
    between = [record([term(8, 1 / 8)], number) for number in (6, 16, 26)]  # not measured
    windows = sorted([*steps, *between], key=lambda each: each.step)
    evaluation = judged([facts(window) for window in windows])
    return next((f for f in evaluation.findings if f.rule == "loop.evaluation_mode"), None)


TRAINS = [step(number, 2) for number in (2, 3, 5)]


def test_dropout_that_stays_off_is_a_warning() -> None:
    finding = finding_of(*TRAINS, *[step(n, 0, "Dropout") for n in (10, 15, 20)])
    assert finding is not None and finding.severity == "warning"
    assert (finding.first_step, finding.last_step) == (20, 20)
    assert finding.summary == (
        "Dropout of the model was in training mode at sampled steps up to 5. The whole model was "
        "in evaluation mode at the 3 sampled steps from step 10 on. A validation may have called "
        "model.eval(), without model.train() after it."
    )


def test_batch_norm_alone_is_information() -> None:
    frozen = [step(n, 0, "BatchNorm1d") for n in (10, 15, 20)]
    finding = finding_of(*TRAINS, *frozen)
    assert finding is not None and finding.severity == "info"
    both = finding_of(*TRAINS, *[step(n, 0, "BatchNorm1d", "Dropout") for n in (10, 15, 20)])
    assert both is not None and both.severity == "warning"
    assert both.summary.startswith("BatchNorm1d and Dropout of the model were in training mode")


def test_a_model_that_trains_again_or_never_trained_is_no_finding() -> None:
    off = [step(n, 0, "Dropout") for n in (10, 15)]
    assert finding_of(*TRAINS, *off, step(20, 2), step(25, 0, "Dropout")) is None
    assert finding_of(*[step(n, 0, "Dropout") for n in (2, 3, 5, 10)]) is None
    assert finding_of(*TRAINS, *off, step(20)) is None  # no such modules any more
    assert finding_of(TRAINS[0], *off, step(20, 0, "Dropout")) is None  # once may be chance


def test_the_only_step_of_the_first_epoch_needs_five_others() -> None:
    off = [step(n, 0, "Dropout") for n in (2, 3, 5, 10, 15)]
    assert finding_of(step(1, 2), *off[:4]) is None
    finding = finding_of(step(1, 2), *off)
    assert finding is not None and finding.severity == "info" and finding.last_step == 15
    assert "training mode at step 1. The whole model" in finding.summary
    assert "at the 5 sampled steps from step 2 on" in finding.summary


def test_a_model_that_never_trains_with_its_dropout_is_information() -> None:
    finding = finding_of(*[step(n, 0, "BatchNorm1d", "Dropout") for n in (2, 3, 5, 10, 15)])
    assert finding is not None and finding.severity == "info"
    assert finding.summary == (
        "The whole model was in evaluation mode at all 5 sampled steps, and BatchNorm1d and "
        "Dropout in it do not act as in training: dropout drops nothing. If this is intended, it "
        "is right."
    )
    assert finding_of(*[step(n, 0, "BatchNorm1d") for n in (2, 3, 5, 10, 15)]) is None
    assert finding_of(*[step(n, 0, "Dropout") for n in (2, 3, 5, 10)], step(15, 1)) is None
