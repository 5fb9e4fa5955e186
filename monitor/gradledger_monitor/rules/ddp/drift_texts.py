"""What findings on replicas that differ state: titles, summaries and fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import NamedTuple

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import finite_values
from gradledger_monitor.rules.ddp.groups_apart import shown
from gradledger_monitor.rules.ddp.replicas import SAME, Replicas, differ_by
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.rule import finding

APART = "The replicas differ between the ranks"


class Text(NamedTuple):
    """What a finding states."""

    title: str
    summary: str
    fix: str
    severity: Severity = "error"


FIX = """\
# where the model is wrapped, after the last module is added and any requires_grad_(True):
everything = nn.Sequential(body, head)           # one module with all trained parameters
model = DistributedDataParallel(everything)
optimizer = make_optimizer(model.parameters())   # over the wrapper's parameters"""

FIX_APART = """\
# Between backward and step, do the same on every rank: no_sync(), the factor on the gradients, the
# limit of clipping, the learning rate and a guard that skips the step must not depend on the rank.
# Such a guard decides on a loss or norm that is equal on all of them, as after dist.all_reduce."""

FIX_OF_HOOK = """\
# return the average of the ranks' gradients from the comm hook of DDP, or average their models from
# time to time: PostLocalSGDOptimizer with a PeriodicModelAverager"""

DIFFERED_AT_START = (
    "some parameters differ between the ranks from the start: whether the model uses them, and the "
    "loop combines their gradients, is not known"
)

MAY_BE_EXPERTS = (
    "the ranks exchange activations by all-to-all, and parameters that were equal on all of them "
    "differ now: whether these are of experts, which each rank trains for itself, is not known"
)

HOOK_COMBINES_NOTHING = " The comm hook of DDP combines no gradients in this step."

FIX_IGNORED = """\
for parameter in ignored:               # the ignored_params of fully_shard, after the last backward
    dist.all_reduce(parameter.grad)
    parameter.grad /= dist.get_world_size()
optimizer.step()"""

FIX_EXCLUDED = """\
# where the model is wrapped:
frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, frozen)
model = DistributedDataParallel(module)          # reduces all that are trained"""

FIX_BY_HAND = """\
for parameter in model.parameters():    # all that are trained, after the last backward of a window
    dist.all_reduce(parameter.grad)     # over all ranks
    parameter.grad *= factor            # the same number on all ranks
optimizer.step()                        # at the same learning rate on all ranks"""

FIX_WAIT = """\
works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
for work in works:                      # before anything reads the gradients
    work.wait()
optimizer.step()                        # on what was all-reduced, and on no copy of it"""

FIX_OF_SHARES = """\
# Before the step, reduce every gradient over all ranks to the rank whose optimizer holds its
# parameter, the last bucket, too."""

FIX_BESIDE_SHARDS = """\
# Only for parameters that are equal on all ranks at first, no shards of larger ones: all-reduce
# their gradients over all ranks after the last backward of a window, and multiply them by the same
# number on all ranks."""

FIX_OF_GROUPS = """\
for parameter in experts:               # after the last backward of a window
    dist.all_reduce(parameter.grad, group=copies)  # over the ranks that hold copies of it
    parameter.grad *= factor            # the same number as for the other parameters
optimizer.step()"""

FIX_OF_PARTS = """\
class Enter(torch.autograd.Function):   # where a tensor enters a layer that the ranks hold in parts
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):        # each rank has a part of it
        gradient = gradient.clone()
        dist.all_reduce(gradient)       # over the ranks that hold the parts
        return gradient"""

FIX_PLAN = """\
# in the plan of parallelize_module: each module that gets a part of the sequence
plan["norm"] = SequenceParallel(use_local_output=True)"""

FIX_CLIP_OF_PARTS = """\
# Clip by the norm of the whole model, one number on all ranks: all-reduce the sum of squares of
# what each rank holds alone, add that of what all ranks hold once, and give the root of this to
# torch.nn.utils.clip_grads_with_norm_."""

FIX_COPIES = """\
dist.all_reduce(flat)                   # a copy of all gradients
flat /= dist.get_world_size()
parts = flat.split([parameter.grad.numel() for parameter in parameters])
for parameter, part in zip(parameters, parts):
    parameter.grad.copy_(part.view_as(parameter.grad))
optimizer.step()                        # on what was copied back"""

