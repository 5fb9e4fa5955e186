"""Runs a script with the hooks and writes what they record, and what the truth is computed from.

In a forked child, as a ``watch`` of ``museum.stage``. What is kept beside the hooks knows nothing
of them: the parameters and gradients at each optimizer step, and the gradient of each element of
each objective at those parameters, in float64. Parts of sharded tensors are gathered after the
script has ended.
"""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from museum.watching import with_hooks
from oracle.collectives import Collectives
from oracle.objectives import OBJECTIVES, Batch, auxiliary_elements
from oracle.program import SKIPPED, Program
from oracle.writing.loops import CLIPPED_TO

Values = dict[Tensor, Tensor]  # of parameters


@dataclass
class Columns:
    """The elements of one objective in one window of one rank."""

    gradients: Tensor  # [elements, parameters], float64
    masses: Tensor  # [elements]: what each counts in a mean
    micro_batches: Tensor  # [elements]: the index of the micro-batch


@dataclass
class Observed:
    """One rank of one program; the lists have one entry for each window that is not skipped."""

    steps: int  # of the optimizer; of each, where there are two
    micro_batches: list[int]
    rows: list[int]
    synchronisations: (
        int  # sums of all gradients over ranks, in the whole program; shards count padded
    )
    # [parameters], not clipped; with ``columns`` empty if there is not one step for each window
    applied: list[Tensor] = field(default_factory=list)
    columns: list[dict[str, Columns]] = field(default_factory=list)


@dataclass
class Step:
    """One call of an optimizer's ``step``: its parameters before it, and the gradients it used."""

    parameters: Values
    gradients: Values


class Steps:
    """The steps of all optimizers.

    Gradients are copied after the step, because a closure makes them in it.
    """

    def __init__(self) -> None:
        self.all: list[Step] = []
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]

    def close(self) -> None:
        """Observe no more."""
        for handle in self._handles:
            handle.remove()

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        self.all.append(Step({p: p.detach().clone() for p in _parameters(optimizer)}, {}))

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        gradients = {p: p.grad for p in _parameters(optimizer) if p.grad is not None}
        self.all[-1].gradients = {p: g.detach().clone() for p, g in gradients.items()}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def with_truth(script: Path, output: Path) -> None:
    """Write the records and an ``Observed`` to ``output``; ``read`` returns both."""
    program = Program(**json.loads(script.with_suffix(".json").read_text()))
    steps, collectives, names = Steps(), Collectives(), dict[str, Any]()
    with_hooks(script, output, then=lambda left: names.update(left))
    steps.close()
    reduced = collectives.reduced_elements()
    torch.save((output.read_bytes(), _observed(program, names, steps.all, reduced)), output)


def read(recorded: bytes) -> tuple[bytes, Observed]:
    """The records and the ``Observed`` of one rank, from what it wrote."""
    records, observed = torch.load(io.BytesIO(recorded), "cpu", weights_only=False)
    return records, observed


def _observed(program: Program, names: dict[str, Any], steps: list[Step], reduced: int) -> Observed:
    windows = _windows(program, names["windows"])
    parameters = list(names["net"].parameters())
    of_net = [step for step in steps if step.parameters.keys() & set(parameters)]
    if program.pipeline:
        of_net = [_of_all_stages(step, parameters) for step in of_net]
    optimizers = 2 if program.optimizers == "two" else 1
    if program.skipped != "none":
        del windows[SKIPPED]
    observed = Observed(
        len(of_net) // optimizers,
        [len(window) for window in windows],
        [sum(len(batch[1]) for batch in window) for window in windows],
        # beside gradients, a program sums up a few counts of tokens
        reduced // sum(parameter.numel() for parameter in parameters),
    )
    if len(of_net) != optimizers * len(windows):  # a mistake that needs no arithmetic
        return observed
    norms = names.get("norms") or [0.0] * len(windows)
    if program.skipped != "none" and len(norms) > len(windows):
        del norms[SKIPPED]
    critic, module = _Critic(names, steps), names["Net"]()
    for w, (window, norm) in enumerate(zip(windows, norms[-len(windows) :], strict=True)):
        step = _joined(of_net[optimizers * w : optimizers * (w + 1)])
        gradients = [_whole(step.gradients.get(p, torch.zeros_like(p))) for p in parameters]
        flat = torch.cat([gradient.double().flatten() for gradient in gradients])
        observed.applied.append(flat / min(1.0, CLIPPED_TO / (norm + 1e-6)))
        values = [_whole(step.parameters[p]).double().requires_grad_() for p in parameters]
        net = _Net(module, values)
        observed.columns.append(_columns(program, net, critic.at(w), window))
    return observed


