"""A training program as a choice along each dimension, and how choices are drawn.

The simplest choice of each dimension comes first.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, fields, replace

# How often a choice is drawn, relative to the others of its dimension.
Weights = dict[str, int]

DIMENSIONS: dict[str, Weights] = {
    # how micro-batches become windows
    "loop": {
        "windows": 3,
        "function": 2,
        "iterator": 2,
        "closure": 1,
        "counter": 2,
        "modulo": 3,
        "tail": 3,
        "off_by_one": 1,
        "epochs": 1,
        # of frameworks: drawn only where they are asked for
        "accelerate": 0,
        "fabric": 0,
        "lightning": 0,
        "lightning_manual": 0,
        "trainer_compute_loss": 0,
        "trainer_loss_func": 0,
        "trainer_head": 0,
        "trainer_training_step": 0,
    },
    # what each micro-batch's loss is
    "objective": {
        "cross_entropy": 6,
        "ignore_index": 6,
        "masked": 3,
        "log_probs": 2,
        "smoothed": 2,
        "class_weights": 2,
        "chunked": 2,
        "focal": 2,
        "squared_error": 3,
        "binary": 2,
        "divergence": 2,
        "policy": 2,
        "preference": 2,
        "contrastive": 2,
        "ctc": 2,
    },
    # further terms of the loss
    "auxiliary": {
        "none": 10,
        "penalty": 2,
        "z_loss": 2,
        "second_head": 2,
        "z_loss+penalty": 1,
        "second_head+z_loss": 1,
    },
    # what the loss is divided by
    "normalisation": {
        "window": 4,
        "share": 3,
        "mean_k": 6,
        "never": 2,
        "twice": 2,
        "terms_never": 1,  # by K, but further terms by nothing
        "samples": 2,
        "padded": 2,
        "after_backward": 2,
        "stale_count": 2,
        "sum": 1,
        "sequence": 2,
    },
    # how many elements the micro-batches have
    "data": {
        "equal": 3,
        "unequal": 6,
        "short_batch": 1,
        "empty_micro_batch": 2,
        "empty_rank": 1,
        "short_window": 2,
        "growing_k": 1,
    },
    "accumulation": {"2": 3, "3": 2, "4": 4, "1": 1},
    # where the gradients of a window are summed
    "accumulate_in": {"grad": 12, "buffers": 1},
    "optimizer": {"sgd": 3, "adamw": 3},
    # one of all parameters; one of each half; one more for an adversary that is trained in turns
    "optimizers": {"one": 12, "two": 2, "adversary": 1},
    "clipping": {"none": 3, "window": 3},
    "precision": {"float32": 6, "bfloat16": 1, "scaler": 3},
    # one step that the scaler, or a guard of the loop, skips because a gradient is not finite
    "skipped": {"none": 12, "overflow": 2, "guard": 2},
    "schedule": {"none": 3, "cosine": 1},
    "checkpointing": {"none": 6, "non_reentrant": 1},
    # what torch.compile gets: nothing, the model, or the model with its loss
    "compile": {"none": 40, "model": 1, "loss": 1},
    # which processes train, and how they combine gradients
    "layout": {
        "one": 20,
        "ddp": 9,
        "ddp_of_4": 2,
        "all_reduce": 4,
        "all_reduce_of_4": 2,
        "fsdp2": 2,
        "hsdp": 1,
        "tensor": 1,
        "tensor_fsdp2": 1,
        "context": 4,
        # drawn only where they are asked for
        "pipeline": 0,
        "fsdp2_sum": 0,
        "fsdp2_every": 0,
        "hsdp_deferred": 0,
    },
    # what a loop that combines gradients itself does
    "all_reduce": {
        "after_window": 6,
        "sum_only": 1,
        "early": 1,
        "without_biases": 1,
        "half_of_ranks": 2,
    },
    # what the normalisation counts over where there is more than one rank
    "ranks_count": {"each": 1, "all": 2, "all_without_factor": 1},
    "mistake": {
        "none": 10,
        "never_zeroed": 1,
        "second_never_zeroed": 1,
        "zeroed_every_micro_batch": 1,
        "zeroed_before_step": 1,
        "stepped_every_micro_batch": 1,
        "stepped_twice": 1,
        "clipped_every_micro_batch": 1,
        "scheduled_every_micro_batch": 1,
        "scaler_bypassed": 1,
        "clipped_before_unscale": 1,
        "first_unscaled": 1,
        "unscaled_inside": 1,
        "updated_between": 1,
        "synced_every_micro_batch": 1,
        "never_synced": 1,
        "first_synced": 1,
        "same_data": 1,
    },
}
DIMENSIONS["second_mistake"] = {**DIMENSIONS["mistake"], "none": 4}
_OF_4 = ("ddp_of_4", "all_reduce_of_4", "hsdp", "tensor_fsdp2", "hsdp_deferred")
PROCESSES = dict.fromkeys(DIMENSIONS["layout"], 2) | {"one": 1} | dict.fromkeys(_OF_4, 4)
FRAMEWORKS = {name for name, weight in DIMENSIONS["loop"].items() if not weight}
# They divide each loss by K.
DIVIDING = {"accelerate", "lightning", "trainer_compute_loss"}
# The Trainer counts the labels of a window for them, and undoes the average over ranks.
COUNTED_BY_TRAINER = {"trainer_loss_func", "trainer_head"}
# Gradients of parts of parameters; ``_sum`` adds up the ranks, the others average.
FSDP2 = {"fsdp2", "hsdp", "tensor_fsdp2", "fsdp2_sum", "fsdp2_every", "hsdp_deferred"}
STEPS = 6
SKIPPED = 2  # the window whose step is skipped, where one is


@dataclass(frozen=True)
class Program:
    """One choice for each dimension, and the seed of its data and weights."""

    seed: int
    loop: str
    objective: str
    auxiliary: str
    normalisation: str
    data: str
    accumulation: str
    accumulate_in: str
    optimizer: str
    optimizers: str
    clipping: str
    precision: str
    skipped: str
    schedule: str
    checkpointing: str
    compile: str
    layout: str
    all_reduce: str
    ranks_count: str
    mistake: str
    second_mistake: str

    @property
    def k(self) -> int:
        """Micro-batches of a usual window."""
        return int(self.accumulation)

    @property
    def ranks(self) -> int:
        """Processes."""
        return PROCESSES[self.layout]

    @property
    def ddp(self) -> bool:
        """Whether DistributedDataParallel combines gradients."""
        return self.layout in ("ddp", "ddp_of_4")

    @property
    def by_hand(self) -> bool:
        """Whether the loop combines gradients, as a mean."""
        return self.layout in ("all_reduce", "all_reduce_of_4")

    @property
    def sharded(self) -> bool:
        """Whether a process holds parts of the parameters."""
        return self.layout == "tensor" or self.layout in FSDP2

    @property
    def tensor_ranks(self) -> int:
        """Processes that compute one replica together, with the same data."""
        return 2 if self.layout in ("tensor", "tensor_fsdp2") else 1

    @property
    def pipeline(self) -> bool:
        """Whether each process holds stages of the model, which a schedule of PyTorch runs."""
        return self.layout == "pipeline"

    @property
    def replica_ranks(self) -> int:
        """Processes that hold one replica of the model together."""
        return self.ranks if self.pipeline else self.tensor_ranks

    @property
    def data_ranks(self) -> int:
        """Processes, or groups of them, that have different tokens."""
        return self.ranks // self.replica_ranks

    @property
    def divides(self) -> bool:
        """Whether not the script divides by K, but what runs its loop."""
        return self.loop in DIVIDING or self.pipeline

    @property
    def auxiliaries(self) -> list[str]:
        """The further terms of the loss."""
        terms = [] if self.auxiliary == "none" else self.auxiliary.split("+")
        return [*terms, "adversary"] if self.optimizers == "adversary" else terms

    @property
    def mistakes(self) -> set[str]:
        """The mistakes in the order of calls, or in which ranks get which data."""
        return {self.mistake, self.second_mistake} - {"none"}

    @property
    def choices(self) -> dict[str, str]:
        """The choice of each dimension."""
        return {name: str(value) for name, value in asdict(self).items() if name != "seed"}


# Mistakes of the same part of a loop are not made together.
_PARTS = {
    "zeroing": {
        "never_zeroed",
        "second_never_zeroed",
        "zeroed_every_micro_batch",
        "zeroed_before_step",
    },
    "stepping": {"stepped_every_micro_batch", "stepped_twice"},
    "clipping": {"clipped_every_micro_batch", "clipped_before_unscale"},
    "scheduling": {"scheduled_every_micro_batch"},
    "scaler": {"scaler_bypassed", "first_unscaled", "unscaled_inside", "updated_between"},
    "ranks": {"synced_every_micro_batch", "never_synced", "first_synced", "same_data"},
}
_NEEDS_SCALER = _PARTS["scaler"] | {"clipped_before_unscale"}
_SYNCING = {"fabric", "lightning_manual"}  # the script says which micro-batches are synced
_INSIDE_WINDOW = {"first_synced", "first_unscaled", "unscaled_inside"}
_WINDOWED = {"windows", "function", "iterator"}  # a window is in hand before it is trained
_SHORT_WINDOWED = _WINDOWED | {"tail", "epochs"}
_IGNORING = {"ignore_index", "masked"}
_SEQUENCES = {"cross_entropy", "ignore_index", "masked", "log_probs"}
_PLAIN = {"cross_entropy", "log_probs", "smoothed"}


def is_valid(p: Program) -> bool:
    """Whether the choices have a meaning together."""
    return not _violations(p)


def _violations(p: Program) -> int:
    """Conditions that are not met."""
    of_mistakes = (each for mistake in p.mistakes for each in _of_mistake(p, mistake))
    choices = (_arithmetic(p), _mechanics(p), _layouts(p), _of_framework(p))
    conditions = (*choices, of_mistakes, _of_two(p))
    return sum(not each for each in itertools.chain(*conditions))


def _arithmetic(p: Program) -> Iterator[bool]:
    """Of objective, auxiliary, normalisation and data."""
    several = p.k > 1
    yield several or p.normalisation not in ("twice", "never")
    yield p.data != "short_window" or (p.loop in _SHORT_WINDOWED and p.k > 2)
    yield p.normalisation != "terms_never" or (several and p.auxiliary != "none")
    yield p.data != "growing_k" or (
        p.loop in ("windows", "function") and p.normalisation != "twice"
    )
    yield p.data != "empty_micro_batch" or (several and p.objective in _IGNORING)
    yield p.data != "empty_rank" or (p.objective in _IGNORING and p.data_ranks > 1)
    yield p.data != "empty_rank" or p.ranks_count != "each"
    # DTensor cannot reshape a tensor without rows
    yield p.data not in ("empty_micro_batch", "empty_rank") or p.tensor_ranks == 1
    # the first window would hold nothing else
    yield p.data != "empty_micro_batch" or p.loop != "off_by_one"
    # an empty micro-batch has no mean
    empty = p.data in ("empty_micro_batch", "empty_rank")
    yield not empty or p.normalisation in ("window", "after_backward", "sum")
    yield p.normalisation != "sequence" or p.objective in _SEQUENCES
    yield p.normalisation != "padded" or p.objective in _IGNORING
    yield p.normalisation != "stale_count" or p.data != "equal"
    yield p.normalisation != "samples" or p.objective in _SEQUENCES
    heads = {"second_head", "z_loss"} & set(p.auxiliaries)
    yield not heads or p.objective in ("cross_entropy", "ignore_index")


def _mechanics(p: Program) -> Iterator[bool]:
    """Of how the loop of one process calls PyTorch."""
    plain = p.precision == "float32" and p.layout == "one" and not p.mistakes
    yield p.precision != "scaler" or p.clipping == "none" or p.normalisation != "after_backward"
    yield p.checkpointing == "none" or p.layout == "one"
    yield p.loop != "closure" or (
        plain and (p.optimizers, p.skipped, p.accumulate_in) == ("one", "none", "grad")
    )
    yield p.loop not in ("off_by_one", "epochs") or (p.skipped == "none" and not p.mistakes)
    yield p.loop != "off_by_one" or p.k > 1
    yield p.loop != "epochs" or p.data != "short_window" or p.normalisation == "mean_k"
    yield p.accumulate_in == "grad" or ((p.layout == "one" or p.by_hand) and not p.mistakes)
    yield p.accumulate_in == "grad" or (p.optimizers, p.all_reduce) == ("one", "after_window")
    yield p.optimizers != "two" or p.layout == "one" or p.ddp
    yield p.optimizers != "adversary" or (plain and p.loop in _WINDOWED and p.skipped == "none")
    yield p.optimizers != "adversary" or (p.objective in _PLAIN and p.compile == "none")
    yield p.optimizers != "adversary" or p.normalisation in ("mean_k", "window", "never", "twice")
    yield p.optimizers != "adversary" or p.auxiliary == "none"
    yield p.skipped != "overflow" or (p.precision == "scaler" and not p.mistakes)
    yield p.skipped != "guard" or (p.clipping == "window" and p.precision != "scaler")
    yield p.skipped != "guard" or not p.mistakes
    yield p.skipped == "none" or p.layout == "one" or p.ddp
    yield p.compile == "none" or (plain and p.checkpointing == "none" and p.data != "growing_k")
    yield p.compile != "loss" or (p.auxiliary == "none" and p.normalisation != "sequence")


def _layouts(p: Program) -> Iterator[bool]:
    """Of which processes there are and how they combine gradients."""
    yield p.all_reduce == "after_window" or p.by_hand
    yield p.all_reduce == "after_window" or p.ranks_count == "each"
    yield p.all_reduce != "early" or p.k > 1
    yield p.all_reduce != "early" or p.loop not in ("off_by_one", "epochs")
    # a window of one micro-batch has no gradient yet
    yield p.all_reduce != "early" or p.data not in ("short_window", "growing_k")
    yield p.all_reduce != "half_of_ranks" or p.layout == "all_reduce_of_4"
    yield p.data_ranks > 1 or p.ranks_count == "each"
    yield p.ranks_count == "each" or p.normalisation in ("window", "share")
    yield p.layout == "one" or p.ddp or p.precision == "float32"
    # a norm of sharded parameters is no part of a loss of whole tensors
    yield not p.sharded or "penalty" not in p.auxiliaries
    yield not p.sharded or p.normalisation != "after_backward"
    # of two parts of a short sentence, one may have no token and so no mean
    yield p.layout != "context" or (p.objective in _IGNORING and p.auxiliary == "none")
    yield p.layout != "context" or p.normalisation == "window"
    yield p.layout != "context" or p.ranks_count != "all_without_factor"
    if p.pipeline:
        yield from _pipelines(p)


def _pipelines(p: Program) -> Iterator[bool]:
    """Of stages: the loss is a function of the last one's output, and all shapes are equal."""
    yield p.loop == "windows" and p.k > 1
    yield p.data == "equal" or (p.data == "unequal" and p.objective in _IGNORING)
    yield p.objective in {*_SEQUENCES, "smoothed", "squared_error", "binary", "focal"}
    yield p.normalisation not in ("sequence", "samples")
    yield (p.auxiliary, p.accumulate_in, p.optimizers) == ("none", "grad", "one")
    # each process would clip by the norm of its own stages
    yield (p.clipping, p.skipped, p.checkpointing, p.compile) == ("none",) * 4
    yield not p.mistakes


