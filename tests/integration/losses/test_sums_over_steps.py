"""A loss that is added up over the steps of a decoder, in a loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.training import recording

LENGTHS = (3, 9, 5, 6, 4, 8, 7, 3, 5)
WRONG = "reduction.wrong_denominator"
FOUND = {"sum": [(WRONG, "info")], "by the last length": [(WRONG, "warning")], "mean": []}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("kind", FOUND)
def test_only_a_sum_that_nothing_divides_may_be_that_of_a_sequence(kind: str, batch: int) -> None:
    torch.manual_seed(0)
    cell, out = nn.GRUCell(6, 8), nn.Linear(8, 6)
    last = 4
    with recording() as recorded:
        optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], lr=0.1)
        for length in LENGTHS:
            state, loss = torch.zeros(batch, 8), torch.tensor(0.0)
            for _ in range(length):
                state = cell(torch.randn(batch, 6), state)
                loss = loss + F.cross_entropy(out(state), torch.randint(6, (batch,)))
            divisor = {"sum": 1, "by the last length": last, "mean": length}[kind]
            optimizer.zero_grad()
            (loss / divisor).backward()
            optimizer.step()
            last = length
    findings = recorded.evaluation().findings
    assert [(f.rule, f.severity) for f in findings] == FOUND[kind]