FIX_START = """\
with torch.no_grad():                   # before the first step
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, src=0)"""


MAY_BE_PERSONAL = (
    " Either the loop leaves them out by mistake, or each rank is meant to train its own, such as "
    "a personal head, an adapter or a norm layer: then this is intended."
)

MAY_BE_OWN = " If each rank is meant to train its own, such as {}, this is intended."


def of_rounding(replicas: Replicas) -> Outcome:
    return finding(
        "info",
        "The replicas differ by rounding errors",
        "The ranks step on sums of their gradients that are equal up to rounding, and not bit by "
        "bit: the ranks may add them up in different orders. "
        f"{drift(replicas.apart, replicas.total)}. The differences are at most "
        f"{significant(max(replicas.shares[index] for index in replicas.apart))} times what the "
        "steps have changed of the parameter. An all-reduce gives all ranks the same bits.",
        FIX_BY_HAND,
        parameters=replicas.listed(replicas.apart)[:16],
        parameters_total=replicas.total,
    )


def not_averaged(parameters: Sized, total: int) -> str:
    return (
        f"the ranks average their parameters, and {share(parameters, total)} afterwards: whether "
        "each rank is meant to keep its own is not known"
    )


def scaled(scales: Sequence[float]) -> Text:
    numbers = ", ".join(map(significant, scales[:8]))
    return Text(
        "Each rank scales the combined gradient by its own number",
        "The ranks combine their gradients, and multiply the result by different numbers: relative "
        f"to the first rank, by {numbers}. The replicas drift apart.",
        FIX_BY_HAND,
    )


def grouped(groups: Sequence[Sequence[int]], windows: int) -> Text:
    return Text(
        f"Gradients are combined in {counted(len(groups), 'group')} of ranks, not over all",
        f"For {counted(windows, 'window')}, the ranks have stepped on different gradients, by "
        f"group: {shown(groups)}. They started from equal parameters, which differ now, so each "
        "group trains another model. If the groups average their parameters later, it is intended.",
        FIX_BY_HAND,
    )


def left_out(replicas: Replicas, all_drift: bool, all_sent: bool = False) -> Text:
    """``all_drift``: what was combined drifts, too; ``all_sent``: as many numbers as the gradients
    have were all-reduced, so that none may be left out."""
    parameters = replicas.drifted
    drifted = drift(parameters, replicas.total)
    start = "The ranks combine gradients, and yet step on different ones"
    if all_sent and not replicas.groups:
        causes = (
            "The loop all-reduces as many numbers as the gradients have. Copies of the gradients "
            "do this if the step does not wait for their all-reduce, or not all are copied back"
        )
        return Text(start, f"{drifted}. {causes}.", FIX_WAIT)
    if all_drift or len(parameters) == replicas.total:
        causes = (
            "An all-reduce that leaves out some gradients does this before they are clipped by "
            "norm; so does a step that does not wait for an asynchronous all-reduce"
        )
        return Text(start, f"{drifted}. {causes}.", FIX_BY_HAND)
    shapes = ", ".join(replicas.listed(parameters)[:4]) + (", ..." if len(parameters) > 4 else "")
    summary = f"{start}. {drifted}: {shapes}."
    number = f"{counted(len(parameters), 'parameter')} {'is' if len(parameters) == 1 else 'are'}"
    fix = FIX_BESIDE_SHARDS if replicas.differed_at_start else FIX_BY_HAND
    if replicas.groups:
        within = (
            f" Within these groups of ranks they are equal: {shown(replicas.groups)}. If each rank "
            "of a group holds another part of one model, an all-reduce in its backward is missing."
        )
        return Text(f"{number} not combined over all ranks", summary + within, fix)
    title = f"{number} left out of the all-reduce"
    beside = replicas.beside_combined
    if beside:
        return Text(title, f"{summary} The loop combines {beside}.", fix)
    return Text(title, summary + MAY_BE_PERSONAL, fix, "warning")


def of_groups(replicas: Replicas, other: Sequence[Sequence[int]]) -> Outcome:
    """Of parameters such as experts; ``other``: groups whose gradients the loop combines."""
    parameters, total = replicas.of_one_grouping, replicas.total
    names = f", as rank {replicas.groups_of_copies[0][0]} names them" if replicas.parts else ""
    return finding(
        "error",
        f"The copies of {counted(len(parameters), 'parameter')} differ between the ranks",
        f"{_of_copies(replicas, ', as the copies of experts are')}{names}. The ranks combine the "
        "gradients of other parameters"
        + (
            f", and those of these over other groups: {shown(other)}."
            if other
            else ", and step on different ones of these."
        ),
        FIX_OF_GROUPS,
        groups=[list(group) for group in replicas.groups_of_copies[:16]],
        combined=[list(group) for group in other[:16]],
        parameters=replicas.listed(parameters)[:16],
        parameters_total=total,
    )