def _of_framework(p: Program) -> Iterator[bool]:
    """Of a loop that a framework runs: few choices, because each has its own way for the others."""
    if p.loop not in FRAMEWORKS:
        return
    yield p.objective in (*_SEQUENCES, "smoothed", "squared_error", "binary")
    yield p.auxiliary == "none"
    yield p.data in ("equal", "unequal")
    yield p.layout in ("one", "ddp")
    yield (p.precision, p.clipping, p.schedule) == ("float32", "none", "none")
    yield (p.checkpointing, p.compile, p.skipped) == ("none", "none", "none")
    yield (p.accumulate_in, p.optimizers) == ("grad", "one")
    yield p.mistakes <= (_PARTS["ranks"] if p.loop in _SYNCING else {"same_data"})
    yield p.ranks_count != "all_without_factor" or p.loop not in COUNTED_BY_TRAINER
    yield p.normalisation in ("window", "mean_k", "never", "twice", "sum")
    # the Trainer counts the labels of a window; where it divides by K, it does not
    yield p.loop != "trainer_compute_loss" or p.normalisation in ("mean_k", "twice", "sum")
    yield p.loop not in DIVIDING or p.normalisation != "never"


def _of_mistake(p: Program, mistake: str) -> Iterator[bool]:
    """Of a mistake with the choices that it needs."""
    yield mistake not in _PARTS["ranks"] or p.ddp or (mistake == "same_data" and p.by_hand)
    yield mistake not in _NEEDS_SCALER or p.precision == "scaler"
    # with `unscale_` for the clipping, a plain step is right
    yield mistake != "scaler_bypassed" or p.clipping == "none"
    yield mistake != "clipped_before_unscale" or p.clipping == "window"
    yield mistake != "clipped_every_micro_batch" or p.clipping == "window"
    yield mistake != "scheduled_every_micro_batch" or p.schedule == "cosine"
    # such a mistake does nothing where a window is one micro-batch
    inside = "every_micro_batch" in mistake or mistake in _INSIDE_WINDOW
    yield p.k > 1 or not inside
    yield mistake not in ("second_never_zeroed", "updated_between") or p.optimizers == "two"
    # the same divisor may be a count of other data: the truth is that of the ranks' own; and of
    # equal gradients, it is as right to leave some out
    yield mistake != "same_data" or (
        p.normalisation != "samples" and p.all_reduce == "after_window"
    )
    # of equal gradients, a sum over ranks cannot be told from a penalty of R times its coefficient
    summed = p.by_hand and p.ranks_count == "all" and "penalty" in p.auxiliary
    yield mistake != "same_data" or not summed
    # a micro-batch without a token leaves nothing that zeroing could discard
    yield mistake != "zeroed_every_micro_batch" or p.data != "empty_micro_batch"
    # PyTorch itself raises: the scaler has seen no gradient
    yield mistake != "zeroed_before_step" or p.precision != "scaler"
    # without the division, stepping every micro-batch is right
    yield mistake != "stepped_every_micro_batch" or p.normalisation == "mean_k"
    yield p.layout == "one" or p.ddp or (mistake == "same_data" and p.by_hand)


