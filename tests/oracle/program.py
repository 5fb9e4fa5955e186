"""A training program as a choice along each dimension.

The simplest choice of each dimension comes first.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

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
        "trl_sft": 0,
    },
    # what each micro-batch's loss is
    "objective": {
        "cross_entropy": 6,
        "ignore_index": 6,
        "next_token": 2,
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
        "ctc_letters": 1,
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
    "optimizers": {"one": 12, "two": 2, "adversary": 2},
    "clipping": {"none": 3, "window": 3},
    "precision": {"float32": 6, "bfloat16": 1, "scaler": 3, "float16": 1},
    # of the net and of its adversary: one for both, or one for each
    "scalers": {"one": 1, "two": 1},
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
        "stepped_by_other_scaler": 1,
        "synced_every_micro_batch": 1,
        "never_synced": 1,
        "first_synced": 1,
        "same_data": 1,
    },
}
DIMENSIONS["second_mistake"] = {**DIMENSIONS["mistake"], "none": 4}
del DIMENSIONS["second_mistake"]["stepped_by_other_scaler"]  # with an adversary, only this one
_OF_4 = ("ddp_of_4", "all_reduce_of_4", "hsdp", "tensor_fsdp2", "hsdp_deferred")
PROCESSES = dict.fromkeys(DIMENSIONS["layout"], 2) | {"one": 1} | dict.fromkeys(_OF_4, 4)
FRAMEWORKS = {name for name, weight in DIMENSIONS["loop"].items() if not weight}
# They divide each loss by K.
DIVIDING = {"accelerate", "lightning", "trainer_compute_loss"}
# The Trainer counts the labels of a window for them, and undoes the average over ranks.
COUNTED_BY_TRAINER = {"trainer_loss_func", "trainer_head", "trl_sft"}
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
    scalers: str
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
    def scaled(self) -> bool:
        """Whether a GradScaler scales the loss: of single precision, or of half."""
        return self.precision in ("scaler", "float16")

    @property
    def in_half(self) -> bool:
        """Whether the forward pass runs in half precision."""
        return self.precision in ("bfloat16", "float16")

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


def is_balanced(p: Program) -> bool:
    """Whether every element gets the same weight, by construction."""
    if p.ranks_count == "all_without_factor" or p.all_reduce != "after_window":
        return False
    if p.data == "equal" and p.layout != "context":
        return p.normalisation in ("mean_k", "share", "window")
    everywhere = p.data_ranks == 1 or p.ranks_count == "all"
    return p.data == "unequal" and p.normalisation in ("share", "window") and everywhere


assert [*DIMENSIONS] == [field.name for field in fields(Program)][1:]
