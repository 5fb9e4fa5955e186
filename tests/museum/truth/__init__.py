"""Proves that an incident's mistake is real and its twin's is gone, without hooks, ledger or rules.

A check has two halves. ``tell`` runs in the script's own process when the script has ended: it
turns the script's names and the witnessed steps into a few tensors. ``fault`` takes what all ranks
told and says how wrong the training was: 0 for a healthy script, and then only rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from museum.labels import Label, collection
from museum.truth import counts, gradient, path, pipelines, ranks, scaling
from museum.truth.seen import Step

Testimony = dict[str, Any]

LABELS = {piece.script: piece.label for piece in collection()}


@dataclass(frozen=True)
class Check:
    """One kind of proof; see the docstrings of the two functions."""

    tell: Callable[[Label, dict[str, Any], list[Step]], Testimony]
    fault: Callable[[list[Testimony]], float]


CHECKS = {
    "gradient": Check(gradient.tell, gradient.fault),
    "gradient_by_parameter": Check(gradient.tell_by_parameter, gradient.fault),
    "gradient_of_own": Check(gradient.tell, gradient.fault_of_own),
    "clipped": Check(gradient.tell, gradient.fault_after_clipping),
    "gradient_at_first": Check(gradient.tell, gradient.fault_at_first),
    "pipeline": Check(pipelines.tell, pipelines.fault),
    "steps": Check(counts.tell_steps, counts.fault_of_steps),
    "steps_per_layer": Check(counts.tell_layers, counts.fault_of_steps),
    "leak": Check(counts.tell_leaks, counts.fault_of_leaks),
    "unreached": Check(counts.tell_gradients, counts.fault_of_unreached),
    "depth": Check(counts.tell_depth, counts.fault_of_depth),
    "untrained": Check(counts.tell_by_parameter, counts.fault_of_untrained),
    "held": Check(counts.tell_held, counts.fault_of_held),
    "modes": Check(counts.tell_modes, counts.fault_of_modes),
    "gradient_ends": Check(counts.tell_last_gradients, counts.fault_of_last_gradients),
    "parts": Check(counts.tell_parts, counts.fault_of_untrained),
    "likelihood": Check(counts.tell_likelihoods, counts.fault_of_likelihoods),
    "shrinking": Check(counts.tell_sizes, counts.fault_of_shrinking),
    "rounded_away": Check(counts.tell_moves, counts.fault_of_moves),
    "repeated": Check(counts.tell_gradients, counts.fault_of_repeats),
    "moments": Check(path.tell_moments, path.fault_of_moments),
    "rate": Check(path.tell_rates, path.fault_of_rates),
    "scaling": Check(path.tell_samples, path.fault_of_scaling),
    "growth": Check(path.tell_norms, path.fault_of_growth),
    "decay": Check(path.tell_norms, path.fault_of_decay),
    "jump": Check(path.tell_norms, path.fault_of_jump),
    "finite": Check(path.tell_norms, path.fault_of_nonfinite),
    "loss": Check(path.tell_losses, path.fault_of_loss),
    "limit": Check(path.tell_norms, path.fault_of_limit),
    "gradient_of_all": Check(scaling.tell_all, scaling.fault_of_all),
    "gradient_in_half": Check(scaling.tell_gradients, scaling.fault_of_gradients),
    "updates": Check(scaling.tell_path, scaling.fault_of_updates),
    "scale_jumps": Check(scaling.tell_path, scaling.fault_of_jumps),
    "scale_collapses": Check(scaling.tell_path, scaling.fault_of_collapse),
    "schedule": Check(scaling.tell_path, scaling.fault_of_schedule),
    "replicas": Check(ranks.tell_replicas, ranks.fault_of_replicas),
    "norms": Check(ranks.tell_norms, ranks.fault_of_norms),
    "averaging": Check(ranks.tell_parameters, ranks.fault_of_averaging),
    "average": Check(ranks.tell_exchanged, ranks.fault_of_average),
    "all_reduces": Check(ranks.tell_all_reduces, ranks.fault_of_all_reduces),
    "duplicates": Check(ranks.tell_targets, ranks.fault_of_duplicates),
    "order": Check(ranks.tell_targets, ranks.fault_of_order),
}


def testify(script: Path, names: dict[str, Any], steps: list[Step]) -> Testimony:
    """What the check of the script's label wants to know."""
    label = LABELS[script]
    return CHECKS[label.evidence].tell(label, names, steps)
