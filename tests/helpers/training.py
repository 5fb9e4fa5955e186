"""Tiny trainings, what the hooks record of them, and what PyTorch itself says about the same steps.

The witness is independent of the hooks: it keeps the gradient that each step applied, and works out
the gradient of every single token in double precision. The weights that turn the one into the
other are what the ledger must have found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge

torch.set_num_threads(1)

INPUTS, HIDDEN, CLASSES = 8, 16, 7
IGNORED = -100

Batch = tuple[Tensor, Tensor]  # inputs [rows, length, INPUTS], labels [rows, length]
Batches = list[Batch]
Ledgers = dict[int, list[schema.StepRecord]]  # one rank's steps, by optimizer


# ---------------------------------------------------------------------- models and data


def tiny_model(seed: int = 0) -> nn.Module:
    """A token classifier of 263 parameters: more than the tokens of any window used here."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def micro_batch(lengths: Sequence[int], generator: torch.Generator) -> Batch:
    """One row per length, padded to the longest."""
    longest = max(lengths)
    inputs = torch.randn(len(lengths), longest, INPUTS, generator=generator)
    labels = torch.randint(0, CLASSES, (len(lengths), longest), generator=generator)
    for row, length in enumerate(lengths):
        labels[row, length:] = IGNORED
    return inputs, labels


# Rows of each micro-batch: token counts differ inside a window, and from window to window.
LENGTHS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((5, 3), (2, 1), (8, 6), (4, 1)),
    ((1, 1), (9, 4), (3, 2), (2, 1)),
    ((6, 2), (7, 7), (5, 4), (2, 1)),
)


def windows(count: int, seed: int = 0, lengths: Any = LENGTHS) -> list[Batches]:
    """Windows of four micro-batches with unequal token counts; other ones for another seed."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [lengths[(index + seed) % len(lengths)] for index in range(count)]
    return [[micro_batch(rows, generator) for rows in window] for window in chosen]


def tokens(batch: Batch) -> int:
    """Labels that count."""
    return int((batch[1] != IGNORED).sum())


def cross_entropy(model: Callable[[Tensor], Tensor], batch: Batch, **options: Any) -> Tensor:
    """The loss as people write it."""
    inputs, labels = batch
    logits = model(inputs).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, **options)


# ---------------------------------------------------------------------- what the hooks record


@dataclass
class Recording:
    """What would be sent, kept in this process and read as late as possible."""

    steps: list[OpenStep] = field(default_factory=list)
    _resolved: list[tuple[OpenStep, bytes]] = field(default_factory=list)

    def lines(self) -> list[bytes]:
        """The records on the wire. Each is resolved once, as in a training."""
        for index, step in enumerate(self.steps):
            if index >= len(self._resolved) or self._resolved[index][0] is not step:
                self._resolved[index:] = [(step, encode(step.resolve()))]
        return [line for _, line in self._resolved[: len(self.steps)]]

    def records(self, optimizer: int = 0) -> list[schema.StepRecord]:
        """What a service accepts of one optimizer, in order."""
        return steps_of(self.lines(), optimizer)

    def facts(self, optimizer: int = 0, **run: Any) -> list[StepFacts]:
        """The steps of one optimizer, as rules see them."""
        return facts_of([self.records(optimizer)], optimizer, **run)

    def evaluation(self, **run: Any) -> EvaluationResult:
        """What the rules make of the whole recording."""
        optimizers = sorted({step.optimizer for step in self.steps})
        return judged([fact for each in optimizers for fact in self.facts(each, **run)])


@contextmanager
def recording(
    into: Recording | None = None, step_sampler: StepSampler | None = None
) -> Iterator[Recording]:
    """Hooks on for the length of a block."""
    kept = Recording() if into is None else into
    recorder = Recorder(kept.steps.append, step_sampler)
    recorder.install()
    try:
        yield kept
    finally:
        recorder.uninstall()


def steps_of(lines: list[bytes], optimizer: int = 0) -> list[schema.StepRecord]:
    """Lines of the wire, decoded as the service does."""
    decoded = [schema.decoder.decode(line) for line in lines]
    steps = [record for record in decoded if isinstance(record, schema.StepRecord)]
    return [step for step in steps if step.optimizer == optimizer]


def facts_of(
    ranks: list[list[schema.StepRecord]], optimizer: int = 0, **run: Any
) -> list[StepFacts]:
    """The records of all ranks, merged step by step."""
    info = RunInfo("run", "a run", len(ranks), **{"optimizers": ["SGD"], **run})
    steps = zip(*ranks, strict=True)
    merged = [merge(info, optimizer, each[0].step, dict(enumerate(each))) for each in steps]
    return merged


def judged(facts: list[StepFacts]) -> EvaluationResult:
    """The judgement on facts in order."""
    state = RunState(facts[0].run)
    for each in facts:
        state.add_facts(each)
    return state.result()


def accused(evaluation: EvaluationResult) -> dict[str, int]:
    """Rules with a finding that nothing inhibits, and the step at which each first fired."""
    loud = [f for f in evaluation.findings if f.inhibited_by is None]
    return {finding.rule: finding.first_step for finding in loud}


# ---------------------------------------------------------------------- what PyTorch says


@dataclass
class Applied:
    """One optimizer step, seen from outside: the parameters it started from, and its gradient."""

    parameters: dict[str, Tensor]
    gradient: Tensor


class Witness:
    """Keeps what an optimizer applies; knows nothing of the hooks."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = model
        self.steps: list[Applied] = []
        optimizer.register_step_pre_hook(self._look)

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        named = dict(self._model.named_parameters())
        parameters = {name: p.detach().double().clone() for name, p in named.items()}
        gradients = [p.grad.double().flatten() for p in named.values() if p.grad is not None]
        self.steps.append(Applied(parameters, torch.cat(gradients)))


