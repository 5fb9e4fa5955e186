"""Which choices of a program have a meaning together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from oracle.program import COUNTED_BY_TRAINER, DIVIDING, FRAMEWORKS, Program, is_balanced

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
    "scaler": {
        "scaler_bypassed",
        "first_unscaled",
        "unscaled_inside",
        "updated_between",
        "stepped_by_other_scaler",
    },
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


def violations(p: Program) -> int:
    """How many conditions are not met: none if the choices have a meaning together."""
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
    yield not p.scaled or p.clipping == "none" or p.normalisation != "after_backward"
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
    yield p.optimizers != "adversary" or (not p.in_half and p.loop in _WINDOWED)
    yield p.optimizers != "adversary" or p.mistakes <= {"stepped_by_other_scaler"}
    yield p.optimizers != "adversary" or p.layout == "one"
    yield p.optimizers != "adversary" or p.skipped == "none"
    yield p.scalers == "one" or (p.precision, p.optimizers) == ("scaler", "adversary")
    yield p.optimizers != "adversary" or (p.objective in _PLAIN and p.compile == "none")
    yield p.optimizers != "adversary" or p.normalisation in ("mean_k", "window", "never", "twice")
    yield p.optimizers != "adversary" or p.auxiliary == "none"
    yield p.skipped != "overflow" or (p.scaled and not p.mistakes)
    yield p.skipped != "guard" or (p.clipping == "window" and not p.scaled)
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
    yield p.objective in (*_SEQUENCES, "next_token", "smoothed", "squared_error", "binary")
    yield p.loop != "trl_sft" or p.objective == "next_token"
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
    yield mistake not in _NEEDS_SCALER or p.scaled
    # with `unscale_` for the clipping, a plain step is right
    yield mistake != "scaler_bypassed" or p.clipping == "none"
    yield mistake != "clipped_before_unscale" or p.clipping == "window"
    yield mistake != "clipped_every_micro_batch" or p.clipping == "window"
    yield mistake != "scheduled_every_micro_batch" or p.schedule == "cosine"
    # such a mistake does nothing where a window is one micro-batch
    inside = "every_micro_batch" in mistake or mistake in _INSIDE_WINDOW
    yield p.k > 1 or not inside
    yield mistake not in ("second_never_zeroed", "updated_between") or p.optimizers == "two"
    yield mistake != "stepped_by_other_scaler" or p.scalers == "two"
    # the same divisor may be a count of other data: the truth is that of the ranks' own; and of
    # equal gradients, it is as right to leave some out
    yield mistake != "same_data" or (
        p.normalisation != "samples" and p.all_reduce == "after_window"
    )
    # a rank without tokens draws nothing, and from then on other data than the others
    yield mistake != "same_data" or p.data != "empty_rank"
    # of equal gradients, a sum over ranks cannot be told from a penalty of R times its coefficient
    summed = p.by_hand and p.ranks_count == "all" and "penalty" in p.auxiliary
    yield mistake != "same_data" or not summed
    # a micro-batch without a token leaves nothing that zeroing could discard
    yield mistake != "zeroed_every_micro_batch" or p.data != "empty_micro_batch"
    # PyTorch itself raises: the scaler has seen no gradient
    yield mistake != "zeroed_before_step" or not p.scaled
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
