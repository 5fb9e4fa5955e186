"""The bytes of one synchronisation of DDP depend on its comm hook."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gradledger.observers.ranks.local_gradients import sent_bytes

FULL, HALF = 4 * 10 + 2 * 3, 2 * 13


def wrapper(*hooks: Any) -> Any:
    return SimpleNamespace(_comm_hooks=[(hook, None) for hook in hooks])


def of_the_script(state: object, bucket: object) -> None:
    """A hook that may send anything."""


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        ([wrapper()], FULL),
        ([wrapper(default_hooks.allreduce_hook)], FULL),
        ([wrapper(default_hooks.fp16_compress_hook)], HALF),
        ([wrapper(default_hooks.bf16_compress_hook)] * 2, HALF),
        ([wrapper(default_hooks.bf16_compress_hook), wrapper()], None),  # of which one?
        ([wrapper(of_the_script)], None),
        ([SimpleNamespace()], None),  # a DDP that does not list its hooks
    ],
)
def test_what_is_sent_is_known_of_hooks_of_pytorch(
    wrappers: list[Any], expected: int | None
) -> None:
    parameters = [torch.zeros(10), torch.zeros(3, dtype=torch.bfloat16)]
    assert sent_bytes(wrappers, parameters) == expected