def _of_two(p: Program) -> Iterator[bool]:
    """At most two mistakes, of which one may be in the arithmetic."""
    yield p.second_mistake == "none" or p.mistake != p.second_mistake
    yield p.mistake != "none" or p.second_mistake == "none"
    yield all(len(p.mistakes & part) < 2 for part in _PARTS.values())
    yield len(p.mistakes) < 2 or is_balanced(p)
    # PyTorch itself raises: the scaler is updated, and no gradient was unscaled; or it steps, and
    # has scaled no loss before
    yield not p.mistakes >= {"stepped_twice", "scaler_bypassed"}
    yield not p.mistakes >= {"stepped_every_micro_batch", "first_unscaled"}


def is_balanced(p: Program) -> bool:
    """Whether every element gets the same weight, by construction."""
    if p.ranks_count == "all_without_factor" or p.all_reduce != "after_window":
        return False
    if p.data == "equal" and p.layout != "context":
        return p.normalisation in ("mean_k", "share", "window")
    everywhere = p.data_ranks == 1 or p.ranks_count == "all"
    return p.data == "unequal" and p.normalisation in ("share", "window") and everywhere


def draw(seed: int, only: str = "") -> Iterator[Program]:
    """Programs without end, the same for the same arguments.

    All have the choices of ``only``, such as ``layout:ddp,loop:tail/modulo``. Raises ValueError if
    one does not exist, or if no program has them all.
    """
    chance, fixed = random.Random(f"{seed} {only}"), parsed(only)
    simplest = {name: next(iter(choices)) for name, choices in DIMENSIONS.items()}
    refused = 0
    while refused < 200:
        choices = {name: chance.choice(each) for name, each in fixed.items()}
        start = Program(chance.randrange(1 << 31), **{**simplest, **choices})
        program = _varied(start, DIMENSIONS.keys() - fixed.keys(), chance)
        refused += 1
        if is_valid(program):
            refused = 0
            yield program
    raise ValueError(f"no program has {only}")


