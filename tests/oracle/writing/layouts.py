"""The text of what a script does because it runs in several processes."""

from __future__ import annotations

from oracle.program import COUNTED_BY_TRAINER, FRAMEWORKS, FSDP2, Program

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
    "fsdp2_sum": [_FSDP],
    "fsdp2_every": [_FSDP],
    "hsdp": [_MESH, _FSDP],
    "hsdp_deferred": [_MESH, _FSDP],
    "tensor": [_MESH, _TENSOR],
    "tensor_fsdp2": [_MESH, _FSDP, _TENSOR],
    "pipeline": ["from torch.distributed import pipelining"],
}
_OF_COPIES = ("hsdp", "hsdp_deferred")
# With two stages on each process, K is even.
_SCHEDULES = ["ScheduleGPipe", "Schedule1F1B"]
_SCHEDULES_OF_TWO = ["ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"]


def imports(p: Program) -> list[str]:
    """Lines."""
    own = [] if p.loop in FRAMEWORKS else _IMPORTS.get(p.layout, [])
    return ["import torch.distributed as dist", *own] * (p.layout != "one")


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
    if p.layout in _OF_COPIES:
        lines += ['mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))']
    if p.all_reduce == "half_of_ranks":
        lines += ["halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]"]
    return lines


def schedule(p: Program) -> str:
    """The class of a pipeline's schedule."""
    choices = _SCHEDULES + (_SCHEDULES_OF_TWO if p.k % 2 == 0 else [])
    return choices[p.seed % len(choices)]


def stages(p: Program) -> int:
    """Stages of a pipeline."""
    return 2 * p.ranks if schedule(p) in _SCHEDULES_OF_TWO else p.ranks


def pipeline(p: Program, loss: list[str], step: list[str]) -> str:
    """The loop of a pipeline, whose schedule runs every micro-batch of a window."""
    scaled = "" if _scales(p) else ", scale_grads=False"
    several = "" if stages(p) > p.ranks else "[0]"
    loss_text, step_text = ("".join(f"    {line}\n" for line in lines) for lines in (loss, step))
    return f"""
def loss_of(outputs, labels):
{loss_text}    return loss


stages = [
    pipelining.PipelineStage(net.parts[i], i, {stages(p)}, torch.device("cpu")) for i in own
]
schedule = pipelining.{schedule(p)}(stages{several}, K, loss_fn=loss_of{scaled})
for w, window in enumerate(windows):
    features, labels = (torch.cat(each) for each in zip(*window))
    inputs = [features] if any(stage.is_first for stage in stages) else []
    targets = {{"target": labels}} if any(stage.is_last for stage in stages) else {{}}
    schedule.step(*inputs, **targets)
{step_text}"""


def _scales(p: Program) -> bool:
    """Whether the schedule divides by K; of losses over all tokens, a third once too often."""
    too_often = p.normalisation in ("window", "share") and p.seed % 3 == 0
    return too_often or p.normalisation in ("mean_k", "twice")


def own_stages(p: Program) -> str:
    """The numbers of the stages of a process: an expression."""
    last = stages(p) - 1
    return f"(rank, {last} - rank)" if "ZBV" in schedule(p) else f"range(rank, {last + 1}, 2)"


def shard(p: Program) -> str:
    """Replace the parameters of ``net`` by parts of them."""
    text = ""
    if p.tensor_ranks > 1:
        heads = ["head", "second"] if "second_head" in p.auxiliaries else ["head"]
        plan = ", ".join(f'"{head}": RowwiseParallel()' for head in heads)
        text += f'parallelize_module(net, mesh["tensor"], {{"body": ColwiseParallel(), {plan}}})\n'
    if p.layout in FSDP2:
        mesh = ', mesh=mesh["data"]' if p.tensor_ranks > 1 else ""
        mesh = ", mesh=mesh" if p.layout in _OF_COPIES else mesh
        text += f"for part in (net.body, net.head, net):\n    fully_shard(part{mesh})\n"
    if p.layout == "fsdp2_sum":
        text += "    part.set_gradient_divide_factor(1.0)\n"
        text += "    part.set_force_sum_reduction_for_comms(True)  # all that gloo has\n"
    return text


def wrapped(p: Program) -> str:
    """What the loop calls."""
    return "DistributedDataParallel(net)" if p.ddp and p.loop not in FRAMEWORKS else "net"


def is_last(p: Program) -> str:
    """Whether a micro-batch is the last of its window: an expression of the loop's variables."""
    if p.loop == "off_by_one":
        return "i % K == 0"
    if p.loop in ("epochs", "lightning_manual"):
        return "(i + 1) % K == 0"
    return "m == len(windows[w]) - 1"


def sync_context(p: Program, no_sync: str = "model.no_sync()") -> str:
    """The context of a micro-batch's forward and backward pass, if there is one."""
    if not p.ddp or "synced_every_micro_batch" in p.mistakes:
        return ""
    if "never_synced" in p.mistakes:
        return no_sync
    chosen = "m == 0" if "first_synced" in p.mistakes else is_last(p)
    return f"contextlib.nullcontext() if {chosen} else {no_sync}"


def before_micro_batch(p: Program) -> list[str]:
    """Lines."""
    if p.layout == "hsdp_deferred":  # the copies are combined once for a window
        return [f"model.set_requires_all_reduce({is_last(p)})"]
    if p.layout in FSDP2 and p.layout != "fsdp2_every":
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
    by_loop = p.loop in COUNTED_BY_TRAINER
    averaged = (p.ddp and not by_loop) or (p.layout in FSDP2 and p.layout != "fsdp2_sum")
    return " * world_size" if p.ranks_count == "all" and averaged else ""


def end(p: Program) -> str:
    """Wait for the other ranks. Gloo's destructor can hang, so the group lives to the end."""
    return "" if p.layout == "one" else "dist.barrier()"
