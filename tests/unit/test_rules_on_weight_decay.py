"""Weight decay beside the gradient, the size of the model and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradledger.records import Layers
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term

SIZES = [4.0, 3.0, 2.0, *[1.0] * 12]  # of the parameters, at the measured steps


def measured(size: float, gradient: float, update: float, decay: float, decoupled: bool) -> Layers:
    """One layer of one element."""
    return Layers(
        names=["weight"],
        sizes=[1.0],
        gradient=[gradient],
        parameter=[size],
        update=[update],
        decay=[decay],
        decoupled=decoupled,
    )


def decays(
    sizes: Sequence[float] = SIZES,
    *,
    gradient: float = 0.05,
    update: float = 0.01,
    decay: float = 0.1,
    decoupled: bool = False,
    losses: Sequence[float] = (),
    **run: Any,
) -> Finding | None:
    """The finding in a run that measures its layers at every step."""
    steps = []
    for number, size in enumerate(sizes, 1):
        layers = measured(size, gradient, update, decay, decoupled)
        window = record([term(8, 1 / 8)], number, layers=layers)
        window.micro_batches[0].loss = losses[number - 1] if losses else 1.0
        steps.append(facts(window, **run))
    rule = "norm.weight_decay"
    return next((f for f in judged(steps).findings if f.rule == rule), None)


def test_a_decay_that_outweighs_the_gradient_while_the_model_shrinks_is_a_warning() -> None:
    finding = decays()
    assert finding is not None and (finding.severity, finding.first_step) == ("warning", 14)
    assert finding.summary == (
        "At 6 measured steps in a row, weight decay outweighed the gradient; at the last of them, "
        "step 15, what it adds to the gradient was 2 times as large as the gradient itself. The "
        "norm of the parameters that decay fell from 4 to 1, while the median of the loss went "
        "from 1 at the first 3 steps to 1 at the last 10."
    )


def test_numbers_whose_squares_overflow_are_compared_too() -> None:
    assert decays(gradient=1e200) is None
    assert decays([1e200 * size for size in SIZES], gradient=5e198) is not None


def test_of_adamw_it_is_the_share_of_the_update() -> None:
    finding = decays(decay=0.008, decoupled=True)
    assert finding is not None and "step 15, it made 64.0% of the squared update" in finding.summary
    assert decays(decay=0.007, decoupled=True) is None  # 49%


def test_each_condition_is_necessary() -> None:
    assert decays(gradient=0.11) is None  # the gradient is larger
    assert decays([4.0, *[2.1] * 14]) is None  # the model keeps its size
    assert decays(losses=[1.0] * 3 + [0.8] * 12) is None  # the loss falls
    assert decays(decay=0.0) is None
    assert decays(SIZES[:13]) is None  # four measured steps are not enough


def test_a_loss_that_fell_and_came_back_has_not_fallen() -> None:
    sizes = [*SIZES, *[1.0] * 25]
    assert decays(sizes, losses=[1.0] * 3 + [0.5] * 37) is None
    assert decays(sizes, losses=[1.0] * 3 + [0.5] * 12 + [0.8] * 25) is not None


def test_losses_that_are_opposed_state_nothing() -> None:
    assert decays(optimizers=["Adam", "Adam"]) is None
