"""Every fix that a finding can show, and the program that proves it.

The gradient of a program is wrong at first, and exact with the lines of the fix. A name is that of
a constant: ``MODULE.NAME`` below ``gradledger_monitor.rules``, with ``[KEY]`` for an entry of a
table.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from gradledger_monitor import rules
from gradledger_monitor.rules.framework_fixes import has_code

TABLES = ("framework_fixes", "reduction.fixes")  # modules of nothing but fixes
_MEANS = "reduction.fixes.TOKEN_MEAN"
_WEIGHTED = "reduction.fixes.CLASS_WEIGHTED_MEAN"
_NOT_DIVIDED = "reduction.fixes.MICRO_BATCH_MEAN"
_ONCE = "reduction.fixes.ONE_DIVISION"
_MORE = "reduction.fixes.ONE_WORLD_SIZE_MORE"
_SHORT = "reduction.fixes.WINDOW_LENGTH"
_PARTIAL = "reduction.partial_window"
_UNEQUAL = "reduction.token_weights_unequal"
_MISSING = "reduction.missing_division"
_DOUBLE = "reduction.double_division"
_WORLD = "reduction.world_size"
_DRIFT = "ddp.replica_drift"
_ZEROED = "loop.zeroed_every_microbatch"


def _of(rule: str, framework: str, family: str = "loop") -> str:
    return f"framework_fixes.FRAMEWORK_FIXES[{family}.{rule}][{framework}]"


# The verdict of a fixed program is ``balanced``, but for these.
VERDICTS = {
    "ranks4/experts_in_a_wrapper": "incomplete",  # what follows the wrapper is not judged
}

# Of programs in this folder: the rule, and the fix that its finding shows
PLAIN = {
    "clip/after_the_step": ("clip.after_step", "clip.after_step.FIX"),
    "clip/before_the_division": ("clip.before_division", "clip.before_division.FIX"),
    "loop/added_again": ("loop.losses_added_again", "loop.losses_added_again.FIX"),
    "loop/backward_called_again": (
        "loop.losses_added_again",
        "loop.losses_added_again.FIX_OF_SAME",
    ),
    "loop/clipped_each": ("loop.clip_every_microbatch", "loop.clip_every_microbatch.FIX"),
    "loop/epochs_shorter_than_the_window": ("loop.never_stepped", "loop.never_stepped.FIX"),
    "loop/generator_leaks": ("loop.grads_not_zeroed", "loop.grads_not_zeroed.FIX_BEFORE"),
    "loop/head_steps_each": (
        "loop.step_every_microbatch",
        "loop.step_every_microbatch.FIX_OF_OTHER",
    ),
    "loop/never_zeroed": ("loop.grads_not_zeroed", "loop.grads_not_zeroed.FIX"),
    "loop/second_pass_of_one": (
        "loop.discarded_microbatches",
        "loop.discarded_microbatches.FIX_SECOND_PASS",
    ),
    "loop/stepped_before_the_last": ("loop.grads_not_zeroed", "loop.grads_not_zeroed.FIX_APART"),
    "loop/stepped_twice": ("loop.double_step", "loop.double_step.FIX"),
    "loop/steps_each": ("loop.step_every_microbatch", "loop.step_every_microbatch.FIX"),
    "loop/tail_zeroed": ("loop.discarded_microbatches", "loop.discarded_microbatches.FIX"),
    "loop/zeroed_before": ("loop.zeroed_before_step", "loop.zeroed_before_step.FIX"),
    "loop/zeroed_each": (_ZEROED, "loop.zeroed_every_microbatch.FIX"),
    "ranks/all_under_no_sync": ("ddp.never_synced", "ddp.never_synced.FIX_NO_SYNC"),
    "ranks/averager_never_reached": ("ddp.never_synced", "ddp.never_synced.FIX_NO_SYNC"),
    "ranks/average_averaged_again": (_WORLD, "reduction.world_size.FIX_AVERAGED"),
    "ranks/biases_left_out": (_DRIFT, "ddp.drift_texts.FIX_BY_HAND"),
    "ranks/bucket_as_it_was": ("ddp.never_synced", "ddp.never_synced.FIX_HOOK"),
    "ranks/by_hand_averaged": (_WORLD, "reduction.world_size.FIX_BY_HAND_SUM"),
    "ranks/by_hand_summed": (_WORLD, "reduction.world_size.FIX_BY_HAND_AVERAGE"),
    "ranks/class_weighted": (_UNEQUAL, f"{_WEIGHTED}[ranks]"),
    "ranks/clipped_before_the_average": ("clip.local_norm", "clip.local_norm.FIX_OF_REPLICAS"),
    "ranks/combined_early": (
        "ddp.wrong_microbatch_synced",
        "ddp.wrong_microbatch_synced.FIX_BY_HAND",
    ),
    "ranks/copy_not_copied_back": (_DRIFT, "ddp.drift_texts.FIX_COPIES"),
    "ranks/data_left_on_one_rank": ("reduction.balance_off", "reduction.balance_off.FIX_JOIN"),
    "ranks/divided_twice": (_DOUBLE, f"{_ONCE}[ranks]"),
    "ranks/excluded_from_ddp": (_DRIFT, "ddp.drift_texts.FIX_EXCLUDED"),
    "ranks/factor_of_one_part": (_WORLD, "reduction.parts_of_a_model.FIX_ALL_DIVISORS"),
    "ranks/first_synchronised": (
        "ddp.wrong_microbatch_synced",
        "ddp.wrong_microbatch_synced.FIX",
    ),
    "ranks/fsdp2_class_weighted": (_UNEQUAL, f"{_WEIGHTED}[ranks]"),
    "ranks/fsdp2_divided_twice": (_DOUBLE, f"{_ONCE}[ranks]"),
    "ranks/fsdp2_mean_of_means": (_UNEQUAL, f"{_MEANS}[ranks]"),
    "ranks/fsdp2_not_divided": (_MISSING, f"{_NOT_DIVIDED}[ranks]"),
    "ranks/fsdp2_over_world_size": (_WORLD, "reduction.fixes.ONE_WORLD_SIZE_MORE[ranks]"),
    "ranks/fsdp2_times_world_size": (_WORLD, "reduction.fixes.ONE_WORLD_SIZE_LESS[ranks]"),
    "ranks/fsdp2_first_synchronised": (
        "ddp.wrong_microbatch_synced",
        "ddp.wrong_microbatch_synced.FIX_FSDP2",
    ),
    "ranks/fsdp2_not_synchronised": ("ddp.never_synced", "ddp.never_synced.FIX_FSDP2"),
    "ranks/fsdp2_two_of_two_not_divided": (_WORLD, "reduction.fixes.ONE_OF_BOTH_LESS[ranks]"),
    "ranks/fsdp2_two_of_two_over_all_tokens": (_WORLD, "reduction.fixes.ONE_OF_BOTH_MORE[ranks]"),
    "ranks/fsdp2_two_of_two_over_k": (_WORLD, "reduction.fixes.ONE_OF_BOTH_MORE[ranks]"),
    "ranks/fsdp2_two_of_two_times_ranks": (_WORLD, "reduction.fixes.ONE_OF_BOTH_LESS[ranks]"),
    "ranks/head_beside_the_wrapper": (_DRIFT, "ddp.drift_texts.FIX"),
    "ranks/ignored_by_fsdp2": (_DRIFT, "ddp.drift_texts.FIX_IGNORED"),
    "ranks/mean_of_means": (_UNEQUAL, f"{_MEANS}[ranks]"),
    "ranks/model_of_one_rank": ("ddp.never_synced", "ddp.model_copies.FIX"),
    "ranks/models_added_up": ("ddp.wrong_model_average", "ddp.wrong_model_average.FIX"),
    "ranks/norm_missing_in_the_plan": (_DRIFT, "ddp.drift_texts.FIX_PLAN"),
    "ranks/not_divided": (_MISSING, f"{_NOT_DIVIDED}[ranks]"),
    "ranks/other_divide_factor": (_WORLD, "reduction.world_size.FIX_BY_DIVISOR"),
    "ranks/outer_step_adds_up": ("ddp.wrong_model_average", "ddp.wrong_model_average.FIX_OUTER"),
    "ranks/outside_the_wrapper": (_WORLD, "reduction.parts_of_a_model.FIX_OUTSIDE"),
    "ranks/over_world_size": (_WORLD, "reduction.fixes.ONE_WORLD_SIZE_MORE[ranks]"),
    "ranks/penalty_of_every_rank": (_WORLD, "reduction.world_size.FIX_OF_PENALTY"),
    "ranks/rank_without_data": ("reduction.balance_off", "reduction.balance_off.FIX_IDLE"),
    "ranks/shards_clipped_apart": ("clip.local_norm", "clip.local_norm.FIX"),
    "ranks/step_before_the_wait": (_DRIFT, "ddp.drift_texts.FIX_WAIT"),
    "ranks/summed_each": ("ddp.missing_no_sync", "ddp.wrong_microbatch_synced.FIX_BY_HAND"),
    "ranks/through_module": ("ddp.never_synced", "ddp.never_synced.FIX"),
    "ranks/tied_stages": (_DRIFT, "ddp.tied_stages.FIX"),
    "ranks/maximum_of_gradients": (_WORLD, "reduction.parts_of_a_model.FIX_SUM"),
    "ranks/tied_weights_added_up_twice": (_WORLD, "reduction.parts_of_a_model.FIX_ONCE"),
    "ranks/times_world_size": (_WORLD, "reduction.fixes.ONE_WORLD_SIZE_LESS[ranks]"),
    "ranks/fsdp2_times_ranks_not_divided": (
        _MISSING,
        "reduction.fixes.UNDIVIDED_CONSTANT[ranks]",
    ),
    "ranks/times_ranks_not_divided": (_MISSING, "reduction.fixes.UNDIVIDED_CONSTANT[ranks]"),
    "ranks/two_of_two_not_divided": (_WORLD, "reduction.fixes.ONE_OF_BOTH_LESS[ranks]"),
    "ranks/two_of_two_over_all_tokens": (_WORLD, "reduction.fixes.ONE_OF_BOTH_MORE[ranks]"),
    "ranks/two_of_two_over_k": (_WORLD, "reduction.fixes.ONE_OF_BOTH_MORE[ranks]"),
    "ranks/two_of_two_times_ranks": (_WORLD, "reduction.fixes.ONE_OF_BOTH_LESS[ranks]"),
    "ranks/uneven": ("ddp.uneven_microbatches", f"{_MEANS}[ranks]"),
    "ranks/weighted_and_averaged": (_WORLD, "reduction.world_size.FIX_BY_HAND_WEIGHTED"),
    "ranks4/copies_of_a_stage": (_DRIFT, "ddp.tied_stages.FIX_COPIES"),
    "ranks4/average_of_groups": (_WORLD, "reduction.world_size.FIX_ACROSS_GROUPS"),
    "ranks/parts_entered_alone": (_DRIFT, "ddp.drift_texts.FIX_OF_PARTS"),
    "ranks4/experts_by_their_copies": (_WORLD, "reduction.parts_of_a_model.FIX_PARTS"),
    "ranks4/experts_in_a_wrapper": (_WORLD, "reduction.parts_of_a_model.FIX_COPIES"),
    "ranks4/experts_not_combined": (_DRIFT, "ddp.drift_texts.FIX_OF_GROUPS"),
    "ranks4/predivided": ("reduction.balance_off", "reduction.balance_off.FIX_BY_HAND"),
    "reduction/all_positions": ("reduction.wrong_denominator", f"{_MEANS}[plain]"),
    "reduction/bare_sum": ("reduction.unnormalised_sum", f"{_MEANS}[plain]"),
    "reduction/class_weighted": (_UNEQUAL, f"{_WEIGHTED}[plain]"),
    "reduction/divided_twice": (_DOUBLE, f"{_ONCE}[plain]"),
    "reduction/first_letters": (
        "reduction.wrong_denominator",
        "reduction.wrong_denominator.FIX_OF_WINDOW",
    ),
    "reduction/first_window_of_one": (
        "reduction.partial_window",
        "reduction.partial_window.FIX_BEFORE",
    ),
    "reduction/left_by_an_attack": (_MISSING, "reduction.missing_division.FIX_OF_INPUTS"),
    "reduction/left_by_a_validation": (_MISSING, "reduction.missing_division.FIX_OF_OTHER_LINE"),
    "reduction/mean_of_means": (_UNEQUAL, f"{_MEANS}[plain]"),
    "reduction/mean_of_means_divided_again": (_DOUBLE, f"{_MEANS}[plain]"),
    "reduction/not_divided": (_MISSING, f"{_NOT_DIVIDED}[plain]"),
    "reduction/not_divided_in_a_short_window": (_MISSING, f"{_SHORT}[plain]"),
    "reduction/second_head_not_divided": (_MISSING, "reduction.fixes.TERM_DIVIDED[plain]"),
    "reduction/tail_leaks": ("reduction.partial_window", "reduction.partial_window.FIX_LONGER"),
    "reduction/second_head_mean_of_means": (_UNEQUAL, "reduction.fixes.TERM_MEAN[plain]"),
    "reduction/short_window": (_PARTIAL, f"{_SHORT}[plain]"),
    "reduction/skipped_backwards": (
        "reduction.partial_window",
        "reduction.partial_window.FIX_LEFT_OUT",
    ),
    "reduction/smoothed_padding": (
        "reduction.wrong_denominator",
        "reduction.wrong_denominator.FIX_OF_SMOOTHING",
    ),
    "reduction/sum_of_means": (_MISSING, f"{_MEANS}[plain]"),
    "scaler/bypassed_scaler": ("scaler.step_bypassed", "scaler.step_bypassed.FIX"),
    "scaler/clipped_while_scaled": ("scaler.clip_before_unscale", "scaler.clip_before_unscale.FIX"),
    "scaler/guard_skips_update": ("scaler.missing_update", "scaler.missing_update.FIX"),
    "scaler/one_loss_unscaled": ("scaler.unscaled_backward", "scaler.unscaled_backward.FIX"),
    "scaler/scaler_of_each_loss": ("scaler.two_scalers", "scaler.two_scalers.FIX"),
    "scaler/second_loss_added_unscaled": (
        "scaler.unscaled_backward",
        "scaler.unscaled_backward.FIX_OF_SUM",
    ),
    "scaler/static_scale": (
        "scaler.clip_before_unscale",
        "scaler.clip_before_unscale.FIX_OF_STATIC_SCALE",
    ),
    "scaler/stepped_beside_the_scaler": ("loop.double_step", "loop.double_step.FIX_SCALED"),
    "scaler/unscaled_in_between": ("scaler.unscale_mid_window", "scaler.unscale_mid_window.FIX"),
    "scaler/unscaled_twice": ("scaler.double_unscale", "scaler.double_unscale.FIX"),
    "scaler/updated_between_optimizers": (
        "scaler.update_between_optimizers",
        "scaler.update_between_optimizers.FIX",
    ),
    "scaler/updated_each": ("scaler.update_per_microbatch", "scaler.update_per_microbatch.FIX"),
    "schedule/advanced_on_skips": ("scheduler.stepped_on_skip", "scheduler.stepped_on_skip.FIX"),
    "schedule/each_micro_batch": (
        "scheduler.step_every_microbatch",
        "scheduler.step_every_microbatch.FIX",
    ),
    "schedule/rate_by_hand": (
        "scheduler.step_every_microbatch",
        "scheduler.step_every_microbatch.FIX_BY_HAND",
    ),
}

# Part of the change that is written into the lines of a program.
CHANGED = {
    "reduction/not_divided": "+        (loss / 4).backward()",
    "reduction/divided_twice": "+        loss.backward()",
    "loop/never_zeroed": "+    optimizer.zero_grad()",
    "loop/steps_each": "+    if (i + 1) % K == 0 or i + 1 == len(loader):",
    "loop/stepped_twice": "-    optimizer.step()",
    "loop/zeroed_before": "+    optimizer.step()",
    "loop/zeroed_each": "+        optimizer.zero_grad()",
    "reduction/divided_in_a_statement": "-        loss = loss / K",
    "schedule/each_micro_batch": "+        scheduler.step()",
    "scaler/clipped_while_scaled": "+    scaler.unscale_(optimizer)",
    "scaler/not_divided": "+        scaler.scale(loss / 4).backward()",
    "scaler/stepped_beside_the_scaler": "-    optimizer.step()",
}

# Fixes of loops and of windows, which `test_wrapped.py` proves on two ranks, too; but for these.
OF_ONE_RANK = {
    "loop/backward_called_again": "DDP has one backward for each forward",
    "loop/generator_leaks": "two models",
    "loop/head_steps_each": "the rule is silent where ranks average the gradients",
    "scaler/scaler_of_each_loss": "DDP has one backward for each forward",
}
WRAPPED = [
    *(
        name
        for name in PLAIN
        if name.startswith(("clip/", "loop/", "scaler/", "schedule/")) and name not in OF_ONE_RANK
    ),
    "reduction/first_window_of_one",
    "reduction/not_divided_in_a_short_window",
    "reduction/short_window",
    "reduction/tail_leaks",
]

# The gradient of these is exact before, too.
BESIDE_THE_GRADIENT = {
    "ranks/each_synchronised": ("ddp.missing_no_sync", "ddp.missing_no_sync.FIX"),
    "ranks/started_apart": (_DRIFT, "ddp.drift_texts.FIX_START"),
}


# Programs of ``tests/frameworks/fixes``.
FRAMEWORKS = {
    "accelerate_added_again": ("loop.losses_added_again", _of("losses_added_again", "accelerate")),
    "accelerate_clipped_each": (
        "loop.clip_every_microbatch",
        _of("clip_every_microbatch", "accelerate"),
    ),
    "accelerate_clipped_while_scaled": (
        "scaler.clip_before_unscale",
        _of("clip_before_unscale", "accelerate", "scaler"),
    ),
    "accelerate_discarded": (
        "loop.discarded_microbatches",
        _of("discarded_microbatches", "accelerate"),
    ),
    "accelerate_divided_in_the_call": (_DOUBLE, f"{_ONCE}[accelerate]"),
    "accelerate_divided_twice": (_DOUBLE, f"{_ONCE}[accelerate]"),
    "accelerate_entered_twice": (_PARTIAL, "reduction.partial_window.FIX_COUNTED"),
    "accelerate_generator_leaks": (
        "loop.grads_not_zeroed",
        "loop.grads_not_zeroed.FIX_BEFORE",
    ),
    "accelerate_mean_of_means": (_UNEQUAL, f"{_MEANS}[accelerate]"),
    "accelerate_never_zeroed": ("loop.grads_not_zeroed", "loop.grads_not_zeroed.FIX"),
    "accelerate_not_divided": (_MISSING, f"{_NOT_DIVIDED}[accelerate]"),
    "accelerate_not_prepared": (
        "loop.step_every_microbatch",
        "framework_fixes.PREPARED",
    ),
    "accelerate_short_window": (_PARTIAL, f"{_SHORT}[accelerate]"),
    "accelerate_short_window_by_hand": (_PARTIAL, f"{_SHORT}[accelerate]"),
    "accelerate_schedule_each": (
        "scheduler.step_every_microbatch",
        _of("step_every_microbatch", "accelerate", "scheduler"),
    ),
    "accelerate_stepped_twice": ("loop.double_step", "loop.double_step.FIX"),
    "accelerate_zeroed_each": (_ZEROED, _of("zeroed_every_microbatch", "accelerate")),
    "fabric_added_again": ("loop.losses_added_again", _of("losses_added_again", "fabric")),
    "fabric_clipped_each": ("loop.clip_every_microbatch", _of("clip_every_microbatch", "fabric")),
    "fabric_clipped_while_scaled": (
        "scaler.clip_before_unscale",
        _of("clip_before_unscale", "fabric", "scaler"),
    ),
    "fabric_divided_twice": (_DOUBLE, f"{_ONCE}[fabric]"),
    "fabric_generator_leaks": (
        "loop.grads_not_zeroed",
        "loop.grads_not_zeroed.FIX_BEFORE",
    ),
    "fabric_head_steps_each": (
        "loop.step_every_microbatch",
        "loop.step_every_microbatch.FIX_OF_OTHER",
    ),
    "fabric_mean_of_means": (_UNEQUAL, f"{_MEANS}[fabric]"),
    "fabric_never_zeroed": ("loop.grads_not_zeroed", "loop.grads_not_zeroed.FIX"),
    "fabric_not_divided": (_MISSING, f"{_NOT_DIVIDED}[fabric]"),
    "fabric_schedule_each": (
        "scheduler.step_every_microbatch",
        "scheduler.step_every_microbatch.FIX",
    ),
    "fabric_stepped_before_the_last": (
        "loop.grads_not_zeroed",
        "loop.grads_not_zeroed.FIX_APART",
    ),
    "fabric_stepped_twice": ("loop.double_step", "loop.double_step.FIX"),
    "fabric_steps_each": ("loop.step_every_microbatch", _of("step_every_microbatch", "fabric")),
    "fabric_short_window": (_PARTIAL, f"{_SHORT}[fabric]"),
    "fabric_zeroed_each": (_ZEROED, _of("zeroed_every_microbatch", "fabric")),
    "lightning_clipped_while_scaled": (
        "scaler.clip_before_unscale",
        _of("clip_before_unscale", "lightning", "scaler"),
    ),
    "lightning_divided_twice": (_DOUBLE, f"{_ONCE}[lightning]"),
    "lightning_manual_divided_twice": (_DOUBLE, f"{_ONCE}[lightning]"),
    "lightning_manual_mean_of_means": (_UNEQUAL, f"{_MEANS}[lightning]"),
    "lightning_manual_never_zeroed": (
        "loop.grads_not_zeroed",
        "loop.grads_not_zeroed.FIX_BEFORE",
    ),
    "lightning_manual_not_divided": (_MISSING, f"{_NOT_DIVIDED}[lightning]"),
    "lightning_manual_zeroed_each": (_ZEROED, _of("zeroed_every_microbatch", "lightning")),
    "lightning_mean_of_means": (_UNEQUAL, f"{_MEANS}[lightning]"),
    "lightning_short_window": (_PARTIAL, f"{_SHORT}[lightning]"),
    "lightning_schedule_each": (
        "scheduler.step_every_microbatch",
        _of("step_every_microbatch", "lightning", "scheduler"),
    ),
    "trainer_compute_loss_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_compute_loss_uneven": (_UNEQUAL, f"{_MEANS}[transformers]"),
    "trainer_loss_func_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_model_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_model_uneven": (_UNEQUAL, f"{_MEANS}[transformers]"),
    "trainer_training_step_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_training_step_uneven": (_MISSING, f"{_MEANS}[transformers]"),
    "trainer_unshifted_count": (
        "reduction.wrong_denominator",
        "reduction.wrong_denominator.FIX_OF_UNSHIFTED",
    ),
    "trainer_zeroed_each": (_ZEROED, _of("zeroed_every_microbatch", "transformers")),
}

# Those of loops are proved with the data of two ranks, too.
FRAMEWORKS_OF_LOOPS = [
    "accelerate_added_again",
    "accelerate_clipped_each",
    "accelerate_clipped_while_scaled",
    "accelerate_discarded",
    "accelerate_not_prepared",
    "accelerate_schedule_each",
    "accelerate_zeroed_each",
    "fabric_added_again",
    "fabric_clipped_each",
    "fabric_clipped_while_scaled",
    "fabric_never_zeroed",
    "fabric_steps_each",
    "fabric_zeroed_each",
    "lightning_clipped_while_scaled",
    "lightning_manual_zeroed_each",
    "lightning_schedule_each",
]

# Other programs, on two ranks.
FRAMEWORKS_ON_RANKS = {
    "accelerate_ranks_divided_twice": (_DOUBLE, f"{_ONCE}[accelerate]"),
    "accelerate_ranks_mean_of_means": (_UNEQUAL, f"{_MEANS}[accelerate]"),
    "accelerate_ranks_not_divided": (_MISSING, f"{_NOT_DIVIDED}[accelerate]"),
    "accelerate_ranks_over_processes": (_WORLD, f"{_MORE}[accelerate]"),
    "accelerate_ranks_short_window": (_PARTIAL, f"{_SHORT}[accelerate]"),
    "lightning_ranks_short_window": (_PARTIAL, f"{_SHORT}[lightning]"),
    "accelerate_ranks_wrong_synced": (
        "ddp.wrong_microbatch_synced",
        _of("wrong_microbatch_synced", "accelerate", "ddp"),
    ),
    "accelerate_ranks_counted_apart": (
        "ddp.wrong_microbatch_synced",
        _of("wrong_microbatch_synced", "accelerate", "ddp"),
    ),
    "fabric_ranks_divided_twice": (_DOUBLE, f"{_ONCE}[fabric]"),
    "fabric_ranks_mean_of_means": (_UNEQUAL, f"{_MEANS}[fabric]"),
    "fabric_ranks_not_divided": (_MISSING, f"{_NOT_DIVIDED}[fabric]"),
    "fabric_ranks_over_world_size": (_WORLD, f"{_MORE}[fabric]"),
    "fabric_ranks_short_window": (_PARTIAL, f"{_SHORT}[fabric]"),
    "fabric_ranks_wrong_synced": (
        "ddp.wrong_microbatch_synced",
        _of("wrong_microbatch_synced", "fabric", "ddp"),
    ),
    "lightning_ranks_manual_wrong_synced": (
        "ddp.wrong_microbatch_synced",
        _of("wrong_microbatch_synced", "lightning", "ddp"),
    ),
    "trainer_ranks_loss_func_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "lightning_ranks_divided_twice": (_DOUBLE, f"{_ONCE}[lightning]"),
    "lightning_ranks_manual_divided_twice": (_DOUBLE, f"{_ONCE}[lightning]"),
    "lightning_ranks_manual_mean_of_means": (_UNEQUAL, f"{_MEANS}[lightning]"),
    "lightning_ranks_manual_not_divided": (_MISSING, f"{_NOT_DIVIDED}[lightning]"),
    "lightning_ranks_mean_of_means": (_UNEQUAL, f"{_MEANS}[lightning]"),
    "trainer_ranks_compute_loss_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_ranks_compute_loss_uneven": (_UNEQUAL, f"{_MEANS}[transformers]"),
    "trainer_ranks_model_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_ranks_model_uneven": (_UNEQUAL, f"{_MEANS}[transformers]"),
    "trainer_ranks_over_processes": (_WORLD, f"{_MORE}[transformers]"),
    "trainer_ranks_training_step_even": (_MISSING, f"{_NOT_DIVIDED}[transformers]"),
    "trainer_ranks_training_step_uneven": (_MISSING, f"{_MEANS}[transformers]"),
    "trainer_ranks_zeroed_each": (_ZEROED, _of("zeroed_every_microbatch", "transformers")),
}

# The gradient of these is exact before, too.
FRAMEWORKS_OF_RANKS = {
    "accelerate_each_synchronised": (
        "ddp.missing_no_sync",
        _of("missing_no_sync", "accelerate", "ddp"),
    ),
    "fabric_each_synchronised": (
        "ddp.missing_no_sync",
        _of("missing_no_sync", "fabric", "ddp"),
    ),
    "lightning_each_synchronised": (
        "ddp.missing_no_sync",
        _of("missing_no_sync", "lightning", "ddp"),
    ),
}

# Cases of ``test_pipelines.py``.
PIPELINES = {
    "mean of means": (_UNEQUAL, f"{_MEANS}[pipeline]"),
    "not divided": (_MISSING, f"{_NOT_DIVIDED}[pipeline]"),
    "divided twice": (_DOUBLE, f"{_ONCE}[pipeline]"),
}

# What they change is no gradient, or no code can be written for all programs.
OF_SOMETHING_ELSE = {
    "batch.changed_without_lr": "a learning rate",
    "clip.after_step.FIX_VALUES": "that of norms, with another function",
    "clip.always_engaged": "the limit of a clip",
    "data.same_order_each_epoch": "the order of the data",
    "data.same_order_each_epoch.FIX_GENERATOR": "the same",
    "ddp.duplicate_data": "the data of each rank",
    "framework_fixes.FRAMEWORK_FIXES[ddp.duplicate_data][accelerate]": "the same",
    "framework_fixes.FRAMEWORK_FIXES[ddp.duplicate_data][fabric]": "the same",
    "loop.dropped_windows": "it counts and prints",
    "loop.evaluation_mode": "the mode of modules",
    "loop.never_stepped.FIX_BESIDE": "which optimizers step",
    "loop.never_stepped.FIX_GUARD": "it counts and prints",
    "loop.no_gradients": "it prints",
    "loop.optimizer_recreated": "the moments of an optimizer",
    "loop.unheld_parameters": "which parameters an optimizer holds",
    "loss.diverging": "a learning rate and a limit",
    "loss.no_targets": "it counts and prints",
    "loss.maximised": "the sign of the loss",
    "loss.nonfinite": "it raises an error",
    "loss.on_some_ranks": "which ranks compute a loss",
    "loss.part_without_gradient": "which losses are trained",
    "loss.wrong_input": "the activation of the model",
    "norm": "the model, its precision, a learning rate or a limit; or it prints",
    "reduction.balance_off.FIX": "it declares a factor",
    "reduction.balance_off.FIX_VARIES": "it declares what a sample weighs",
    "scaler.all_grads_zero": "the first scale",
    "scaler.collapse": "a loss that is not finite",
    "scaler.reset": "a scale that is kept",
    "run.stalled.FIX_GUARD": "it counts and prints",
    "scaler.skipped_steps": "the first scale; or it raises an error",
    "schedule": "the plan of a learning rate",
    "framework_fixes.PREPARED_SCHEDULE": "the plan of a learning rate",
    "scheduler.step_every_microbatch.FIX_SEVERAL": "the same",
}


def fixes() -> dict[str, str]:
    """All texts of fixes that contain code, by name."""
    return {name: text for name, text in _texts() if has_code(text)}


def _texts() -> Iterator[tuple[str, str]]:
    for info in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."):
        module = importlib.import_module(info.name)
        name = info.name.removeprefix(f"{rules.__name__}.")
        for constant, value in vars(module).items():
            if "FIX" in constant or (name in TABLES and constant.isupper() and constant[0] != "_"):
                yield from _flat(f"{name}.{constant}", value)


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}[{key}]", each)
