"""What a process did that recorded no step: counts, and a sentence with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from gradledger.autostart import STAGES

_FILE = "activity"
FORKED = "forked"  # the stage of a child that a process with a session forked


class Activity(NamedTuple):
    """Computations of gradients, by what made them."""

    backwards: int = 0  # outermost ones
    grads: int = 0  # calls of ``torch.autograd.grad``
    functional: int = 0  # calls that ``torch.func`` made

    def reason(self) -> str:
        """Why no step was recorded: what ran, how often, and what to do."""
        if self.backwards:
            return f"backward ran {_times(self.backwards)}; no update of a parameter was seen"
        if self.functional:
            return (
                f"torch.func computed gradients {_times(self.functional)}, which is not followed; "
                "call backward on the loss, or torch.autograd.grad on the parameters"
            )
        if self.grads:
            ran = f"torch.autograd.grad ran {_times(self.grads)}"
            return f"{ran}; no update of a parameter was seen"
        return "torch was imported; no backward ran"


def begin() -> None:
    """Announce this process to `gradledger check`: it reports its counts when it ends."""
    if file := _file():
        file.touch()


def write(activity: Activity) -> bool:
    """Leave the counts for `gradledger check`; False if this process does not run under it."""
    file = _file()
    if file:
        file.write_text(" ".join(map(str, activity)))
    return file is not None


def reason(folder: Path) -> str | None:
    """Why the processes of a check recorded no step; None if none of them imported torch."""
    if not (folder / "torch").exists():
        return None
    reports = [file.read_text().split() for file in folder.glob(f"{_FILE}-*")]
    if not reports:
        return "torch was imported; the hooks did not start"
    counts = [map(int, report) for report in reports if report]
    activity = Activity(*map(sum, zip(*counts, strict=True)))
    silent = reports.count([])
    if silent and not any(activity):
        return (
            f"torch was imported; {_processes(silent)} ended without exit handlers, as by "
            "os._exit or a signal, so whether backward ran is not known"
        )
    if (folder / FORKED).exists() and not any(activity):
        return (
            "torch was imported; no backward ran, except perhaps in forked children, which are "
            'not recorded. Start them with multiprocessing.set_start_method("spawn")'
        )
    return activity.reason()


def _file() -> Path | None:
    folder = os.environ.get(STAGES)
    return Path(folder, f"{_FILE}-{os.getpid()}") if folder else None


def _processes(count: int) -> str:
    return "a process" if count == 1 else f"{count:,} processes"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
