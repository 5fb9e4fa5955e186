"""Which parameters differ between the ranks, over the steps of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.ingest.schema import Replica, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.held_in_parts import hold_different
from gradledger_monitor.model.ranks.manual_all_reduce import RecordsByRank
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import finite_values
from gradledger_monitor.rules.state import declare

SAME = tolerances.REPLICAS
ROUNDING = 1e-4  # of the way that a parameter has moved: what another order of sums makes of it


class Replicas:
    """Compares the fingerprints of single parameters, as far as records have them.

    Most steps have none, and later ones those of a few parameters.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        total=int,
        differed_at_first=dict[int, bool],
        apart=dict[int, list[int]],
        groups=list[list[int]],
        parts=bool,
        equal_again=bool,
        left_out=dict[int, list[int]],
        names=dict[int, str],
        shapes=dict[int, list[int]],
        copies=dict[int, list[list[int]]],
        copies_apart=dict[int, list[int]],
        copies_equal_again=bool,
        at_first=dict[int, float],
        shares=dict[int, float],
    )

    def __init__(self) -> None:
        self.total = 0  # parameters of the optimizer
        # by parameter: whether the ranks differed when it was first measured
        self.differed_at_first: dict[int, bool] = {}
        self.apart: dict[int, list[int]] = {}  # parameters that differed, with their shapes
        # Ranks whose parameters are equal, if the same ones are for all parameters that differ.
        self.groups: list[list[int]] = []
        self.parts = False  # the optimizers of the ranks hold different parameters
        self.equal_again = False  # parameters that differed were equal later
        # parameters that differed still, where others were equal again
        self.left_out: dict[int, list[int]] = {}
        self.names: dict[int, str] = {}
        self.shapes: dict[int, list[int]] = {}
        # Of parameters that groups of ranks hold copies of, such as experts: the groups.
        self.copies: dict[int, list[list[int]]] = {}
        self.copies_apart: dict[int, list[int]] = {}  # those whose copies differ now, with shapes
        self.copies_equal_again = False  # all of those were equal later, bit by bit
        self.at_first: dict[int, float] = {}  # the first rank's fingerprints
        # how far the ranks are apart, as a share of how far the parameter has moved since then
        self.shares: dict[int, float] = {}

    def add(self, facts: StepFacts) -> None:
        """Compare the ranks in one step; those that hold one model in parts, if they do."""
        if facts.complete:
            self.compare(facts.run.parts or facts.records)

    def compare(self, records: RecordsByRank) -> None:
        """Compare these ranks in one step."""
        measured = [r.replica for r in records.values() if r.replica is not None]
        if len(measured) < len(records):
            return
        self.parts |= hold_different(measured)
        if not _alike(measured):
            return
        first = measured[0]
        self.total = first.total
        self.names.update(zip(first.indices, first.names, strict=False))
        self.shapes.update((i, list(s)) for i, s in zip(first.indices, first.shapes, strict=True))
        columns = zip(*(r.fingerprints for r in measured), strict=True)
        partitions: list[list[list[int]]] = []
        again: dict[int, bool] = {}
        copies_again: list[bool] = []
        for index, shape, column in zip(first.indices, first.shapes, columns, strict=True):
            values = [v for v in map(number, column) if v is not None and math.isfinite(v)]
            if len(values) < len(measured):
                continue
            differ = differ_by(values, SAME)
            by_rank = dict(zip(records, values, strict=True))
            moved = abs(values[0] - self.at_first.setdefault(index, values[0]))
            self.shares[index] = (max(values) - min(values)) / moved if moved else math.inf
            if index not in self.differed_at_first:
                self.differed_at_first[index] = differ
                self.copies[index] = _copies(by_rank) if differ else []
            groups = [[by_rank[r] for r in g if r in by_rank] for g in self.copies[index]]
            if index in self.copies_apart:
                copies_again.append(all(len(set(copies)) == 1 for copies in groups))
            if any(differ_by(copies, SAME) for copies in groups):
                self.copies_apart[index] = list(shape)
            else:
                self.copies_apart.pop(index, None)
            if differ:
                partitions.append(_partition(list(records), values))
            if index in self.apart:
                again[index] = len(set(values)) == 1
            elif differ:
                self.apart[index] = list(shape)
        if again and all(again.values()):
            self.equal_again = True
        if copies_again and all(copies_again):  # averaged from time to time
            self.copies_equal_again = True
        if any(again.values()):
            left_out = self.left_out | {i: self.apart[i] for i in again}
            self.left_out = {i: shape for i, shape in left_out.items() if not again.get(i)}
        if partitions:
            alike = all(each == partitions[0] for each in partitions)
            self.groups = partitions[0] if alike and len(partitions[0]) > 1 else []

    @property
    def groups_of_copies(self) -> list[list[int]]:
        """The groups of ranks that held copies of the first parameter whose copies differ now."""
        return self.copies[min(self.copies_apart)] if self.copies_apart else []

    @property
    def of_one_grouping(self) -> dict[int, list[int]]:
        """The parameters whose copies differ now that those groups held, with their shapes."""
        groups = self.groups_of_copies
        return {i: s for i, s in self.copies_apart.items() if self.copies[i] == groups}

    @property
    def drifted(self) -> dict[int, list[int]]:
        """Parameters that differed, and were equal when first measured, with their shapes."""
        return {i: s for i, s in self.apart.items() if not self.differed_at_first[i]}

    @property
    def drifted_beside_experts(self) -> dict[int, list[int]]:
        """Of these, all that may be a replica where each rank may hold experts.

        Vectors in a module of experts are theirs. Such a module has a matrix that each rank drew
        for itself, and no parameter whose gradients the ranks combine. A matrix may be a router, or
        one of an expert that starts as a copy of a dense layer.
        """
        drawn = [i for i, s in self.apart.items() if len(s) > 1 and self.differed_at_first[i]]
        held = [self.names.get(index, "") for index in drawn]
        combined = [self.names.get(i, "") for i, share in self.shares.items() if share == 0]
        return {
            index: shape
            for index, shape in self.drifted.items()
            if len(shape) > 1
            or not any(_share_a_module(self.names.get(index, ""), of, combined) for of in held)
        }

    @property
    def beside_combined(self) -> str:
        """What the ranks combine beside parameters that drift, which are no whole part then.

        The weight of a bias, or the other way round, where both are combined in another module; or
        equal modules before and after it in a row of modules. Else it is a part of the model: a
        head, adapters, norm layers, all biases.
        """
        combined = [i for i, share in self.shares.items() if share == 0]
        by_name = {self.names[i]: self.shapes[i] for i in combined if i in self.names}
        whole = any(_partner(name) in by_name for name in by_name)
        modules = _modules(self.names, self.shapes)
        alike = {
            module: own
            for module, own in modules.items()
            if all(_joined(module, each) in by_name for each in own)
        }
        for index in self.drifted:
            name = self.names.get(index, "")
            partner = _partner(name)
            if whole and partner in by_name:
                return f"``{partner}``, and not ``{name}`` of the same module"
            module, _, own = name.rpartition(".")
            shapes = modules.get(module)
            around = _around(module, [m for m, each in alike.items() if each == shapes])
            if around is not None:
                before, after = (_joined(each, own) for each in around)
                return f"``{before}`` and ``{after}``, and not ``{name}`` between them"
        return ""

    @property
    def apart_by_rounding(self) -> bool:
        """Whether all differences are far below what the steps of any mistake would make."""
        return all(self.shares[index] <= ROUNDING for index in self.apart)

    def start_apart(self, facts: StepFacts) -> bool:
        """Whether the ranks combine gradients of parameters that differ before the first step.

        Their gradients have one norm on all ranks then. Those of experts, which each rank has for
        itself, have not; parameters that no loss reaches have none.
        """
        names = [self.names.get(index, "") for index in self.apart]
        of_ranks = [_gradients(record, names) for record in facts.records.values()]
        if None in of_ranks or not names:
            return differ_by(finite_values(facts, "parameters"), SAME)  # of some of them
        reached = [column for column in zip(*filter(None, of_ranks), strict=True) if any(column)]
        return bool(reached) and all(len(set(column)) == 1 for column in reached)

    def listed(self, parameters: Mapping[int, Sequence[int]]) -> list[str]:
        """Their names and shapes: ``head.bias [16]``."""
        return [
            f"{self.names.get(index, f'parameter {index}')} {list(shape)}"
            for index, shape in sorted(parameters.items())
        ]

    @property
    def differed_at_start(self) -> bool:
        """Whether some parameter differed when it was first measured."""
        return any(self.differed_at_first.values())


