"""The layers of a step, for the rules about them (pure)."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Layers
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import not_applicable, not_measured


def layers_by_rank(facts: StepFacts) -> dict[int, Layers] | None:
    """The layers of every rank that sent its record; None if one has not measured them."""
    ranks = {rank: r.layers for rank, r in facts.records.items() if r.layers is not None}
    return ranks if len(ranks) == len(facts.records) else None


def unmeasured(facts: StepFacts) -> Outcome:
    """The outcome for a step without layers: only a few have them, and the first one is due."""
    if facts.record.by_hand:
        return not_measured("the loop updates the parameters itself")
    if "layers" in facts.record.missing:
        return not_measured(facts.record.missing["layers"])
    if facts.step == 1:
        return not_measured("the layers of step 1 were not recorded")
    return not_applicable("layers are measured at a few steps")
