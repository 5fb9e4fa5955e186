"""Programs of one rank, written for two ranks that train one model in a wrapper."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence

from museum import parts
from museum.parts import RAGGED, Batch

WRAPPERS = ("ddp", "fsdp2")
_HEAD = """\
import copy
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from museum.fixes.wrapped import text
from museum.parts import two_ranks

with two_ranks():
"""
_START = "torch.manual_seed(0)\n"  # follows the imports of all programs
_MODEL = "model = TinyLM()\n"
_EVERY = 840  # a multiple of the number of different windows


def text(
    count: int, seed: int = 0, lengths: Sequence[Sequence[Sequence[int]]] = RAGGED
) -> list[list[Batch]]:
    """Windows of other sentences on each rank, with equal lengths."""
    return parts.text(count, seed + _EVERY * int(os.environ["RANK"]), lengths)


def with_data_of_ranks(program: str) -> str:
    """The program of a framework with other data on each rank, and without a loader that shards."""
    imported = r"(?m)^(from museum\.parts import .*\btext\b.*\n)"
    program = re.sub(imported, r"\1from museum.fixes.wrapped import text\n", program)
    prepared = r", loader = accelerator\.prepare\((.*), loader\)"
    program = re.sub(prepared, r" = accelerator.prepare(\1)", program)
    return program.replace("Accelerator(", "Accelerator(cpu=True, ")


def on_two_ranks(program: str, wrapper: str) -> str:
    """The program with its model in a wrapper, and other data on each rank."""
    before, start, after = program.partition(_START)
    assert start and _MODEL in after, program
    if wrapper == "ddp":
        wrapped = "plain = TinyLM()\nmodel = DistributedDataParallel(plain)\n"
        after = re.sub(r"\bmodel\.(?=embed|mix|head)", "plain.", after)
    else:
        before = before.replace("import torch\n", "import torch  # fully_shard\n")
        wrapped = "plain = TinyLM()\nmodel = fully_shard(copy.deepcopy(plain))\n"
    body = f"{start}{after.replace(_MODEL, wrapped)}dist.barrier()\n"
    return f"{before}{_HEAD}{textwrap.indent(body, '    ')}"