def _partner(name: str) -> str:
    """The weight of this bias, or the bias of this weight, of the same module."""
    module, dot, own = name.rpartition(".")
    other = own.replace("bias", "weight") if "bias" in own else own.replace("weight", "bias")
    return f"{module}{dot}{other}" if other != own else ""


def _modules(
    names: Mapping[int, str], shapes: Mapping[int, list[int]]
) -> dict[str, dict[str, list[int]]]:
    """The modules, with the shapes of their own parameters."""
    modules: dict[str, dict[str, list[int]]] = {}
    for index, name in names.items():
        module, _, own = name.rpartition(".")
        modules.setdefault(module, {})[own] = shapes[index]
    return modules


def _joined(module: str, own: str) -> str:
    return f"{module}.{own}" if module else own


def _around(module: str, others: Sequence[str]) -> tuple[str, str] | None:
    """The modules of one name before and after this one, in a list of modules."""
    parts = module.split(".")
    for position, part in enumerate(parts):
        if part.isdecimal():
            row = {int(n): other for other in others if (n := _number_at(position, parts, other))}
            before = [n for n in row if n < int(part)]
            after = [n for n in row if n > int(part)]
            if before and after:
                return row[max(before)], row[min(after)]
    return None


def _number_at(position: int, parts: Sequence[str], other: str) -> str:
    """The number there, if the other name differs in it alone; else nothing."""
    own = other.split(".")
    alike = [*own[:position], *own[position + 1 :]] == [*parts[:position], *parts[position + 1 :]]
    return own[position] if alike and own[position].isdecimal() else ""


