"""``gradledger doctor``: whether a training that starts here would be recorded, and where to.

Standard library only, and torch if it is installed, as in every training environment.
"""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from importlib import metadata
from typing import NamedTuple
from urllib.request import urlopen

import gradledger
from gradledger import autostart
from gradledger.delivery.http_client import Client
from gradledger.settings import Settings
from gradledger.stderr import coloured

OLDEST = "2.6"  # PyTorch, as in torch_version, which imports torch
MAX_CLOCK_SECONDS = 60.0
CHECK_SECONDS = 120.0  # for a Python that imports torch from a slow disk
STARTED = "import sys, torch, gradledger.session; sys.exit(gradledger.session.current() is None)"
COLOURS = {"ok": "32", "failed": "31", "unknown": "33"}
NO_RECORD = b'{"type":"doctor"}\n'
UNSEEN = (
    "some losses inside torch.compile, and the balance of most custom autograd functions that "
    "return one number (declare them with Ledger.micro_batch); processes started by "
    "sudo, ssh or docker (call gradledger.watch() there)"
)


class Check(NamedTuple):
    """The result of one check. ``passed`` is None if it could not be made."""

    name: str
    passed: bool | None
    text: str


def main() -> int:
    """Print all checks; 1 if one failed."""
    failed = False
    for check in checks(Settings.from_environment(os.environ)):
        status = {True: "ok", False: "failed", None: "unknown"}[check.passed]
        _write(status, check.name, check.text)
        failed = failed or check.passed is False
    _write("", "not seen", UNSEEN)
    return int(failed)


def _write(status: str, name: str, text: str) -> None:
    result = coloured(f"{status:<8}", COLOURS[status], sys.stdout) if status else " " * 8
    sys.stdout.write(f"{result} {name:<9} {text}\n")
    sys.stdout.flush()


def checks(settings: Settings) -> Iterator[Check]:
    """All checks, in the order in which one depends on another."""
    yield Check("versions", True, f"gradledger {gradledger.__version__}, {_python()}")
    yield _torch()
    yield _hooks()
    yield _service(settings)
    yield _clock(settings)
    yield _spool(settings)


def _python() -> str:
    return f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> Check:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Check("torch", False, "PyTorch is not installed for this Python")
    numbers = tuple(int(part) for part in version.split(".")[:2])
    supported = numbers >= tuple(map(int, OLDEST.split(".")))
    needs = "" if supported else f"; the hooks need {OLDEST} or newer"
    return Check("torch", supported, f"PyTorch {version}{needs}")


def _hooks() -> Check:
    """Start a Python as ``gradledger run`` does, and see whether the hooks are loaded in it."""
    command = [sys.executable, "-c", STARTED]
    try:
        done = subprocess.run(
            command,
            env=autostart.environment(os.environ, command),
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("hooks", False, f"a Python did not start: {error}")
    if done.returncode == 0:
        return Check("hooks", True, "they start when a program imports torch")
    reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Check("hooks", False, f"they do not start: {reason}")


def _service(settings: Settings) -> Check:
    """Send a line that stores nothing: only a service, given a valid token, refuses it by name."""
    try:
        result = Client(settings.url, settings.token, settings.proxy).post([NO_RECORD])
    except ValueError as error:
        return Check("service", False, str(error))
    if result.outcome == "accepted":
        token = "with the token" if settings.token else "without a token"
        return Check("service", True, f"{settings.url} accepts records {token}")
    refused = os.strerror(errno.ECONNREFUSED) in result.problem
    hint = "; `gradledger serve` starts one, `gradledger check` needs none" if refused else ""
    return Check("service", False, f"{settings.url}: {result.problem}{hint}")


def _clock(settings: Settings) -> Check:
    try:
        with urlopen(f"{settings.url.rstrip('/')}/healthz", timeout=10) as response:  # nosec B310
            remote = parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (OSError, ValueError, TypeError):
        return Check("clock", None, "the service did not answer")
    seconds = abs(time.time() - remote)
    text = f"{seconds:.0f} s from the clock of the service"
    return Check("clock", seconds <= MAX_CLOCK_SECONDS, text)


def _spool(settings: Settings) -> Check:
    location = settings.spool_location
    if location is None:
        return Check("spool", None, "off: records that cannot be sent are lost")
    folder = location.folder
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # it is created when the first record waits
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check("spool", False, f"{folder} is not writable")
    waiting = sum(file.stat().st_size for file in location.directory.glob("*") if file.is_file())
    text = f"{waiting:,} bytes wait to be sent" if waiting else "nothing waits to be sent"
    return Check("spool", True, f"{location.folder}, {text}")