def of_ignored_groups(replicas: Replicas, wrapper: str, ignored: int) -> Outcome:
    """Of parameters that the wrapper ignores: experts, or heads of a few seeds."""
    parameters = replicas.of_one_grouping
    return finding(
        "warning",
        f"Ignored by {wrapper}, and not synchronised: {counted(len(parameters), 'parameter')}",
        f"{wrapper} ignores {counted(ignored, 'parameter')}, whose gradients the loop does not "
        f"reduce between backward and step either. {_of_copies(replicas)}. If each rank is meant "
        "to train its own, from the same start as others, this is intended; if they are the "
        "copies of experts, it is not.",
        FIX_OF_GROUPS,
        groups=[list(group) for group in replicas.groups_of_copies[:16]],
        ignored=ignored,
        parameters=replicas.listed(parameters)[:16],
        parameters_total=replicas.total,
    )


def _of_copies(replicas: Replicas, like: str = "") -> str:
    parameters = replicas.of_one_grouping
    shapes = ", ".join(replicas.listed(parameters)[:4]) + (", ..." if len(parameters) > 4 else "")
    verb = "was" if len(parameters) == 1 else "were"
    return (
        f"{len(parameters):,} of {counted(replicas.total, 'parameter')} {verb} equal at first "
        f"within these groups of ranks, and not between them{like}: "
        f"{shown(replicas.groups_of_copies)}. Now the ranks of a group differ: {shapes}"
    )


def of_parts(replicas: Replicas, matrices: Sequence[int], ranks: int, clipped: bool) -> Outcome:
    """Of ranks that hold one model in parts; ``clipped``: by another factor on each of them."""
    apart = {index: replicas.apart[index] for index in matrices}
    shapes = ", ".join(replicas.listed(apart)[:4]) + (", ..." if len(apart) > 4 else "")
    cause = (
        "Each rank clips by another factor, as by the norm of what it holds itself: copies stay "
        "equal if all ranks clip by the norm of the whole model."
        if clipped
        else "The gradient of what enters a layer that the ranks hold in parts has to be added up "
        "over them in backward; without that, each rank steps its copy of the layers below on a "
        "part of the gradient."
    )
    return finding(
        "error",
        f"The copies of {counted(len(apart), 'parameter')} differ between ranks that hold one "
        "model in parts",
        f"In the first window, the {ranks} ranks had equal losses of the same data, although they "
        "hold different parameters: they compute one model in parts, as in tensor parallelism. "
        f"Parameters that were equal on all ranks differ now ({shapes}), and so do the losses of "
        f"the same data. {cause}",
        FIX_CLIP_OF_PARTS if clipped else FIX_OF_PARTS,
        ranks=ranks,
        parameters=replicas.listed(apart)[:16],
        parameters_total=replicas.total,
    )


def of_unwaited(replicas: Replicas, shares: Sequence[float]) -> Outcome:
    """``shares``: of the gradients of each rank."""
    least, most = min(shares), max(shares)
    numbers = percent(most) if least == most else f"{percent(least)} to {percent(most)}"
    return finding(
        "error",
        "The step does not wait for the all-reduce",
        f"The loop starts the all-reduce of {numbers} of its gradients and does not wait for "
        "it before the step, so each rank steps on what has arrived by then. "
        f"{drift(replicas.drifted, replicas.total)}.",
        FIX_WAIT,
        unwaited=list(shares[:16]),
        parameters=replicas.listed(replicas.drifted)[:16],
        parameters_total=replicas.total,
    )


