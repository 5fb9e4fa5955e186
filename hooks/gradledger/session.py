"""One process's session: the recorder, the sender, and what the run record says.

``start_from_environment`` is what ``gradledger run`` calls in every child that imports torch;
``start`` is what ``gradledger.watch`` calls. A process that never steps an optimizer sends nothing,
and a forked child has no session until it asks for one.

No signal handler is installed: a signal does to the script what it does without us. What a killed
process had recorded is in its spool, but for the last two tenths of a second.
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
from gradledger.autostart.path.gradledger_autostart import note
from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger.delivery.http_client import Client
from gradledger.delivery.pipeline import Known, Sender
from gradledger.delivery.uploader import BEAT_SECONDS
from gradledger.integrations import Found
from gradledger.on_finding import Policy, Reaction
from gradledger.records import (
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    HeartbeatRecord,
    RunRecord,
    StepRecord,
)
from gradledger.run_config import number, plain
from gradledger.settings import DEFAULT_PROJECT, DEFAULT_URL, Contract, Settings
from gradledger.stderr import write_line

__all__ = ["DEFAULT_URL", "Contract", "Session", "Settings", "start", "start_from_environment"]

_runs = 0  # that this process has spoken for


class Window(NamedTuple):
    """A closed window, to be resolved when the device has delivered its values."""

    step: OpenStep

    @property
    def ready(self) -> bool:
        """Whether every value is here."""
        return all(value.ready for value in self.step.deferred())

    def resolve(self) -> StepRecord:
        """The record of the step."""
        return self.step.resolve()


class Session:
    """Records this process until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.recorder = Recorder(self._take, StepSampler(settings.overhead))
        client = Client(settings.url, settings.token, settings.proxy)
        self.reaction = Reaction(settings.on_finding, self._page, lambda: self._speaker().rank == 0)
        sender = self._speaker, self._pulse, settings.place, self.reaction
        self._sender = Sender(client, *sender)
        self._frameworks = Found()
        self._run: RunRecord | None = None
        self._latest = (0.0, 0)  # when the last record was made, and how many backwards had run
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.RLock()  # for the one moment at which the run gets its identity

    def open(self) -> None:
        """Put the hooks in place; everything is sent when the process ends."""
        with guard.fail_open("the start"):
            self.reaction.install()  # first: a step that is stopped leaves its window open
            self.recorder.install()
            self._frameworks.install()
        atexit.register(self.close)
        # a forked worker of multiprocessing ends without atexit
        self._finalize = Finalize(None, self.close, exitpriority=0)

    def close(self) -> None:
        """Remove the hooks and deliver what is left."""
        if os.getpid() != self._pid:
            return
        with guard.fail_open("the end of the session"):
            if not self._closed:
                self._closed = True
                if self.recorder.backwards:
                    note("backward")
                self.recorder.finish()
                self._detach()
                atexit.unregister(self.close)
                self._finalize.cancel()
            # again, where a signal interrupts the first time: the process must not end before
            if self._run is not None:
                self._sender.close(EndRecord(time.time(), self.recorder.windows.steps))

    def forget(self) -> None:
        """In a forked child: the session is the parent's."""
        with guard.fail_open("the fork"):
            self._detach()
            self._sender.abandon()

    def learn(self, said: Settings) -> None:
        """What a script says of itself, where the command that started it opened the session.

        Where both have said something, the command's word on a name holds, and so does either's
        wish that every step be watched.
        """
        known = self.settings
        known.name = known.name or said.name
        known.project = said.project if known.project == DEFAULT_PROJECT else known.project
        known.contract, known.scale = said.contract or known.contract, said.scale or known.scale
        known.config = {**known.config, **said.config}
        if said.overhead is None:
            self.recorder.sample_every_step()
        if self._run is not None:
            self._describe(self._run)

    def react(self, policy: Policy) -> None:
        """What to do about findings from now on."""
        self.reaction.uninstall()
        self.reaction.policy = policy
        self.reaction.install()

    def configure(self, values: Mapping[str, Any]) -> None:
        """Add to the configuration what the script has not given itself."""
        copied, _ = plain(values)
        self.settings.config = {**copied, **self.settings.config}
        if self._run is not None:
            self._describe(self._run)

    def log_eval(self, step: Any, values: Mapping[str, Any]) -> None:
        """Send evaluation metrics; what is no number is reported and left out."""
        with guard.fail_open("ledger.log_eval"):
            numbers = {name: number(value) for name, value in values.items()}
            if wrong := [name for name, value in numbers.items() if value is None]:
                names = ", ".join(map(str, wrong))
                write_line(f"log_eval: {names} is left out, because it is no single number")
            metrics = {str(k)[:256]: v for k, v in numbers.items() if k and v is not None}
            if metrics:
                self._identify()
                self._sender.put(Known(EvalRecord(max(0, int(step)), time.time(), metrics)))

    def checkpoint(self, step: Any, path: object) -> None:
        """Send that a checkpoint was saved; its step is the first optimizer's last one."""
        with guard.fail_open("ledger.checkpoint"):
            steps = self.recorder.windows.steps
            at = (steps[0] if steps else 0) if step is None else int(step)
            self._identify()
            path = identity.sayable(str(path))[:4_096]
            self._sender.put(Known(CheckpointRecord(at, time.time(), path)))

    def _detach(self) -> None:
        self._frameworks.uninstall()
        self.recorder.uninstall()
        self.reaction.uninstall()

    def _take(self, step: OpenStep) -> None:
        self._identify()
        self._latest = (step.time, self.recorder.backwards)
        self._sender.put(Window(step))

    def _identify(self) -> None:
        """At the first record: by now the script has initialised torch.distributed, if ever."""
        if self._run is None:
            with self._lock:  # several training threads may come here at once
                self._run = self._run or self._first_record()

    def _first_record(self) -> RunRecord:
        global _runs
        _runs += 1
        rank, world = identity.rank_and_world(os.environ)
        run = RunRecord(
            identity.run_id(self.settings.run, os.environ, world, _runs),
            "",
            rank,
            world,
            started=time.time(),
            environment=identity.environment(),
        )
        self._describe(run)
        return run

    def _describe(self, run: RunRecord) -> None:
        said = self.settings
        run.name, run.project, run.config = (
            said.name or identity.script(),
            said.project,
            said.config,
        )
        run.contract, run.declared_scale = said.contract, said.scale

    # ------------------------------------------------------------------ for the background threads

    def _speaker(self) -> RunRecord:
        assert self._run is not None
        self._run.optimizers = self.recorder.windows.names
        commit = provenance.commit()  # reads files: not for the training thread
        if commit is not None:
            self._run.environment["commit"] = commit
        return self._run

    def _page(self) -> str:
        return f"{self.settings.url.rstrip('/')}/runs/{quote(self._speaker().run, safe='')}"

    def _pulse(self) -> HeartbeatRecord | None:
        """That the process lives, when there was nothing else to tell for long."""
        told, backwards = self._latest
        now = time.time()
        if not told or now - told < BEAT_SECONDS:
            return None
        return HeartbeatRecord(
            now, now - self.recorder.last_step_time, self.recorder.backwards - backwards
        )


_session: Session | None = None
_lock = threading.RLock()  # one session in a process, whichever threads ask for it


def start(settings: Settings) -> Session:
    """The session of this process, opened on first call; later ones may describe the run."""
    global _session
    with _lock:
        known = current()
        if known is not None:
            known.learn(settings)
            return known
        _session = Session(settings)
        _session.open()
        return _session


def current() -> Session | None:
    """The session that is open in this process."""
    if _session is None or _session._closed or _session._pid != os.getpid():
        return None
    return _session


def start_from_environment() -> None:
    """Called right after ``import torch`` in a process under ``gradledger run``; never raises."""
    with guard.fail_open("gradledger"):
        start(Settings.from_environment(os.environ))


def _forget_in_child() -> None:
    global _lock, _session
    _lock = threading.RLock()  # a thread that is not in the child may have held it
    if _session is not None:
        _session.forget()
        _session = None


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_forget_in_child)
