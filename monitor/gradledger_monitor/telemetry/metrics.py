"""Metrics for Prometheus.

Counters and histograms are of this process. Gauges are read from the database at each scrape, and
are the same from every process on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

import gradledger
from gradledger_monitor.model import step_facts
from gradledger_monitor.store.admin import counts
from gradledger_monitor.store.alerts import outbox
from gradledger_monitor.store.alerts.outbox import DeliveryResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.steps.ingest import StoreResult

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAGS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0, 86_400.0)


class Metrics:
    """The metrics of one service process."""

    def __init__(self, store: Store, queued: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        build = Info(
            "gradledger_build",
            "Version of the service, and whether its rules are compiled.",
            registry=self._registry,
        )
        compiled = "python" if step_facts.__file__.endswith(".py") else "compiled"
        build.info({"version": gradledger.__version__, "rules": compiled})
        self.records = Counter(
            "gradledger_records",
            "Records received, by outcome: stored, duplicate or refused.",
            ["outcome"],
            registry=self._registry,
        )
        self.connections_ended = Counter(
            "gradledger_connections_ended",
            "Connections that were aborted or closed by the service, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self.ingest = self._histogram(
            "ingest_seconds", "Time from a batch's last byte until it is durable.", FAST
        )
        self.ingest_lag = self._histogram(
            "ingest_lag_seconds",
            "Time from the end of the newest step in a batch, by the clock of the training "
            "process, until it is durable.",
            LAGS,
        )
        self.evaluations = self._histogram(
            "evaluation_seconds", "Duration of one evaluation pass of a run.", FAST
        )
        self.evaluated_steps = Counter(
            "gradledger_evaluated_steps", "Optimizer steps evaluated.", registry=self._registry
        )
        self.quarantined = Counter(
            "gradledger_quarantined_steps",
            "Optimizer steps that could not be evaluated; the run's page lists them with reasons.",
            registry=self._registry,
        )
        self.requests = self._histogram(
            "request_seconds", "Duration of a request.", FAST, "method", "route", "status"
        )
        self.attempts = Counter(
            "gradledger_alert_attempts",
            "Attempts to send an alert, by channel and outcome.",
            ["channel", "outcome"],
            registry=self._registry,
        )
        self.alerts = self._histogram(
            "alert_seconds", "Time from when an alert was created until it was delivered.", LAGS
        )
        queue = Gauge(
            "gradledger_ingest_queue",
            "Batches that wait for a worker or are being processed.",
            registry=self._registry,
        )
        queue.set_function(queued)
        self._registry.register(_DatabaseGauges(store))

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        full = f"gradledger_{name}"
        return Histogram(full, text, labels, buckets=buckets, registry=self._registry)

    def count_batch(self, batch: StoreResult, seconds: float) -> None:
        """Count a batch that is durable."""
        self.records.labels("stored").inc(batch.stored)
        self.records.labels("duplicate").inc(batch.duplicates)
        self.records.labels("refused").inc(batch.refused.count)
        self.ingest.observe(seconds)

    def count_evaluation(self, steps: int, seconds: float, quarantined: int = 0) -> None:
        """Count the steps of an evaluation pass, and those of them that were quarantined."""
        self.evaluated_steps.inc(steps)
        self.quarantined.inc(quarantined)
        self.evaluations.observe(seconds)

    def count_delivery(self, channel: str, result: DeliveryResult, seconds: float) -> None:
        """Count an attempt to send an alert, ``seconds`` after it was created."""
        self.attempts.labels(channel, result.outcome).inc()
        if result.outcome == "delivered":
            self.alerts.observe(seconds)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus. Reads the database."""
        return generate_latest(self._registry)


class _DatabaseGauges(Collector):
    """Gauges with the current counts in the database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> Iterator[GaugeMetricFamily]:
        current = counts.count(self._store)
        yield _gauge("runs", "Runs by verdict.", ["verdict"], current.runs)
        yield _gauge("findings", "Findings.", ["rule", "severity", "lifecycle"], current.findings)
        text = "Runs with records that are not evaluated yet: the evaluator's queue."
        yield _gauge("runs_pending", text, [], {(): current.pending})
        text = "Alerts by channel and state: waiting, delivered, or dead after the last attempt."
        yield _gauge("alerts", text, ["channel", "state"], outbox.counts(self._store))

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: registering must not read the database, which may not be migrated yet."""
        return []


def _gauge(
    name: str, text: str, labels: list[str], values: dict[tuple[str, ...], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"gradledger_{name}", text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
