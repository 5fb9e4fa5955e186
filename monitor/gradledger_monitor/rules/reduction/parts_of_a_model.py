"""What reduction.world_size states of ranks that combine parts of a model differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.ranks.manual_all_reduce import ManualAllReduce
from gradledger_monitor.model.ranks.parts_by_hand import ADDED_UP_AGAIN, scales_of_parts
from gradledger_monitor.model.ranks.weighted_sum import NO_SUM, LeftOut
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT_HALF
from gradledger_monitor.rules.balance.evidence import Near
from gradledger_monitor.rules.ddp.drift_texts import FIX_OF_PARTS
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.rule import finding, not_measured
from gradledger_monitor.rules.state import declare

LEFT_OUT_WINDOWS = 5  # in a row, until gradients are not only kept for a later step

FIX_PARTS = """\
for parameter in model.parameters():       # after the last backward
    dist.all_reduce(parameter.grad, group=holders(parameter))    # the ranks with a copy
    parameter.grad /= dist.get_world_size()       # all ranks, whose tokens reach each expert"""

FIX_ONCE = """\
# after the last backward; model.parameters() has tied weights once, that of each module twice
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
    parameter.grad *= factor               # the same number for all of them"""

FIX_SUM = """\
dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
parameter.grad /= dist.get_world_size()"""

FIX_ALL_RANKS = """\
# Between backward and the all-reduce, what zeroes or masks a gradient must not depend on the rank:
# to freeze a layer, call requires_grad_(False) on all of them."""

FIX_AGAIN = """\
# Leave out this all-reduce: after a backward that adds up the parts of each gradient, those of what
# all ranks hold are whole. Only what one rank computes alone, such as a norm layer on its part of
# a sequence, has to be added up."""

FIX_ALL_DIVISORS = """\
for module in model.modules():             # a factor does not reach the modules inside
    if isinstance(module, FSDPModule):
        module.set_gradient_divide_factor(factor)"""

FIX_OUTSIDE = """\
# after the last backward, for each parameter p outside the wrapper:
dist.all_reduce(p.grad)
p.grad /= dist.get_world_size()"""

FIX_COPIES = """\
for parameter in experts.parameters():    # of the wrapper over fewer ranks, before the step
    parameter.grad *= dist.get_world_size(experts.process_group) / dist.get_world_size()"""

SEVERAL_LOSSES = (
    "gradients of parameters outside the wrapper are divided by another number; which of "
    "several losses they belong to is not known"
)
SUM_MULTIPLIED = (
    "inside backward, an autograd function multiplies a sum over the ranks by {}: whether "
    "something in the forward calls for it, such as a mean over the ranks, is not known"
)


def scale_of_parts(facts: StepFacts) -> float | None:
    """By what an all-reduce of parts of a gradient is multiplied, if that is a number of ranks."""
    ranks = len(facts.record.tensor_group)
    counts = map(Near, (1 / ranks, float(ranks), 1 / ranks**2), [WEIGHT_HALF] * 3) if ranks else ()
    of_ranks = list(counts)
    return next((s for s in scales_of_parts(facts.record) if any(n(s) for n in of_ranks)), None)


def of_function(times: int) -> Outcome:
    """An autograd function adds up a sum of parts once more."""
    return finding(
        "warning",
        f"An autograd function adds up a gradient twice: {times} times too large",
        "In backward, an autograd function all-reduces a gradient that is another one on each "
        "rank, and then all-reduces the sum, which is the same on all of them: that multiplies it "
        f"by {times}. So each such function multiplies the gradients of all that comes before it "
        f"in the forward by {times}. If the forward divides by {times} there, this is intended.",
        FIX_OF_PARTS,
        ranks=times,
    )


class LeftOutAgain:
    """Whether one rank is left out at the same coordinates, in window after window.

    Gradients that a rank keeps for a later step, as those below a threshold, change between them.
    """

    state: ClassVar[Mapping[str, Any]] = declare(windows=int, rank=int, at=dict[int, bool])

    def __init__(self) -> None:
        self.windows, self.rank = 0, -1
        self.at: dict[int, bool] = {}  # coordinates that have shown it: whether it is left out

    def add(self, left_out: LeftOut | None) -> None:
        """Another window; None: no rank is left out."""
        if left_out is None:
            self.windows, self.at = 0, {}
            return
        at = dict.fromkeys(left_out.without, True) | dict.fromkeys(left_out.within, False)
        same = left_out.rank == self.rank and all(self.at.get(i, v) == v for i, v in at.items())
        self.windows = self.windows + 1 if same else 1
        self.at = self.at | at if same else at
        self.rank = left_out.rank


def of_unequal(all_reduce: ManualAllReduce, ranks: int, again: LeftOutAgain) -> Outcome:
    """The loop multiplies the ranks' gradients of some parameters by another number, or adds up
    other numbers, or none."""
    if all_reduce.operation:
        return _of_operation(all_reduce.operation)
    if all_reduce.left_out is not None:
        if again.windows < LEFT_OUT_WINDOWS:
            return not_measured(NO_SUM)
        return _of_rank_left_out(all_reduce.left_out.rank, again.windows)
    if all_reduce.reason == ADDED_UP_AGAIN:
        return _again(all_reduce, ranks)
    return _of_parts(all_reduce) if all_reduce.parts else _twice(all_reduce, ranks)


