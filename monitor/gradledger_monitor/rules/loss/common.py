"""Shared by the rules on losses and norms: when the size of a loss states something."""

from __future__ import annotations

from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.rule import not_applicable

OPPOSED = not_applicable("several optimizers train on different losses")


def may_be_opposed(facts: StepFacts) -> bool:
    """Whether the loss may rise because another optimizer trains against it, as in a GAN.

    It may not if this optimizer is the only one, or the others have stepped before its first step
    or after its last one, as where it takes over their parameters; or if another one has already
    stepped on the same backwards: they train on one loss.
    """
    if len(facts.run.optimizers) < 2 or facts.record.alone:
        return False
    return not facts.applied or not all(m.claimed for _, m in facts.applied)
