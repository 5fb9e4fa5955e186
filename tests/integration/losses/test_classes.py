"""The number of classes of a cross entropy, from the shape of its input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from helpers.training import recording

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own
CLASSES = 7
LABELS = torch.tensor([1, 2, 3, 4])


def of_labels(x: Tensor) -> Tensor:
    """Dynamo of PyTorch 2.6 compiles no function of PyTorch itself."""
    return cross_entropy(x, LABELS)


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: cross_entropy(x, LABELS),
    "one row": lambda x: cross_entropy(x[0], LABELS[0]),
    "images": lambda x: cross_entropy(x.T[None], LABELS[None]),
    "a vector of losses": lambda x: cross_entropy(x, LABELS, reduction="none").sum(),
    "smoothed": lambda x: cross_entropy(x, LABELS, label_smoothing=0.1),
    "compiled": lambda x: torch.compile(of_labels, backend="aot_eager")(x),
}


def classes_of(loss: Callable[[Tensor], Tensor]) -> int | None:
    """What the record of a step states."""
    model = nn.Linear(3, CLASSES)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss(model(torch.ones(4, 3))).backward()
        optimizer.step()
    (step,) = recorded.records()
    (term,) = step.micro_batches[0].terms
    return term.classes


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_cross_entropy_has_as_many_classes_as_its_input(
    loss: Callable[[Tensor], Tensor],
) -> None:
    assert classes_of(loss) == CLASSES


def test_a_squared_error_has_no_classes() -> None:
    assert classes_of(lambda x: mse_loss(x, torch.zeros_like(x))) is None
