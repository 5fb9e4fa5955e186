"""What a process did that recorded no step: counts, and a sentence with them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gradledger.autostart import STAGES

_FILE = "activity"


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


def write(activity: Activity) -> bool:
    """Leave the counts for `gradledger check`; False if this process does not run under it."""
    folder = os.environ.get(STAGES)
    if not folder:
        return False
    Path(folder, f"{_FILE}-{os.getpid()}").write_text(" ".join(map(str, activity)))
    return True


def read(folder: Path) -> Activity | None:
    """The sum of what the processes of a check left; None if none did."""
    counts = [_counts(file.read_text()) for file in folder.glob(f"{_FILE}-*")]
    return Activity(*map(sum, zip(*counts, strict=True))) if counts else None


def _counts(text: str) -> Iterable[int]:
    return map(int, text.split())


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
