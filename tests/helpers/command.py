"""``gradledger`` commands, each in a process of its own that has imported everything already."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers import forkserver
from helpers.patience import HANGS

CLI = ("-m", "gradledger.cli")


def start(
    arguments: Sequence[object], environment: Mapping[str, str] | None = None
) -> forkserver.Python:
    """A command that goes on beside the test; all it prints is in ``stdout``."""
    return forkserver.Python([*CLI, *arguments], environment, server="service", merged=True)


def gradledger(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises ``subprocess.TimeoutExpired``."""
    return forkserver.run([*CLI, *arguments], environment, folder, HANGS, server="service")
