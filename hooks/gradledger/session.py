"""One process's session: the recorder, the sender, and what the run record says.

``start_from_environment`` is what ``gradledger run`` calls in every child that imports torch;
``start`` is what ``gradledger.watch`` calls. A process that never steps an optimizer sends nothing.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradledger import guard, identity
from gradledger.delivery.client import Client
from gradledger.delivery.sender import Sender
from gradledger.integrations import Found
from gradledger.ledger import OpenStep
from gradledger.recorder import Recorder
from gradledger.records import EndRecord, EvalRecord, RunRecord, encode

DEFAULT_URL = "http://127.0.0.1:4777"

Contract = Literal["token", "sequence", "sample"]


@dataclass
class Settings:
    """Where to send, and how the run calls itself."""

    url: str = DEFAULT_URL
    token: str | None = None
    name: str | None = None
    project: str = "default"
    contract: Contract | None = None
    scale: float | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """``GRADLEDGER_*`` variables; see the settings table in the documentation."""
        return cls(
            url=environ.get("GRADLEDGER_URL") or DEFAULT_URL,
            token=environ.get("GRADLEDGER_TOKEN") or None,
            name=environ.get("GRADLEDGER_NAME") or None,
            project=environ.get("GRADLEDGER_PROJECT") or "default",
        )


class Session:
    """Records this process until it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.recorder = Recorder(self._take)
        self._sender = Sender(Client(settings.url, settings.token), self._head)
        self._frameworks = Found()
        self._run: RunRecord | None = None
        self._pid = os.getpid()
        self._closed = False

    def open(self) -> None:
        """Put the hooks in place; everything is sent when the process ends."""
        self.recorder.install()
        self._frameworks.install()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.recorder.uninstall)

    def close(self) -> None:
        """Remove the hooks and deliver what is left."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with guard.fail_open("the end of the session"):
            self._frameworks.uninstall()
            self.recorder.uninstall()
            atexit.unregister(self.close)
            if self._run is not None:
                end = EndRecord(time.time(), self.recorder.windows.steps)
                left = self._sender.close(encode(end))
                if left:
                    sys.stderr.write(f"gradledger: {left} records could not be sent\n")

    def log_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Send evaluation metrics."""
        record = EvalRecord(step, time.time(), {k: float(v) for k, v in values.items()})
        self._identify()
        self._sender.put_line(encode(record))

    def _take(self, step: OpenStep) -> None:
        self._identify()
        self._sender.put(step.resolve)

    def _identify(self) -> None:
        """At the first record: by now the script has initialised torch.distributed, if ever."""
        if self._run is not None:
            return
        rank, world = identity.rank_and_world(os.environ)
        run = identity.run_id(os.environ, world)
        script = os.path.basename(sys.argv[0]) or "python"
        self._run = RunRecord(
            run,
            self.settings.name or script,
            rank,
            world,
            self.settings.project,
            started=time.time(),
            config=self.settings.config,
            environment=identity.environment(),
            contract=self.settings.contract,
            declared_scale=self.settings.scale,
        )

    def _head(self) -> bytes:
        assert self._run is not None
        self._run.optimizers = self.recorder.windows.names
        return encode(self._run)


_session: Session | None = None


def start(settings: Settings) -> Session:
    """The session of this process, opened on first call."""
    global _session
    known = current()
    if known is not None:
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
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def deliver(number: int, frame: Any) -> None:
        if _session is not None:
            _session.close()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, deliver)
