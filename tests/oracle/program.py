"""A training program as a choice along each dimension, and how choices are drawn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

# How often a choice is drawn, relative to the others of its dimension.
Weights = dict[str, int]

DIMENSIONS: dict[str, Weights] = {
    # how micro-batches become windows
    "loop": {"windows": 3, "function": 2, "counter": 2, "modulo": 3, "tail": 3},
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
    },
    # a second term of the loss
    "auxiliary": {"none": 8, "penalty": 2, "z_loss": 2, "second_head": 2},
    # what the loss is divided by
    "normalisation": {
        "window": 4,
        "share": 3,
        "mean_k": 6,
        "never": 2,
        "twice": 2,
        "samples": 2,
        "padded": 2,
        "after_backward": 2,
        "stale_count": 2,
        "sum": 1,
        "sequence": 2,
    },
    # how many elements the micro-batches have
    "data": {"equal": 3, "unequal": 6, "empty_micro_batch": 2, "short_window": 2, "growing_k": 1},
    "accumulation": {"2": 3, "3": 2, "4": 4, "1": 1},
    "optimizer": {"sgd": 3, "adamw": 3},
    "clipping": {"none": 3, "window": 3},
    "precision": {"float32": 6, "bfloat16": 1, "scaler": 3},
    "schedule": {"none": 3, "cosine": 1},
    "checkpointing": {"none": 6, "non_reentrant": 1},
    # which processes train, and how they combine gradients
    "layout": {"one": 6, "ddp": 3, "all_reduce": 1},
    # what the normalisation counts over where there is more than one rank
    "ranks_count": {"each": 1, "all": 2, "all_without_factor": 1},
    "mistake": {
        "none": 24,
        "never_zeroed": 1,
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
        "synced_every_micro_batch": 1,
        "never_synced": 1,
        "first_synced": 1,
        "same_data": 1,
    },
}
STEPS = 6
RANKS = 2


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
    optimizer: str
    clipping: str
    precision: str
    schedule: str
    checkpointing: str
    layout: str
    ranks_count: str
    mistake: str

    @property
    def k(self) -> int:
        """Micro-batches of a usual window."""
        return int(self.accumulation)

    @property
    def ranks(self) -> int:
        """Data-parallel processes."""
        return 1 if self.layout == "one" else RANKS

    @property
    def choices(self) -> dict[str, str]:
        """The choice of each dimension."""
        return {name: str(value) for name, value in asdict(self).items() if name != "seed"}


_DDP_MISTAKES = {"synced_every_micro_batch", "never_synced", "first_synced", "same_data"}
_SCALER_MISTAKES = {
    "scaler_bypassed",
    "clipped_before_unscale",
    "first_unscaled",
    "unscaled_inside",
}
_INSIDE_WINDOW = {"first_synced", "first_unscaled", "unscaled_inside"}
_WINDOWED = {"windows", "function", "tail"}  # loops that step on a short last window


def is_valid(p: Program) -> bool:
    """Whether the choices have a meaning together."""
    several = p.k > 1
    conditions = [
        p.mistake not in _DDP_MISTAKES or p.layout == "ddp",
        p.mistake not in _SCALER_MISTAKES or p.precision == "scaler",
        # with `unscale_` for the clipping, a plain step is right
        p.mistake != "scaler_bypassed" or p.clipping == "none",
        p.mistake != "clipped_before_unscale" or p.clipping == "window",
        p.mistake != "clipped_every_micro_batch" or p.clipping == "window",
        p.mistake != "scheduled_every_micro_batch" or p.schedule == "cosine",
        # such a mistake does nothing where a window is one micro-batch
        several or ("every_micro_batch" not in p.mistake and p.mistake not in _INSIDE_WINDOW),
        several or p.normalisation not in ("twice", "never"),
        p.data != "short_window" or (p.loop in _WINDOWED and p.k > 2),
        p.data != "growing_k" or (p.loop in ("windows", "function") and p.normalisation != "twice"),
        p.data != "empty_micro_batch" or (several and p.objective in _IGNORING),
        # an empty micro-batch has no mean
        p.data != "empty_micro_batch" or p.normalisation in ("window", "after_backward", "sum"),
        p.normalisation != "sequence" or p.objective in _SEQUENCES,
        p.normalisation != "padded" or p.objective in _IGNORING,
        p.normalisation != "stale_count" or p.data != "equal",
        p.normalisation not in ("samples",) or p.objective in _SEQUENCES,
        p.auxiliary != "second_head" or p.objective in ("cross_entropy", "ignore_index"),
        p.auxiliary != "z_loss" or p.objective in ("cross_entropy", "ignore_index"),
        p.layout != "one" or p.ranks_count == "each",
        p.ranks_count == "each" or p.normalisation in ("window", "share"),
        p.layout != "all_reduce" or p.precision == "float32",
        p.precision != "scaler" or p.clipping == "none" or p.normalisation != "after_backward",
        # one mistake at a time: the arithmetic of a program with a mistake of mechanics is right
        p.mistake == "none" or _is_right(p),
        # PyTorch itself raises: the scaler has seen no gradient
        p.mistake != "zeroed_before_step" or p.precision != "scaler",
        p.mistake != "stepped_every_micro_batch" or p.normalisation == "mean_k",
        p.checkpointing == "none" or p.layout == "one",
    ]
    return all(conditions)


def _is_right(p: Program) -> bool:
    """Whether every element gets the same weight, by construction."""
    if p.ranks_count == "all_without_factor":
        return False
    if p.data == "equal":
        return p.normalisation in ("mean_k", "share", "window")
    everywhere = p.layout == "one" or p.ranks_count == "all"
    return p.data == "unequal" and p.normalisation in ("share", "window") and everywhere


_IGNORING = {"ignore_index", "masked"}
_SEQUENCES = {"cross_entropy", "ignore_index", "masked", "log_probs"}


def draw(seed: int, only: str = "") -> Iterator[Program]:
    """Programs without end, the same for the same arguments.

    All have the choices of ``only``, such as ``layout:ddp,loop:tail``. Raises ValueError if one
    does not exist, or if no program has them all.
    """
    chance, fixed, refused = random.Random(f"{seed} {only}"), parsed(only), 0
    while refused < 20_000:
        choices = {
            name: chance.choices([*weights], [*weights.values()])[0]
            for name, weights in DIMENSIONS.items()
        }
        program = Program(chance.randrange(1 << 31), **{**choices, **fixed})
        refused += 1
        if is_valid(program):
            refused = 0
            yield program
    raise ValueError(f"no program has {only}")


def parsed(only: str) -> dict[str, str]:
    """The choice of each dimension in ``layout:ddp,loop:tail``. Raises ValueError."""
    pairs = [pair.partition(":") for pair in only.split(",") if pair]
    for name, _, choice in pairs:
        if name not in DIMENSIONS:
            raise ValueError(f"no dimension {name!r}; there are {', '.join(DIMENSIONS)}")
        if choice not in DIMENSIONS[name]:
            raise ValueError(f"{name} has no {choice!r}, only {', '.join(DIMENSIONS[name])}")
    return {name: choice for name, _, choice in pairs}


assert [*DIMENSIONS] == [field.name for field in fields(Program)][1:]