def of_peers(
    parameters: Mapping[int, Sequence[int]], copies: Replicas, ranks: list[int]
) -> Outcome:
    """Of tensor parallelism by DTensors: what is not placed over the ranks."""
    shapes = ", ".join(copies.listed(parameters)[:4]) + (", ..." if len(parameters) > 4 else "")
    drawn = any(len(shape) > 1 for shape in parameters.values())
    return finding(
        "info" if drawn else "warning",
        f"The copies of {counted(len(parameters), 'parameter')} differ between tensor-parallel "
        "ranks",
        f"Ranks {', '.join(map(str, ranks[:8]))} hold one model in parts. Parameters that are no "
        f"DTensors over these ranks were equal on all of them at first, and differ now ({shapes}). "
        "A module that computes on a part of the sequence does this if the plan lacks it: its "
        "gradient on each rank is that of the part, and nothing adds these up. So do other dropout "
        "masks on each rank, and clipping by the norm of what it holds. If they are parts that "
        "start from equal values, as those that all ranks draw from one seed, this is intended.",
        FIX_PLAN,
        ranks=ranks[:64],
        parameters=copies.listed(parameters)[:16],
        parameters_total=copies.total,
    )


def of_owners(share_of: float, ranks: int) -> Outcome:
    """Of a model that the optimizers of the ranks share out."""
    return finding(
        "error",
        "Some parameters are stepped on the gradients of one rank alone",
        f"The optimizers of the {ranks} ranks share out the parameters. The ranks combine the "
        f"gradients of some of them, but {percent(share_of)} of the sampled coordinates are "
        "stepped on the gradients that the rank which holds them computed itself. What the other "
        "ranks computed for these has no effect.",
        FIX_OF_SHARES,
        share=round(share_of, 4),
        ranks=ranks,
    )


def of_unwrapped(replicas: Replicas, windows: int) -> Outcome:
    """Of an optimizer whose parameters no wrapper holds, while DDP synchronises others."""
    return finding(
        "warning",
        f"Trained outside the DDP wrapper: {counted(replicas.total, 'parameter')}",
        f"In the last {counted(windows, 'window')}, DDP synchronised the gradients of "
        "other parameters, and none of this optimizer's, which no wrapper holds. "
        f"{drift(replicas.drifted, replicas.total)}. If each rank is meant to train its "
        "own, this is intended.",
        FIX,
        outside=replicas.total,
        parameters=replicas.listed(replicas.drifted)[:16],
    )


def share(parameters: Sized, total: int) -> str:
    verb = "differs" if len(parameters) == 1 else "differ"
    return f"{len(parameters):,} of {counted(total, 'parameter')} {verb}"


def drift(parameters: Sized, total: int) -> str:
    verb = "was" if len(parameters) == 1 else "were"
    return f"{share(parameters, total)} between the ranks, and {verb} equal at first"


def rates(facts: StepFacts) -> str:
    of_ranks = finite_values(facts, "lr")
    if not differ_by(of_ranks, SAME):
        return ""
    ends = f"{significant(min(of_ranks))} to {significant(max(of_ranks))}"
    return f". The learning rates are {ends}"


def outside(parameters: int, replicas: Replicas, fix: str) -> Text:
    """Of what this optimizer steps and DDP does not synchronise; a part may be of each rank."""
    one = parameters == 1
    are, were, them = ("it is", "was", "it") if one else ("they are", "were", "them")
    start = (
        f"The optimizer steps {counted(parameters, 'parameter')} that the DDP wrapper does not "
        f"synchronise: {are} not part of its model, {were} added to it after it was wrapped, or "
        f"did not require gradients then. So each rank updates {them} differently."
    )
    title = f"Trained outside the DDP wrapper: {counted(parameters, 'parameter')}"
    if replicas.apart and not replicas.drifted:
        may_be = MAY_BE_OWN.format("its part of a large head")
        from_start = f" The ranks had different values of {them} from the start."
        return Text(title, start + from_start + may_be, fix, "info")
    beside = replicas.beside_combined
    if beside:
        return Text(title, f"{start} The ranks combine {beside}.", fix)
    may_be = MAY_BE_OWN.format("a personal head or an adapter")
    return Text(title, start + may_be, fix, "warning")


def differences(norms_differ: bool, drifted: bool, norms: list[float], rates: list[float]) -> str:
    differences = []
    if norms_differ:
        differences.append(
            f"after the all-reduce the gradient norms are {min(norms):.6g} to {max(norms):.6g}"
        )
    if drifted:
        differences.append("the sampled parameters are not equal")
    if differ_by(rates, SAME):
        ends = f"{significant(min(rates))} to {significant(max(rates))}"
        differences.append(f"the learning rates are {ends}")
    return f"The ranks do not train the same model: {'; '.join(differences)}."
