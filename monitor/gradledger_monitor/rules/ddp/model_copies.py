"""Ranks that step on their own gradients, and then take over the parameters of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.topology import shares_out
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import finite_values, names, norms_by_rank, norms_differ
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import finding
from gradledger_monitor.rules.state import declare

FIX = """\
for parameter in model.parameters():     # before optimizer.step()
    torch.distributed.all_reduce(parameter.grad)
    parameter.grad /= torch.distributed.get_world_size()"""


class ModelCopies:
    """Counts the windows in a row after which all ranks had the parameters of the same ranks.

    A rank whose model nothing but its own step has changed is the source, if all others have
    changed and all are equal then. If all have changed, the values show from which they come.
    """

    state: ClassVar[Mapping[str, Any]] = declare(windows=int, sources=list[int])

    def __init__(self) -> None:
        self.windows = 0
        self.sources: list[int] = []  # ranks

    def add(self, facts: StepFacts) -> None:
        """Take in what happened to the models before this step."""
        sources = self._sources(facts)
        repeated = self.windows if sources == self.sources else 0
        self.windows = repeated + 1 if sources else 0
        self.sources = sources

    def _sources(self, facts: StepFacts) -> list[int]:
        records = facts.records
        if facts.missing_ranks:
            return []
        if facts.all_reduce is not None and facts.all_reduce.of_owners == 1:
            return list(records)
        if not _steps_alone(facts):
            return []
        if shares_out(facts.run.optimizer_name(facts.optimizer)):
            return list(records)
        unchanged = [rank for rank, record in records.items() if record.models is None]
        if not unchanged:
            copied = () if facts.exchange is None else facts.exchange.copied
            return [list(records)[row] for row in copied]
        if len(unchanged) > 1:  # such as all ranks of a group that copies nothing
            return []
        equal = _are_equal(facts)
        return unchanged if equal or (equal is None and unchanged == self.sources) else []

    def finding(self, facts: StepFacts) -> Outcome:
        """What the ranks computed for parameters that they take over has no effect."""
        ranks = len(facts.records)
        own = f"In the last {counted(self.windows, 'window')}, each of the {ranks} ranks stepped on"
        own += " the gradients that it computed itself, and then "
        if len(self.sources) == 1:
            (source,) = self.sources
            others = [rank for rank in facts.records if rank != source]
            taken = f"{names(others).lower()} took over the parameters of rank {source}. The "
            taken += f"parameters are trained on the data of rank {source} alone."
        else:
            taken = "all ranks took over each parameter from one of them "
            taken += f"({names(self.sources).lower()}). Each parameter is trained on the data of "
            taken += "one rank alone."
        return finding(
            "error",
            "Gradients are not combined: the ranks copy parameters instead",
            f"{own}{taken} What the other ranks computed has no effect.",
            FIX,
            ranks=ranks,
            windows=self.windows,
            sources=self.sources[:16],
            norms=norms_by_rank(facts),
        )


def _steps_alone(facts: StepFacts) -> bool:
    """Whether each rank steps on its own gradients, which differ, at the same learning rate.

    Ranks with different rates may try them, and take over the best model.
    """
    alone = all(
        record.sync == "none"
        and not record.skipped
        and "sync" not in record.missing
        and number(record.post_factor)
        and facts.applied_by_rank[rank]
        for rank, record in facts.records.items()
    )
    return alone and norms_differ(facts) and not differ_by(finite_values(facts, "lr"), SAME)


def _are_equal(facts: StepFacts) -> bool | None:
    """Whether the ranks' parameters are equal before this step; None if they were not measured."""
    replicas = [record.replica for record in facts.records.values()]
    prints = [r.fingerprints for r in replicas if r is not None and r.fingerprints]
    return None if len(prints) < len(replicas) else all(each == prints[0] for each in prints)
