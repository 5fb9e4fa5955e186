"""ddp.replica_drift"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    counted,
    finding,
    not_applicable,
    not_measured,
)

SAME = 1e-6  # relative difference; DDP replicas are equal bit by bit

FIX = """\
class Everything(nn.Module):            # put all trained parameters into one module
    ...
model = DistributedDataParallel(Everything())
optimizer = make_optimizer(model.parameters())   # over the wrapper's parameters"""


class ReplicaDrift(Rule):
    """The model replicas differ between the ranks.

    **What it sees**

    After a synchronisation, the global gradient norm or the fingerprint of the parameters
    differs between the ranks of a DDP model, or their learning rates differ; or the optimizer
    steps parameters that the wrapper does not hold.

    **Why it matters**

    DDP assumes equal replicas. Once they differ, the averaged gradient belongs to none of them,
    and the saved rank is not the model that was trained.

    **What to do**

    Put every trained parameter inside the wrapper, start all ranks from the same weights, and
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
        norms_differ = record.sync == "averaged" and _differ(norms, facts.tolerance)
        drifted, rates = _differ(parameters, SAME), _values(facts, "lr")
        if not (outside or norms_differ or drifted or _differ(rates, SAME)):
            return OK
        return finding(
            "error",
            f"Trained outside the DDP wrapper: {counted(outside, 'parameter')}"
            if outside
            else "The replicas differ between the ranks",
            _outside(outside) if outside else _differences(norms_differ, drifted, norms, rates),
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


def _outside(parameters: int) -> str:
    return (
        f"The optimizer steps {counted(parameters, 'parameter')} that the DDP wrapper does not "
        "hold. DDP does not synchronise their gradients, so each rank updates them differently."
    )


def _differences(norms_differ: bool, drifted: bool, norms: list[float], rates: list[float]) -> str:
    differences = []
    if norms_differ:
        differences.append(
            f"after the all-reduce the gradient norms are {min(norms):.6g} to {max(norms):.6g}"
        )
    if drifted:
        differences.append("the sampled parameters are not equal")
    if _differ(rates, SAME):
        differences.append(f"the learning rates are {min(rates):.4g} to {max(rates):.4g}")
    return f"The ranks do not train the same model: {'; '.join(differences)}."
