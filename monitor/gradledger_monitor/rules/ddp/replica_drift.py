"""ddp.replica_drift"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

SAME = 1e-6  # relative: replicas should be equal bit by bit

FIX = """\
class Everything(nn.Module):            # one module that holds all trained parameters
    ...
model = DistributedDataParallel(Everything())
optimizer = make_optimizer(model.parameters())   # as before, but over the wrapper's parameters"""


class ReplicaDrift(Rule):
    """The replicas are no longer the same model.

    **What it sees**

    After a sync, the global gradient norm or the fingerprint of the parameters differs between the
    ranks of a DDP model, or their learning rates do; or the optimizer steps parameters that the
    wrapper does not hold.

    **Why it matters**

    DDP assumes equal replicas. Once they differ, the averaged gradient belongs to none of them,
    and the rank that is saved is not the model that was trained.

    **What to do**

    Put every trained parameter inside the wrapper; make all ranks start from the same weights, and
    let all of them take the same steps.

    **When it is silent**

    Sharded parameters; gradients synchronised by hand; another rule names the cause.

    **Incidents**

    speechbrain/speechbrain#2010, pytorch/pytorch#112152
    """

    precondition = SEVERAL_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """Equal norms and parameters, and nothing outside the wrapper."""
        facts = window.facts
        record = facts.record
        if record.wrapper != "ddp":
            return not_applicable("no DDP model")
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        if record.skipped or record.collectives_after:
            return OK
        outside = record.outside or 0
        norms, parameters = _values(facts, "norm"), _values(facts, "parameters")
        apart = record.sync == "averaged" and _differ(norms, facts.tolerance)
        drifted, rates = _differ(parameters, SAME), _values(facts, "lr")
        if not (outside or apart or drifted or _differ(rates, SAME)):
            return OK
        return finding(
            "error",
            f"{outside} parameters are trained outside the DDP wrapper"
            if outside
            else "The replicas differ between the ranks",
            _summary(outside, apart, drifted, norms, rates),
            FIX,
            outside=outside,
            norms=norms[:16],
            parameters_differ=drifted,
            learning_rates=rates[:16],
        )


def _values(facts: StepFacts, name: str) -> list[float]:
    values = [number(getattr(record, name)) for record in facts.records.values()]
    return [v for v in values if v is not None and math.isfinite(v)]


def _differ(values: list[float], tolerance: float) -> bool:
    return len(values) > 1 and max(values) - min(values) > tolerance * max(map(abs, values))


def _summary(
    outside: int, apart: bool, drifted: bool, norms: list[float], rates: list[float]
) -> str:
    if outside:
        return (
            f"The optimizer steps {outside} parameters that the DDP wrapper does not hold: nothing "
            "synchronises their gradients, and they differ between the ranks."
        )
    seen = []
    if apart:
        seen.append(
            f"after the all-reduce the gradient norms are {min(norms):.6g} to {max(norms):.6g}"
        )
    if drifted:
        seen.append("the sampled parameters are not equal")
    if _differ(rates, SAME):
        seen.append(f"they step at learning rates of {min(rates):.4g} to {max(rates):.4g}")
    return f"The ranks do not train the same model: {' and '.join(seen)}."