def _varied(program: Program, dimensions: AbstractSet[str], chance: random.Random) -> Program:
    """Draw a choice for each dimension, and make those that fit what was drawn before."""
    drawn = [
        (name, chance.choices([*weights], [*weights.values()])[0])
        for name, weights in DIMENSIONS.items()
        if name in dimensions
    ]
    chance.shuffle(drawn)
    violations = _violations(program)
    for name, choice in (*drawn, *drawn):  # again, because one choice may need another
        candidate = replace(program, **{name: choice})  # type: ignore[arg-type]
        if (count := _violations(candidate)) <= violations:
            program, violations = candidate, count
    return program


def parsed(only: str) -> dict[str, list[str]]:
    """The choices of each dimension in ``layout:ddp,loop:tail/modulo``. Raises ValueError."""
    pairs = [pair.partition(":") for pair in only.split(",") if pair]
    for name, _, choices in pairs:
        if name not in DIMENSIONS:
            raise ValueError(f"no dimension {name!r}; there are {', '.join(DIMENSIONS)}")
        for choice in choices.split("/"):
            if choice not in DIMENSIONS[name]:
                raise ValueError(f"{name} has no {choice!r}, only {', '.join(DIMENSIONS[name])}")
    return {name: choices.split("/") for name, _, choices in pairs}


assert [*DIMENSIONS] == [field.name for field in fields(Program)][1:]