def _of_all_stages(step: Step, parameters: list[Tensor]) -> Step:
    """The same step with what other ranks hold: each parameter is stepped on one of them."""

    def gathered(values: Values) -> Values:
        whole = {p: values.get(p, torch.zeros_like(p)).clone() for p in parameters}
        for value in whole.values():
            dist.all_reduce(value)
        return whole

    return Step(gathered(step.parameters), gathered(step.gradients))


def _windows(program: Program, windows: list[list[Batch]]) -> list[list[Batch]]:
    """The micro-batches between the steps of the loop."""
    k, stream = program.k, list(itertools.chain(*windows))
    if program.loop == "off_by_one":
        return [stream[:1], *(stream[i : i + k] for i in range(1, len(stream) - k + 1, k))]
    if program.loop != "epochs":
        return windows
    steps, full = list[list[Batch]](), len(stream) // k * k
    left: list[Batch] = []  # what the first epoch left behind, and the second begins with
    for _ in range(2):
        epoch = [stream[i : i + k] for i in range(0, full, k)]
        epoch[0] = left + epoch[0]
        steps, left = steps + epoch, stream[full:]
    return steps


def _joined(steps: list[Step]) -> Step:
    joined = Step({}, {})
    for step in steps:
        joined.parameters |= step.parameters
        joined.gradients |= step.gradients
    return joined


def _whole(tensor: Tensor) -> Tensor:
    gather = getattr(tensor, "full_tensor", None)
    return tensor.detach() if gather is None else gather().detach()


class _Critic:
    """The module ``critic`` as it was when ``net`` was trained."""

    def __init__(self, names: dict[str, Any], steps: list[Step]) -> None:
        self._critic = names.get("critic")
        if self._critic is not None:
            own = list(self._critic.parameters())
            last = Step({p: p.detach() for p in own}, {})
            self._steps = [s for s in steps if s.parameters.keys() & set(own)] + [last]

    def at(self, window: int) -> list[Tensor]:
        """Its weight and bias: what its own step of the next window found."""
        if self._critic is None:
            return []
        return [p.double() for p in self._steps[window + 1].parameters.values()]


@dataclass
class _Net:
    """A module of the script at given parameters, as a function of them."""

    module: nn.Module
    values: list[Tensor]

    def __call__(self, features: Tensor) -> Any:
        names = [name for name, _ in self.module.named_parameters()]
        leaves = dict(zip(names, self.values, strict=True))
        return torch.func.functional_call(self.module, leaves, (features.double(),))


def _columns(
    program: Program, net: _Net, critic: list[Tensor], window: list[Batch]
) -> dict[str, Columns]:
    parts: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
    for index, batch in enumerate(window):
        for objective, (losses, masses) in _elements(program, net, critic, batch).items():
            gradients = _gradients(losses, net.values)
            parts.setdefault(objective, []).append((gradients, masses, index))
    if "penalty" in program.auxiliaries:
        penalty = 0.01 * sum((p.square().sum() for p in net.values), torch.zeros(()))
        one = torch.ones(1, dtype=torch.double)
        parts["penalty"] = [(_gradients(penalty.reshape(1), net.values), one, 0)]
    return {
        objective: Columns(
            torch.cat([gradients for gradients, _, _ in each]),
            torch.cat([masses.detach() for _, masses, _ in each]).double(),
            torch.cat([torch.full((len(masses),), index) for _, masses, index in each]),
        )
        for objective, each in parts.items()
    }


def _elements(
    program: Program, net: _Net, critic: list[Tensor], batch: Batch
) -> dict[str, tuple[Tensor, Tensor]]:
    outputs = net(batch[0])
    first, second = outputs if isinstance(outputs, tuple) else (outputs, None)
    elements = {program.objective: OBJECTIVES[program.objective].elements(first, batch)}
    for term in program.auxiliaries:
        if term == "adversary":
            second = nn.functional.linear(first, *critic)
        if term != "penalty":
            elements[term] = auxiliary_elements(term, first, second, batch)
    return elements


def _gradients(losses: Tensor, leaves: list[Tensor]) -> Tensor:
    """The gradient [elements, parameters] of every loss [elements]."""
    count = len(losses)
    if not count:
        return torch.zeros(0, sum(leaf.numel() for leaf in leaves), dtype=torch.double)
    rows = torch.autograd.grad(
        losses,
        leaves,
        torch.eye(count, dtype=losses.dtype),
        is_grads_batched=True,
        allow_unused=True,
        retain_graph=True,
    )
    shapes = [(count, leaf.numel()) for leaf in leaves]
    pairs = zip(rows, shapes, strict=True)
    parts = [losses.new_zeros(shape) if row is None else row.reshape(shape) for row, shape in pairs]
    return torch.cat(parts, dim=1)
