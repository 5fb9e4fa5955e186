"""Runs in a notebook: steps as tables, findings, and HTML representations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.notebooks import tables
from gradledger_monitor.notebooks.tables import Columns
from gradledger_monitor.reports.incident import build_incident
from gradledger_monitor.reports.render import html
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun
from gradledger_web import headline
from gradledger_web.rendering import render


class OpenStore:
    """A store that remains open as long as one of its runs is referenced."""

    def __init__(self, store: Store, service: str = "") -> None:
        self.store = store
        self.service = service  # the URL that links lead to, if it is known


class Run:
    """One run. Everything is read on access, so an active run is up to date."""

    def __init__(self, open_store: OpenStore, run: str) -> None:
        self._open_store, self.id = open_store, run

    @property
    def _store(self) -> Store:
        return self._open_store.store

    @property
    def row(self) -> RunRow:
        """Name, project, times, ranks, configuration and environment."""
        row = queries.get_run(self._store, self.id)
        if row is None:
            raise UnknownRun(self.id)
        return row

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.row.name

    @property
    def verdict(self) -> str:
        """balanced, suspect, broken or incomplete."""
        return self.row.verdict

    @property
    def evaluation(self) -> EvaluationResult:
        """Verdict, findings, decision tree and coverage."""
        return queries.evaluation(self._store, self.id)

    def columns(self, optimizer: int = 0) -> Columns:
        """The metrics of each evaluated step of an optimizer, by column."""
        return tables.steps(self._store, self.id, optimizer)

    def steps(self, optimizer: int = 0) -> Any:
        """``columns()`` as a pandas DataFrame, indexed by step. Needs pandas."""
        return tables.frame(self.columns(optimizer)).set_index("step")

    def arrow(self, optimizer: int = 0) -> Any:
        """``columns()`` as an Arrow table. Needs pyarrow."""
        return tables.arrow(self.columns(optimizer))

    def to_parquet(self, path: str | Path, optimizer: int = 0) -> int:
        """Write ``columns()`` as a Parquet file; returns the number of rows. Needs pyarrow."""
        return tables.to_parquet(self.columns(optimizer), Path(path), {"run": self.id})

    def findings(self) -> Any:
        """The findings as a pandas DataFrame, causes before symptoms. Needs pandas."""
        return tables.frame(tables.findings(self.id, self.evaluation.findings))

    def evaluations(self) -> Any:
        """The evaluation metrics as a pandas DataFrame by step and metric. Needs pandas."""
        frame = tables.frame(tables.evaluations(self._store, self.id))
        return frame.pivot_table(index="step", columns="metric", values="value", dropna=False)

    def postmortem(self) -> str:
        """The post-mortem as self-contained HTML."""
        return html(build_incident(self._store, self.id), self._open_store.service)

    def __repr__(self) -> str:
        row = self.row
        return f"<Run {row.id}: {row.verdict}, {row.steps} steps>"

    def _repr_html_(self) -> str:
        evaluation, row = self.evaluation, self.row
        read = headline.summarize(evaluation, row.steps)
        return render(
            "notebook.html",
            run=row,
            summary=read,
            tree=evaluation.tree,
            service=self._open_store.service,
        )


class Runs(Sequence[Run]):
    """Several runs, newest first; access one by index, id or name."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)

    @overload
    def __getitem__(self, which: int | str) -> Run: ...
    @overload
    def __getitem__(self, which: slice) -> list[Run]: ...
    def __getitem__(self, which: int | str | slice) -> Run | list[Run]:
        """One run by index, id or name (the newest of that name), or a slice of runs.

        Raises IndexError or ``UnknownRun``.
        """
        if isinstance(which, str):
            matches = [run for run in self._runs if which in (run.id, run.name)]
            if not matches:
                raise UnknownRun(which)
            return next((run for run in matches if run.id == which), matches[0])
        return self._runs[which]

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def table(self) -> Any:
        """One row per run, as a pandas DataFrame. Needs pandas."""
        return tables.frame(tables.runs([run.row for run in self]))

    def __repr__(self) -> str:
        return f"<Runs: {', '.join(map(repr, self._runs[:5]))}{', ...' if len(self) > 5 else ''}>"

    def _repr_html_(self) -> str:
        if len(self) == 1:
            return self[0]._repr_html_()
        return render("notebook_runs.html", runs=[run.row for run in self])
