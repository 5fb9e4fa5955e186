"""What PyTorch knows of its process groups: how many ranks, and how many collectives ran."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

world: Any = getattr(dist.distributed_c10d, "_world", None) if dist.is_available() else None


def world_size() -> int:
    """The number of ranks: 1 without a process group, or in a PyTorch built without them."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sequence_number() -> int | None:
    """Collectives that all process groups have run; None outside distributed training."""
    groups: Any = world.pg_map if world is not None else ()
    if not groups:
        return None
    numbers: list[int] = [group._get_sequence_number_for_group() for group in groups]
    return sum(numbers)
