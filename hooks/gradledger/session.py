"""One process's session: the recorder, the sender, and what the run record says.

``start_from_environment`` is what ``gradledger run`` calls in every child that imports torch;
``start`` is what ``gradledger.watch`` calls. A process that never steps an optimizer sends nothing,
and a forked child has no session until it asks for one.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.util import Finalize
from typing import Any, NamedTuple
from urllib.parse import quote

from gradledger import guard, identity, provenance
from gradledger.delivery.client import Client
from gradledger.delivery.courier import BEAT_SECONDS
from gradledger.delivery.sender import Known, Sender
from gradledger.integrations import Found
from gradledger.ledger import OpenStep
from gradledger.pacing import Pace
from gradledger.reacting import Policy, Reaction
from gradledger.recorder import Recorder
from gradledger.records import (
    BeatRecord,
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    RunRecord,
    StepRecord,
)
from gradledger.settings import DEFAULT_PROJECT, DEFAULT_URL, Contract, Settings

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
        self.recorder = Recorder(self._take, Pace(settings.overhead))
        client = Client(settings.url, settings.token)
        self.reaction = Reaction(settings.on_finding, self._page, lambda: self._speaker().rank == 0)
        sender = self._speaker, self._pulse, settings.place, self.reaction
        self._sender = Sender(client, *sender)
        self._frameworks = Found()
        self._run: RunRecord | None = None
        self._latest = (0.0, 0)  # when the last record was made, and how many backwards had run
        self._pid = os.getpid()
        self._closed = False

    def open(self) -> None:
        """Put the hooks in place; everything is sent when the process ends."""
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
            self.recorder.watch_all()
        if self._run is not None:
            self._describe(self._run)

    def react(self, policy: Policy) -> None:
        """What to do about findings from now on."""
        self.reaction.uninstall()
        self.reaction.policy = policy
        self.reaction.install()

    def log_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Send evaluation metrics."""
        record = EvalRecord(step, time.time(), {k: float(v) for k, v in values.items()})
        self._identify()
        self._sender.put(Known(record))

    def checkpoint(self, step: int | None, path: str) -> None:
        """Send that a checkpoint was saved; its step is the first optimizer's last one."""
        with guard.fail_open("ledger.checkpoint"):
            steps = self.recorder.windows.steps
            at = (steps[0] if steps else 0) if step is None else int(step)
            self._identify()
            told = CheckpointRecord(at, time.time(), identity.sayable(path)[:4_096])
            self._sender.put(Known(told))

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
        global _runs
        if self._run is not None:
            return
        _runs += 1
        rank, world = identity.rank_and_world(os.environ)
        self._run = RunRecord(
            identity.run_id(self.settings.run, os.environ, world, _runs),
            "",
            rank,
            world,
            started=time.time(),
            environment=identity.environment(),
        )
        self._describe(self._run)

    def _describe(self, run: RunRecord) -> None:
        script = identity.sayable(os.path.basename(sys.argv[0]))[:256] or "python"
        said = self.settings
        run.name, run.project, run.config = said.name or script, said.project, said.config
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

    def _pulse(self) -> BeatRecord | None:
        """That the process lives, when there was nothing else to tell for long."""
        told, backwards = self._latest
        now = time.time()
        if not told or now - told < BEAT_SECONDS:
            return None
        return BeatRecord(now, now - self.recorder.stepped, self.recorder.backwards - backwards)


_session: Session | None = None


def start(settings: Settings) -> Session:
    """The session of this process, opened on first call; later ones may describe the run."""
    global _session
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
        _deliver_on_sigterm()


def _deliver_on_sigterm() -> None:
    """Without a handler SIGTERM ends Python at once; deliver first, then end the same way."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def deliver(number: int, frame: Any) -> None:
        if _session is not None:
            _session.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, deliver)


def _forget_in_child() -> None:
    global _session
    if _session is not None:
        _session.forget()
        _session = None


os.register_at_fork(after_in_child=_forget_in_child)