def token_gradients(
    model: nn.Module, parameters: dict[str, Tensor], batches: Batches
) -> tuple[Tensor, Tensor]:
    """Loss [T] and gradient [T, P] of every token that counts, each from a pass of its own."""
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    losses, gradients = [], []
    for inputs, labels in batches:
        logits = torch.func.functional_call(model, leaves, (inputs.double(),)).flatten(0, 1)
        picked = F.log_softmax(logits, -1)
        for position in (labels.flatten() != IGNORED).nonzero().flatten():
            loss = -picked[position, labels.flatten()[position]]
            parts = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
            losses.append(loss.detach())
            gradients.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(losses), torch.stack(gradients)


@dataclass
class Truth:
    """The ledger of one window, worked out from the applied gradient alone."""

    weights: Tensor  # of each token
    losses: Tensor
    gradients: Tensor
    applied: Tensor

    @classmethod
    def of(cls, model: nn.Module, step: Applied, batches: Batches) -> Truth:
        """Solve for the one set of weights that makes the applied gradient of the tokens'."""
        losses, gradients = token_gradients(model, step.parameters, batches)
        return cls.solve(losses, gradients, step.gradient)

    @classmethod
    def solve(cls, losses: Tensor, gradients: Tensor, applied: Tensor) -> Truth:
        """The same, from gradients that are known; all ranks' tokens together, for instance."""
        weights = torch.linalg.lstsq(gradients.T, applied.unsqueeze(1)).solution.flatten()
        truth = cls(weights, losses, gradients, applied)
        assert truth.rebuilt_by(weights) < 1e-4, "these tokens do not make this gradient"
        return truth

    @property
    def balance(self) -> float:
        """The sum of all token weights."""
        return float(self.weights.sum())

    @property
    def misallocation(self) -> float:
        """The total variation distance between the weights and equal ones."""
        count = len(self.weights)
        return float((self.weights / self.balance - 1 / count).abs().sum() / 2)

    @property
    def loss(self) -> float:
        """What one large batch would have reported."""
        return float(self.losses.mean())

    def rebuilt_by(self, weights: Tensor) -> float:
        """Relative error of the gradient that these weights give."""
        off = self.gradients.T @ weights - self.applied
        return float(off.norm() / self.applied.norm())


def assert_ledger_is_true(facts: StepFacts, truth: Truth, tolerance: float = 1e-3) -> None:
    """Every number of the ledger against the witness's."""
    ledger, figures = facts.ledger, chart_metrics(facts)
    assert ledger is not None, facts.unmeasured
    assert ledger.tokens == len(truth.losses)
    assert abs(ledger.balance / truth.balance - 1) < tolerance
    assert abs(ledger.misallocation - truth.misallocation) < tolerance
    assert figures["loss_token"] is not None
    assert abs(figures["loss_token"] / truth.loss - 1) < tolerance
    assert figures["norm"] is not None
    assert abs(figures["norm"] / float(truth.applied.norm()) - 1) < tolerance
    weights = [w for e in ledger.entries for w in [e.weight] * round(e.tokens)]
    assert truth.rebuilt_by(torch.tensor(weights, dtype=torch.double)) < tolerance
