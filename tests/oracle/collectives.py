"""How often the gradients of one rank took part in a sum over ranks, from PyTorch's own record.

The flight recorder is part of the process groups: it lists every collective with the sizes of its
inputs, whoever called it (https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html).
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import torch
import torch.distributed as dist

_MOST = 20_000  # collectives of one program
_REDUCING = ("all_reduce", "reduce_scatter")


class Collectives:
    """Those of this process; made before its first process group, which reads the variable."""

    def __init__(self) -> None:
        os.environ["TORCH_FR_BUFFER_SIZE"] = str(_MOST)

    def reduced_elements(self) -> int:
        """Elements that this rank has given to sums over ranks."""
        if not dist.is_initialized():
            return 0
        dump: Any = torch._C._distributed_c10d._dump_fr_trace_json  # type: ignore[attr-defined]
        entries = json.loads(dump(includeCollectives=True))["entries"]
        assert len(entries) < _MOST, "the flight recorder has forgotten the first collectives"
        return sum(_elements(entry) for entry in entries)


def _elements(entry: dict[str, Any]) -> int:
    reducing = any(name in entry["profiling_name"] for name in _REDUCING)
    return sum(math.prod(size) for size in entry["input_sizes"]) if reducing else 0
