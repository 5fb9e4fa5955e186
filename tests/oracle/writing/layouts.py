"""The text of what a script does because it runs in several processes."""

from __future__ import annotations

from oracle.program import Program

_FSDP = "from torch.distributed.fsdp import fully_shard"
_MESH = "from torch.distributed.device_mesh import init_device_mesh"
_TENSOR = """from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)"""
_IMPORTS = {
    "ddp": ["from torch.nn.parallel import DistributedDataParallel"],
    "ddp_of_4": ["from torch.nn.parallel import DistributedDataParallel"],
    "fsdp2": [_FSDP],
    "hsdp": [_MESH, _FSDP],
    "tensor": [_MESH, _TENSOR],
    "tensor_fsdp2": [_MESH, _FSDP, _TENSOR],
}


def imports(p: Program) -> list[str]:
    """Lines."""
    return ["import torch.distributed as dist", *_IMPORTS.get(p.layout, [])] * (p.layout != "one")


def start(p: Program) -> list[str]:
    """The process group. ``rank`` and ``world_size`` are those of processes with different data."""
    if p.layout == "one":
        return []
    lines = ['dist.init_process_group("gloo")']
    if p.tensor_ranks > 1:
        shape = f"({p.data_ranks}, {p.tensor_ranks})"
        names = '("data", "tensor")'
        return [
            *lines,
            f'mesh = init_device_mesh("cpu", {shape}, mesh_dim_names={names})',
            'rank, world_size = mesh["data"].get_local_rank(), mesh["data"].size()',
        ]
    lines += ["rank, world_size = dist.get_rank(), dist.get_world_size()"]
    if p.layout == "hsdp":
        lines += ['mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))']
    if p.all_reduce == "half_of_ranks":
        lines += ["halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]"]
    return lines


def shard(p: Program) -> str:
    """Replace the parameters of ``net`` by parts of them."""
    text = ""
    if p.tensor_ranks > 1:
        heads = ["head", "second"] if "second_head" in p.auxiliaries else ["head"]
        plan = ", ".join(f'"{head}": RowwiseParallel()' for head in heads)
        text += f'parallelize_module(net, mesh["tensor"], {{"body": ColwiseParallel(), {plan}}})\n'
    meshes = {"fsdp2": "", "hsdp": ", mesh=mesh", "tensor_fsdp2": ', mesh=mesh["data"]'}
    if p.layout in meshes:
        mesh = meshes[p.layout]
        text += f"for part in (net.body, net.head, net):\n    fully_shard(part{mesh})\n"
    return text


def wrapped(p: Program) -> str:
    """What the loop calls."""
    return "DistributedDataParallel(net)" if p.ddp else "net"


def is_last(p: Program) -> str:
    """Whether a micro-batch is the last of its window: an expression of the loop's variables."""
    if p.loop == "off_by_one":
        return "i % K == 0"
    if p.loop == "epochs":
        return "(i + 1) % K == 0"
    return "m == len(windows[w]) - 1"


def sync_context(p: Program) -> str:
    """The context of a micro-batch's forward and backward pass, if there is one."""
    if not p.ddp or "synced_every_micro_batch" in p.mistakes:
        return ""
    if "never_synced" in p.mistakes:
        return "model.no_sync()"
    chosen = "m == 0" if "first_synced" in p.mistakes else is_last(p)
    return f"contextlib.nullcontext() if {chosen} else model.no_sync()"


def before_micro_batch(p: Program) -> list[str]:
    """Lines."""
    if p.layout in ("fsdp2", "hsdp", "tensor_fsdp2"):
        return [f"model.set_requires_gradient_sync({is_last(p)})"]
    if p.all_reduce == "early":
        return [f"if {is_last(p)}:", *(f"    {line}" for line in _all_reduce(p))]
    return []


def after_window(p: Program) -> list[str]:
    """Lines between the last backward and the step."""
    by_hand = p.by_hand or p.layout == "context"
    return _all_reduce(p) if by_hand and p.all_reduce != "early" else []


def _all_reduce(p: Program) -> list[str]:
    group = ", group=halves[rank // 2]" if p.all_reduce == "half_of_ranks" else ""
    lines = ["for parameter in model.parameters():"]
    indent = "    "
    if p.all_reduce == "without_biases":
        lines += ["    if parameter.ndim > 1:"]
        indent *= 2
    lines += [f"{indent}dist.all_reduce(parameter.grad{group})"]
    averages = p.by_hand and p.ranks_count != "all" and p.all_reduce != "sum_only"
    if averages:
        count = "2" if p.all_reduce == "half_of_ranks" else "world_size"
        lines += [f"{indent}parameter.grad /= {count}"]
    return lines


def factor(p: Program) -> str:
    """What a share of all ranks' elements is multiplied with, because gradients are averaged."""
    averaged = p.ddp or p.layout in ("fsdp2", "hsdp", "tensor_fsdp2")
    return " * world_size" if p.ranks_count == "all" and averaged else ""


def end(p: Program) -> str:
    """Wait for the other ranks. Gloo's destructor can hang, so the group lives to the end."""
    return "" if p.layout == "one" else "dist.barrier()"