def _of_operation(operation: str) -> Outcome:
    return finding(
        "error",
        f"The ranks' gradients are combined by their {operation}",
        f"What the ranks step on is the {operation} of their gradients, coordinate by coordinate, "
        "and not their sum or average. It is the gradient of no loss over the data of all ranks.",
        FIX_SUM,
        operation=operation,
    )


def _of_rank_left_out(rank: int, windows: int) -> Outcome:
    return finding(
        "warning",
        f"Some gradients of rank {rank} are left out of the sum over the ranks",
        "At some of the sampled coordinates, the ranks step on the sum of the gradients of all "
        f"ranks. At others, the same ones in each of the last {counted(windows, 'window')}, what "
        f"rank {rank} has computed is not in this sum. A rank that zeroes or masks gradients "
        "between backward and the all-reduce does this: its data has no effect there, unless it "
        "adds what it left out to a later step.",
        FIX_ALL_RANKS,
        rank=rank,
    )


def _of_parts(all_reduce: ManualAllReduce) -> Outcome:
    of_all, of_groups = all_reduce.unequal
    groups = "; ".join(", ".join(map(str, group[:8])) for group in all_reduce.parts[:8])
    size = "large" if of_groups > of_all else "small"
    times = significant(max(of_groups / of_all, of_all / of_groups))
    return finding(
        "warning",
        "Gradients of parameters that groups of ranks hold are divided by another number",
        f"The loop multiplies the sum of the ranks' gradients by {significant(of_all)} in "
        f"parameters that all ranks hold, and by {significant(of_groups)} in those that groups of "
        f"ranks hold ({groups}), such as experts. The ranks communicate within backward: where "
        "they exchange activations, the tokens of all of them reach both, and the latter are "
        f"{times} times too {size} compared with the rest.",
        FIX_PARTS,
        factors=list(all_reduce.unequal),
        groups=[list(group) for group in all_reduce.parts[:16]],
    )


def _again(all_reduce: ManualAllReduce, ranks: int) -> Outcome:
    return finding(
        "warning",
        f"Gradients that are equal on all ranks are added up: {ranks} times too large",
        f"The {ranks} ranks compute one model in parts, as in tensor parallelism: in backward they "
        "add up the parts of its gradients. So the gradients of what all ranks hold are equal on "
        f"all of them when backward ends. The loop then multiplies such gradients by {ranks}, as "
        "an all-reduce of them does, and leaves those of the parts as they are.",
        FIX_AGAIN,
        factors=list(all_reduce.unequal),
        world_size=ranks,
    )


def _twice(all_reduce: ManualAllReduce, ranks: int) -> Outcome:
    low, high = map(significant, all_reduce.unequal)
    return finding(
        "warning",
        f"Some gradients are {ranks} times as large as the rest, as if all-reduced twice",
        f"The loop multiplies the sum of the ranks' gradients by {low} in some parameters and by "
        f"{high} in others: {ranks} times as much, which is the number of ranks. An all-reduce "
        "that has some parameters twice, such as tied weights, does this: the loop all-reduces "
        "more numbers than the gradients have.",
        FIX_ONCE,
        factors=list(all_reduce.unequal),
        world_size=ranks,
    )


def wrapper_divisors(facts: StepFacts) -> list[float]:
    """What the wrapper divides the gradients of different parameters by, if that differs."""
    divisors = [float(each) for each in facts.record.divisors] if facts.averaged else []
    return divisors if len(divisors) > 1 and all(divisors) else []  # nothing divides by 0


def of_divisors(facts: StepFacts, divisors: list[float]) -> Outcome:
    """The wrapper divides the gradients of different parameters by different numbers."""
    if facts.record.changed:
        return not_measured("the loop changes the gradients after the wrapper has divided them")
    if len(divisors) == 2 and facts.record.outside:
        return _outside(facts, divisors)
    return _unequal_divisors(divisors, facts.record.wrapper == "ddp")


def _outside(facts: StepFacts, divisors: list[float]) -> Outcome:
    """The loop combines the gradients of parameters that the wrapper does not hold."""
    if facts.unmeasured or len(facts.objectives) != 1 or facts.separate_tasks:
        return not_measured(facts.unmeasured or SEVERAL_LOSSES)
    by_wrapper, by_loop = divisors
    wrapper = "DDP" if facts.record.wrapper == "ddp" else "FSDP2"
    size = "large" if by_loop < by_wrapper else "small"
    times = significant(max(by_wrapper / by_loop, by_loop / by_wrapper))
    return finding(
        "warning",
        f"Gradients outside {wrapper} are divided by another number than the rest",
        f"{wrapper} divides the sum of the ranks' gradients by {significant(by_wrapper)}. The "
        "loop divides "
        f"that of the parameters outside the wrapper ({facts.record.outside}) by "
        f"{significant(by_loop)}. Compared with the rest, their gradient is {times} times too "
        f"{size}.",
        FIX_OUTSIDE,
        divisors=divisors,
        outside=facts.record.outside,
        world_size=facts.run.world_size,
    )


def _unequal_divisors(divisors: list[float], by_ddp: bool) -> Outcome:
    return finding(
        "warning",
        f"{'DDP' if by_ddp else 'FSDP'} divides the gradients of different parameters by different "
        "numbers",
        "It divides the sum of the ranks' gradients by "
        f"{', '.join(map(significant, divisors[:8]))}, depending on the module. Whatever the loss "
        "is divided by, some parameters get a gradient of another size than the others.",
        FIX_COPIES if by_ddp else FIX_ALL_DIVISORS,
        divisors=divisors[:16],
    )