def _share_a_module(name: str, other: str, combined: Sequence[str]) -> bool:
    """Whether two parameters are in one module without a parameter that the ranks combine."""
    owners = zip(name.split(".")[:-1], other.split(".")[:-1], strict=False)
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], owners)
    module = "".join(f"{part}." for part, _ in alike)
    return not any(each.startswith(module) for each in combined)


def _gradients(record: StepRecord, names: Sequence[str]) -> list[float | None] | None:
    """The gradient of each of these parameters, as a root of a mean square; None: not measured."""
    layers = record.layers
    if layers is None:
        return None
    by_name = dict(zip(layers.names, map(number, layers.gradient), strict=False))
    return [by_name[name] for name in names] if set(names) <= set(by_name) else None


def _alike(measured: Sequence[Replica]) -> bool:
    """Whether the ranks measured parameters that may be replicas: as many, of equal shapes."""
    first = measured[0]
    if not len(first.indices) == len(first.shapes) == len(first.fingerprints):
        return False
    same = [(r.total, r.indices, r.shapes, len(r.fingerprints)) for r in measured]
    return all(each == same[0] for each in same)


def _copies(by_rank: Mapping[int, float]) -> list[list[int]]:
    """Groups of one size, of two ranks or more, that have one value each; else none."""
    groups = _partition(list(by_rank), list(by_rank.values()))
    sizes = set(map(len, groups))
    return groups if len(sizes) == 1 and len(groups) > 1 else []


def _partition(ranks: list[int], values: list[float]) -> list[list[int]]:
    """The ranks by their value; nothing if each has its own."""
    by_value: dict[float, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        by_value.setdefault(value, []).append(rank)
    groups = list(by_value.values())
    return groups if any(len(group) > 1 for group in groups) else []


def differ_by(values: Sequence[float], tolerance: float) -> bool:
    """Whether the values of the ranks differ, relative to the largest."""
    return len(values) > 1 and max(values) - min(values) > tolerance * max(map(abs, values))
