"""loop.unheld_parameters"""

from __future__ import annotations

import re

from gradledger_monitor.ingest.schema import StepRecord, Unheld
from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.rules.rule import OK, Rule, Window, counted, finding, not_applicable

MOST_NAMED = 6  # parameters in the summary

FIX = """\
# create the optimizer last, when the model is complete, and modules in an nn.ModuleList
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
held = {id(p) for group in optimizer.param_groups for p in group["params"]}
print([name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held])
# a part that should not be trained: part.requires_grad_(False)"""

_UNKNOWN = re.compile(r"parameter \d+")  # how a parameter without a name in any model is listed


class UnheldParameters(Rule):
    """Parameters of the model get gradients, and no optimizer holds them.

    **What it sees**

    At the tenth or the thirtieth step: parameters in the model of the optimizer's parameters that
    require a gradient, got one in between, belong to no optimizer of the process, and have the
    same values as at the third step. Modules in a Python list or dictionary of the model are
    looked at, too: PyTorch does not register these.

    It is a warning if such a list holds them, or if the optimizer holds parameters that are in no
    model any more and get no gradient: then a part was replaced after the optimizer was created.
    Otherwise it is information.

    **Why it matters**

    These parameters keep the values that they were created with, and their gradients are computed
    for nothing. ``optimizer.zero_grad()`` does not clear them either: they add up, and
    ``clip_grad_norm_(model.parameters(), ...)`` counts them.

    **What to do**

    Create the optimizer when the model is complete; use ``nn.ModuleList`` instead of a list. A part
    that should not be trained: ``requires_grad_(False)``, which also saves its backward.

    **When it is silent**

    Frozen parameters; parameters without gradients; parameters that something else changes (an
    optimizer of another library, an update by hand, an average); models that are sharded, or that
    several threads train; an optimizer that was created with names, and so needs no model.

    **Incidents**

    textbook (a head that is replaced after the optimizer was created)
    """

    points_at = ("step", "backward")

    def evaluate(self, window: Window) -> Outcome:
        """What the record of the lowest rank lists."""
        record = window.facts.record
        unheld = record.unheld
        if unheld is None:
            if record.layers is None:
                return not_applicable("looked for at steps 10 and 30")
            return OK
        replaced = _in_no_model(record)
        severity: Severity = "warning" if unheld.listed or replaced else "info"
        return finding(
            severity,
            f"{counted(unheld.count, 'parameter')} with gradients {_verb(unheld)} in no optimizer",
            f"{_names(unheld)} got gradients, and no optimizer of the process holds "
            f"{'it' if unheld.count == 1 else 'them'}. The values have not changed. "
            f"{_cause(unheld, replaced, window.facts.optimizer_name)}",
            FIX,
            parameters=unheld.count,
            elements=unheld.elements,
            names=unheld.names,
            replaced=len(replaced) or None,
        )


def _in_no_model(record: StepRecord) -> list[str]:
    """Parameters that the optimizer holds, that are in no model, and that get no gradient."""
    layers = record.layers
    if layers is None:
        return []
    return [
        name
        for index, name in enumerate(layers.names)
        if _UNKNOWN.fullmatch(name) and layers.gradient[index : index + 1] == [None]
    ]


def _verb(unheld: Unheld) -> str:
    return "is" if unheld.count == 1 else "are"


def _names(unheld: Unheld) -> str:
    shown = ", ".join(unheld.names[:MOST_NAMED])
    more = unheld.count - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _cause(unheld: Unheld, replaced: list[str], optimizer: str) -> str:
    if unheld.listed:
        return (
            "They are in a Python list or dictionary of the model, which PyTorch does not "
            "register: model.parameters() leaves them out."
        )
    if replaced:
        return (
            f"{optimizer} holds {counted(len(replaced), 'parameter')} that no model contains and "
            "that got no gradient: a part of the model was replaced after the optimizer was "
            "created."
        )
    return "If they should not be trained, requires_grad_(False) saves their backward."
