"""norm.dead_layer"""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.layers.combined import Layer, combined
from gradledger_monitor.rules.definition import Parameter
from gradledger_monitor.rules.loss.no_targets import has_no_target
from gradledger_monitor.rules.norm.layers import layers_by_rank, unmeasured
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured

MOST_NAMED = 6  # layers in the summary
MOST_LISTED = 64  # in the evidence

FIX = """\
# before optimizer.step(): what has no gradient
for name, p in model.named_parameters():
    if p.requires_grad and (p.grad is None or not p.grad.any()):
        print(name, p.grad is None)
# a layer that should not be trained: layer.requires_grad_(False), before the optimizer"""

FIX_FROZEN = """\
# if they are factors of an adapter, both must be trained: before the optimizer is created, call
# requires_grad_(True) on"""


class DeadLayer(Rule):
    """Parameters that the optimizer holds never get a gradient other than 0.

    **What it sees**

    Layers that require a gradient and had none, or one of exactly 0, at every sampled step of the
    run, 20 or more, on all ranks, while at least one other layer has a gradient; or all layers of
    the only optimizer, if they are used.

    **Why it matters**

    The loss does not train these layers: only weight decay changes them. No gradient: nothing of
    the loss depends on them, or a ``detach()``, ``no_grad()`` or ``.data`` is in between. A
    gradient of 0: they are used, and the loss does not change with them.

    It is a warning if only biases have a gradient and all other layers have one of exactly 0: the
    output of the model is then the same for every input. So it is if each of these
    layers, except biases, has a gradient of exactly 0, and beside it a frozen matrix of zeros whose
    shape fits a product: of an adapter, the matrix that starts at 0 is not trained, and the other
    one never gets a gradient. Otherwise it is information: a pooling layer whose output is not
    used, or a backbone that runs under ``no_grad()``, may be intended. So may a loss that is 0 for
    a time: rewards that do not come yet, a weight that increases later, margins that all samples
    satisfy.

    **What to do**

    If a layer should be trained, look for what separates it from the loss. If it should not, set
    ``requires_grad_(False)``, or leave it out of the optimizer. If its gradient is 0, look at its
    outputs: units that are 0 for every input, a loss with a weight of 0, a mask, fp16 underflow, a
    softmax over one class, advantages that are all 0.

    **When it is silent**

    Frozen parameters (``requires_grad`` is ``False``); layers with a gradient at any sampled step,
    such as an expert that few tokens reach, the head of a task that comes later or a layer behind
    a factor that starts at 0; rows of an embedding; an optimizer of which no parameter has a
    gradient (another rule), or which may wait for another one; steps without a target
    (``loss.no_targets``); layers of which a checkpoint holds the optimizer's state; gradients that
    the loop sets to 0; a bias with a gradient of 0 beside a weight that has one, as below a loss on
    differences of outputs, such as that of a ranking or of a critic.

    **Incidents**

    textbook (a ``detach()`` too many, dying ReLU), pytorch/examples (a cross entropy over one
    class)
    """

    points_at = ("backward", "step")
    by_window = False
    needed = Parameter(20, "sampled steps at each of which a layer has no gradient")

    def evaluate(self, window: Window) -> Outcome:
        """The layers, at one of the few steps that measure them."""
        facts = window.facts
        ranks = layers_by_rank(facts)
        if ranks is None:
            return unmeasured(facts)
        observed = min(layers.observed for layers in ranks.values())
        if observed < self.needed:
            return not_measured(f"needs {counted(self.needed, 'sampled step')}")
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        layers = combined(ranks, any(record.sharded for record in facts.records.values()))
        alive = [layer for layer in layers if layer.gradient]
        dead = [layer for layer in layers if layer.untrained and not _cancels(layer, alive)]
        if not dead:
            return OK
        zeros = {name: zero for r in ranks.values() for name, zero in r.frozen_zeros.items()}
        beside = [layer for layer in dead if not _is_bias(layer)]
        explained = all(layer.gradient == 0 and layer.name in zeros for layer in beside)
        if beside and explained and not has_no_target(facts):
            return _beside_frozen(beside, [zeros[layer.name] for layer in beside], observed)
        only_optimizer = len(facts.run.optimizers) == 1
        if not alive:
            zero = facts.norm == 0 and all(layer.gradient == 0 for layer in layers)
            by_loop = facts.record.post_factor == 0  # zeroed after the backward
            unexplained = only_optimizer and zero and not by_loop and not has_no_target(facts)
            return _nothing(dead, observed) if unexplained else OK
        complete = only_optimizer and not any(r.frozen for r in ranks.values())
        if complete and len(alive) + len(dead) == len(layers) and _only_biases_learn(alive, dead):
            return _constant(alive, dead, observed)
        return _report(facts.optimizer_name, layers, dead, observed)


