"""loop.unheld_parameters"""

from __future__ import annotations

import re

from gradledger_monitor.ingest.schema import StepRecord, Unheld
from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.rules.framework_fixes import with_optimizer
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable

MOST_NAMED = 6  # parameters in the summary

FIX = """\
# create the optimizer last, when the model is complete, and modules in an nn.ModuleList
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
held = {id(p) for group in optimizer.param_groups for p in group["params"]}
print([name for name, p in model.named_parameters() if p.requires_grad and id(p) not in held])
# instead, with several optimizers, or for what is unfrozen later:
# optimizer.add_param_group({"params": part.parameters()})
# a part that should not be trained: part.requires_grad_(False)"""

FIX_APART = """\
# a loss function with parameters is a model, too
optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=lr)
# if they should not be trained: criterion.requires_grad_(False)"""

_UNKNOWN = re.compile(r"parameter \d+")  # how a parameter without a name in any model is listed


class UnheldParameters(Rule):
    """Parameters of the model get gradients, and no optimizer holds them.

    **What it sees**

    At steps 3, 10, 20 and about every tenth one up to 50, then at fewer: parameters in the model
    of the optimizer's parameters that require a gradient, got one since the last of these steps,
    belong to no optimizer of the process, and have the same values as then. Modules in a Python
    list or dictionary of the model are looked at, too: PyTorch does not register these. So are
    parameters in no model of the optimizer, such as those of a loss function, or a second module:
    if one of a few backwards after step 3 reaches them and the optimizer's, and they have fewer
    elements than it trains.

    It is a warning if such a list holds them; if they required no gradient before, and so were
    unfrozen for the training; if the optimizer holds frozen parameters, and not these, as when
    adapters are added later; or if it holds parameters of the same names, or some that are in no
    model any more and get no gradient: then a part was replaced after the optimizer was created.
    Otherwise it is information: adapters that were added after the optimizer was created look like
    a teacher, or the body of a model whose head alone is trained, that nothing froze; and a loss
    function that should be trained looks like one that compares the features of a fixed network.

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
    several threads train; an optimizer that was created with names, and so needs no model; larger
    models that contain no parameter of the optimizer, as one that an attack on its inputs reads.

    **Incidents**

    textbook (a head that is replaced, or layers that are unfrozen, after the optimizer was created;
    a loss function with parameters)
    """

    points_at = ("step", "backward")

    def evaluate(self, window: Window) -> Outcome:
        """What the record of the lowest rank lists."""
        record = window.facts.record
        unheld = record.unheld
        if unheld is None:
            if record.layers is None:
                return not_applicable("compared at steps 10, 20, 30 and some later ones")
            return OK
        replaced = _replaced(record, unheld)
        apart = len(unheld.apart) == len(unheld.names)
        frozen = record.layers.frozen if record.layers is not None and not apart else 0
        intended = not (unheld.listed or replaced or unheld.unfrozen or frozen)
        severity: Severity = "info" if intended else "warning"
        return finding(
            severity,
            f"{counted(unheld.count, 'parameter')} with gradients {_verb(unheld)} in no optimizer",
            f"{_names(unheld)} got gradients, and no optimizer of the process holds "
            f"{'it' if unheld.count == 1 else 'them'}. The values have not changed. "
            f"{_cause(unheld, replaced, frozen, window.facts.optimizer_name)}",
            with_optimizer(FIX_APART if apart and intended else FIX, window.facts.optimizer_name),
            parameters=unheld.count,
            elements=unheld.elements,
            names=unheld.names,
            replaced=len(replaced) or None,
            unfrozen=len(unheld.unfrozen) or None,
        )


def _replaced(record: StepRecord, unheld: Unheld) -> list[str]:
    """Parameters of the optimizer that have the name of another one in the model, or that are in
    no model and get no gradient.
    """
    layers = record.layers
    if layers is None:
        return []
    replaced = [
        index
        for index, name in enumerate(layers.names)
        if name in unheld.names
        or (_UNKNOWN.fullmatch(name) and layers.gradient[index : index + 1] == [None])
    ]
    if unheld.apart and sum(layers.sizes[i] for i in replaced) != unheld.elements:
        return []  # another part that has no gradient
    return [layers.names[index] for index in replaced]


def _verb(unheld: Unheld) -> str:
    return "is" if unheld.count == 1 else "are"


def _names(unheld: Unheld) -> str:
    shown = ", ".join(unheld.names[:MOST_NAMED])
    more = unheld.count - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _cause(unheld: Unheld, replaced: list[str], frozen: int, optimizer: str) -> str:
    if unheld.listed:
        return (
            "They are in a Python list or dictionary of the model, which PyTorch does not "
            "register: model.parameters() leaves them out."
        )
    if replaced:
        return (
            f"{optimizer} holds {counted(len(replaced), 'parameter')} that the model does not "
            "contain any more: a part of it was replaced after the optimizer was created."
        )
    if unheld.unfrozen:
        return (
            "Earlier in the run, "
            f"{'it' if unheld.count == 1 else f'{len(unheld.unfrozen)} of them'} required no "
            "gradient. What is unfrozen must be in the optimizer, too."
        )
    if unheld.apart:
        apart = len(unheld.apart)
        which = f"{apart} of them {'is' if apart == 1 else 'are'}"
        if apart == unheld.count:
            which = "It is" if apart == 1 else "They are"
        return (
            f"{which} in no model whose parameters {optimizer} holds, as the weights of a loss "
            "function may be. What should be trained must be in an optimizer, too; "
            "requires_grad_(False) saves the backward of what should not."
        )
    if frozen:
        return (
            f"{optimizer} holds {counted(frozen, 'parameter')} that require no gradient, and not "
            "these: it may have been created before the model was changed."
        )
    return (
        "The optimizer may have been created with a part of the model, or before they were, as "
        "adapters may be. If they should not be trained, requires_grad_(False) saves their "
        "backward."
    )
