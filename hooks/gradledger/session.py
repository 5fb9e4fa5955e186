"""The session of one process: the recorder, the delivery pipeline and the run record.

``gradledger run`` calls ``start_from_environment`` in every process that imports torch;
``gradledger.watch`` calls ``start``. A process that never steps an optimizer sends nothing, and a
forked child has no session until it starts one.

The session installs no signal handler, so a signal acts on the script as it would without the
hooks. The spool of a killed process holds its records, except those of the last 0.2 seconds.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Mapping
from multiprocessing.util import Finalize
from typing import Any, NamedTuple
from urllib.parse import quote

from gradledger import guard, identity, provenance
from gradledger.autostart import activity
from gradledger.autostart.path.gradledger_autostart import reach_stage
from gradledger.capture.code import call_sites, work_tree
from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger.delivery.http_client import Client
from gradledger.delivery.pipeline import Pipeline, ResolvedRecord
from gradledger.delivery.uploader import HEARTBEAT_SECONDS
from gradledger.integrations import FrameworkCallbacks
from gradledger.observers.accumulation import divisor_of_accelerate
from gradledger.on_finding import FindingHandler, Policy
from gradledger.records import (
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    HeartbeatRecord,
    RunRecord,
)
from gradledger.run_config import copy_config, to_number
from gradledger.settings import DEFAULT_PROJECT, DEFAULT_URL, Contract, Settings
from gradledger.stderr import write_line

__all__ = ["DEFAULT_URL", "Contract", "Session", "Settings", "start", "start_from_environment"]

_runs = 0  # number of runs that this process has recorded


class _LastStep(NamedTuple):
    """The last step record: when it was made, and how many backwards had run."""

    time: float
    backwards: int


class Session:
    """Records this process until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.recorder = Recorder(self._on_step, StepSampler(settings.overhead))
        self.recorder.sources.send_text = settings.source
        client = Client(settings.url, settings.token, settings.proxy)
        self.finding_handler = FindingHandler(
            settings.on_finding,
            self._run_url,
            prints=lambda: self._run_record().rank == 0,
            summary=settings.summary,
        )
        self._pipeline = Pipeline(
            client,
            run_record=self._run_record,
            heartbeat=self._heartbeat,
            spool_location=settings.spool_location,
            finding_handler=self.finding_handler,
            device_calls=self.recorder.captures.device_calls,
        )
        self._framework_callbacks = FrameworkCallbacks()
        self._run: RunRecord | None = None
        self._last_step = _LastStep(0.0, 0)
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.RLock()  # held while the run gets its id

    def open(self) -> None:
        """Install the hooks, and arrange for delivery when the process ends."""
        with guard.fail_open("the start"):
            # First: a step that the policy stops must leave its window open.
            self.finding_handler.install()
            self.recorder.install()
            self._framework_callbacks.install()
            activity.begin()
        atexit.register(self.close)
        # A forked multiprocessing worker ends without running atexit.
        self._finalize = Finalize(None, self.close, exitpriority=0)

    def close(self) -> None:
        """Remove the hooks and deliver the remaining records."""
        if os.getpid() != self._pid:
            return
        with guard.fail_open("the end of the session"):
            if not self._closed:
                self._closed = True
                self.recorder.finish()
                self._detach()
                self._report_nothing()
                atexit.unregister(self.close)
                self._finalize.cancel()
            # On every call: if a signal interrupts the first one, the next must wait for delivery.
            if self._run is not None:
                self._pipeline.close(EndRecord(time.time(), self.recorder.windows.steps))

    def _report_nothing(self) -> None:
        """No step was recorded: report what the process did instead."""
        counts = self.recorder.grad_calls.activity
        if self._run is None and not activity.write(counts) and any(counts):
            write_line(f"no step was recorded: {counts.reason()}")

    def abandon(self) -> None:
        """Remove the hooks in a forked child: the session belongs to the parent."""
        with guard.fail_open("the fork"):
            self._detach()
            self._pipeline.abandon()
            reach_stage(activity.FORKED)

    def update(self, settings: Settings) -> None:
        """Merge the settings of ``watch`` into the session that ``gradledger run`` opened.

        The name and the project of the command have priority; contract, scale and configuration
        of the script do. If either requests every step, every step is recorded.
        """
        own = self.settings
        own.name = own.name or settings.name
        own.project = settings.project if own.project == DEFAULT_PROJECT else own.project
        own.contract, own.scale = settings.contract or own.contract, settings.scale or own.scale
        own.config = {**own.config, **settings.config}
        self.recorder.sources.send_text &= settings.source
        if settings.overhead is None:
            self.recorder.sample_every_step()
        if self._run is not None:
            self._describe(self._run)

    def set_policy(self, policy: Policy) -> None:
        """Replace the ``on_finding`` policy."""
        self.finding_handler.uninstall()
        self.finding_handler.policy = policy
        self.finding_handler.install()

    def configure(self, values: Mapping[str, Any]) -> None:
        """Add entries to the configuration; entries that the script set itself have priority."""
        entries, _ = copy_config(values)
        self.settings.config = {**entries, **self.settings.config}
        if self._run is not None:
            self._describe(self._run)

    def page(self) -> str:
        """The address of the run, or of the service before the first step."""
        url = self.settings.url.rstrip("/")
        return url if self._run is None else f"{url}/runs/{quote(self._run.run, safe='')}"

    def verdict(self) -> str:
        """The verdict of the run in the last reply of the service; empty without one."""
        return self.finding_handler.verdict

    def log_eval(self, step: Any, values: Mapping[str, Any]) -> None:
        """Send evaluation metrics; report and omit values that are not a single number."""
        with guard.fail_open("ledger.log_eval"):
            numbers = {name: to_number(value) for name, value in values.items()}
            if omitted := [name for name, value in numbers.items() if value is None]:
                names = ", ".join(map(str, omitted))
                write_line(f"log_eval omits {names}: pass a single number for each metric")
            metrics = {str(k)[:256]: v for k, v in numbers.items() if k and v is not None}
            if metrics:
                self._identify()
                self._pipeline.put(
                    ResolvedRecord(EvalRecord(max(0, int(step)), time.time(), metrics))
                )

    def checkpoint(self, step: Any, path: object) -> None:
        """Record a saved checkpoint, by default at the last step of the first optimizer."""
        with guard.fail_open("ledger.checkpoint"):
            steps = self.recorder.windows.steps
            saved_at = (steps[0] if steps else 0) if step is None else int(step)
            self._identify()
            path = identity.replace_surrogates(str(path))[:4_096]
            self._pipeline.put(ResolvedRecord(CheckpointRecord(saved_at, time.time(), path)))

    def _detach(self) -> None:
        self._framework_callbacks.uninstall()
        self.recorder.uninstall()
        self.finding_handler.uninstall()

    def _on_step(self, step: OpenStep) -> None:
        self._identify()
        self._last_step = _LastStep(step.time, self.recorder.backwards)
        self._pipeline.put(step)

    def _identify(self) -> None:
        """Create the run record at the first record, when torch.distributed is initialised."""
        if self._run is None:
            with self._lock:  # several training threads may reach this at once
                self._run = self._run or self._new_run_record()

    def _new_run_record(self) -> RunRecord:
        global _runs
        _runs += 1
        rank, world = identity.rank_and_world(os.environ)
        run = RunRecord(
            run=identity.run_id(self.settings.run, os.environ, world, _runs),
            name="",
            rank=rank,
            world_size=world,
            started=time.time(),
            environment=identity.environment(_runs),
        )
        self._describe(run)
        return run

    def _describe(self, run: RunRecord) -> None:
        settings = self.settings
        run.name = settings.name or identity.script()
        run.project, run.config = settings.project, settings.config
        run.contract, run.declared_scale = settings.contract, settings.scale

    # ------------------------------------------------------------------ for the background threads

    def _run_record(self) -> RunRecord:
        assert self._run is not None
        self._run.optimizers = self.recorder.windows.names
        self._run.environment |= call_sites.in_use()
        divisor = divisor_of_accelerate()
        if divisor is not None:
            self._run.environment["gradient_accumulation_steps"] = str(divisor)
        commit = provenance.commit()  # reads files, so not on the training thread
        if commit is not None:
            self._run.environment["commit"] = commit
            dirty = work_tree.dirty() if self._run.rank == 0 else None
            if dirty is not None:
                self._run.environment["dirty"] = dirty
        return self._run

    def _run_url(self) -> str:
        return f"{self.settings.url.rstrip('/')}/runs/{quote(self._run_record().run, safe='')}"

    def _heartbeat(self) -> HeartbeatRecord | None:
        """A heartbeat if the last step record is older than the heartbeat interval."""
        now, last = time.time(), self._last_step
        if not last.time or now - last.time < HEARTBEAT_SECONDS:
            return None
        backwards = self.recorder.backwards - last.backwards
        return HeartbeatRecord(now, now - self.recorder.last_step_time, backwards)


_session: Session | None = None
_lock = threading.RLock()  # a process has one session, whichever threads start it


def start(settings: Settings) -> Session:
    """The session of this process, opened by the first call; later calls update its settings."""
    global _session
    with _lock:
        open_session = current()
        if open_session is not None:
            open_session.update(settings)
            return open_session
        _session = Session(settings)
        _session.open()
        return _session


def current() -> Session | None:
    """The open session of this process, or None."""
    if _session is None or _session._closed or _session._pid != os.getpid():
        return None
    return _session


def start_from_environment() -> None:
    """Start the session after ``import torch`` under ``gradledger run``. Never raises."""
    with guard.fail_open("gradledger"):
        start(Settings.from_environment(os.environ))


def _abandon_in_child() -> None:
    global _lock, _session
    _lock = threading.RLock()  # a thread that does not exist in the child may hold it
    if _session is not None:
        _session.abandon()
        _session = None


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_abandon_in_child)