def _only_biases_learn(alive: Sequence[Layer], dead: Sequence[Layer]) -> bool:
    """Whether all layers but biases are used and have a gradient of exactly 0."""
    used = all(layer.gradient == 0 for layer in dead)
    return used and all(map(_is_bias, alive))


def _is_bias(layer: Layer) -> bool:
    return layer.name.rpartition(".")[2] == "bias"


def _cancels(layer: Layer, alive: Sequence[Layer]) -> bool:
    """Whether it is a bias of exactly 0 gradient, and another parameter of its module has one.

    A loss on differences of outputs does not change with what is added to all of them.
    """
    module = layer.name.removesuffix("bias")  # a parametrization has the weight inside of it
    beside = any(module and other.name.startswith(module) for other in alive)
    return _is_bias(layer) and layer.gradient == 0 and beside


def _constant(alive: Sequence[Layer], dead: Sequence[Layer], observed: int) -> Outcome:
    return finding(
        "warning",
        "The output of the model does not depend on its input",
        f"Only {_names(alive)} {'has' if len(alive) == 1 else 'have'} a gradient. That of all "
        f"other layers ({_names(dead)}) was exactly 0 at each of the "
        f"{counted(observed, 'sampled step')}.",
        FIX,
        **_evidence(dead, observed),
    )


def _beside_frozen(dead: Sequence[Layer], zeros: Sequence[str], observed: int) -> Outcome:
    frozen = list(dict.fromkeys(zeros))
    one = len(frozen) == 1
    return finding(
        "warning",
        f"{counted(len(dead), 'layer')} beside a frozen matrix of zeros {_have(dead)} no gradient",
        f"The gradient of {_names(dead)} was exactly 0 at each of the "
        f"{counted(observed, 'sampled step')}. Beside {'it' if len(dead) == 1 else 'them'}, "
        f"{names_of(frozen)} {'is' if one else 'are'} frozen (requires_grad is False), and all "
        f"values of {'it' if one else 'them'} are 0: a factor of 0 that is not trained leaves what "
        "it multiplies without a gradient.",
        f"{FIX_FROZEN}:\n# {names_of(frozen)}",
        frozen_zeros=frozen[:MOST_LISTED],
        **_evidence(dead, observed),
    )


def _have(layers: Sequence[Layer]) -> str:
    return "has" if len(layers) == 1 else "have"


def _nothing(dead: Sequence[Layer], observed: int) -> Outcome:
    # Not a warning: a softmax over one class is a mistake, and rewards of 0 are none.
    return finding(
        "info",
        "All gradients are 0",
        f"The gradient of {_names(dead)} was exactly 0 at each of the "
        f"{counted(observed, 'sampled step')}: the loss trains nothing at them. It may be 0 by "
        "design at first, as with rewards that do not come yet, or a weight that increases later.",
        FIX,
        **_evidence(dead, observed),
    )


def _report(
    optimizer: str, layers: Sequence[Layer], dead: Sequence[Layer], observed: int
) -> Outcome:
    absent = [layer for layer in dead if layer.gradient is None]
    zero = [layer for layer in dead if layer.gradient is not None]
    steps = counted(observed, "sampled step")
    sentences = []
    if absent:
        sentences.append(f"At none of the {steps} was there a gradient of {_names(absent)}.")
    if zero:
        sentences.append(f"The gradient of {_names(zero)} was exactly 0 at each of the {steps}.")
    return finding(
        "info",
        f"{counted(len(dead), 'layer')} of {len(layers):,} had no gradient at the steps",
        f"{' '.join(sentences)} {optimizer} holds {'it' if len(dead) == 1 else 'them'}.",
        FIX,
        **_evidence(dead, observed),
    )


def _evidence(dead: Sequence[Layer], observed: int) -> dict[str, int | list[str]]:
    return {
        "sampled_steps": observed,
        "without_gradient": [d.name for d in dead if d.gradient is None][:MOST_LISTED],
        "zero_gradient": [d.name for d in dead if d.gradient is not None][:MOST_LISTED],
    }


def _names(layers: Sequence[Layer]) -> str:
    return names_of([layer.name for layer in layers])


def names_of(names: Sequence[str]) -> str:
    """A few of them, and how many more."""
    shown = ", ".join(names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown
