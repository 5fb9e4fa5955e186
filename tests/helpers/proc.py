"""What Linux says of a process."""

from __future__ import annotations

import os
from pathlib import Path


def memory(pid: int, field: str = "VmRSS") -> int:
    """Bytes of memory that a process has now (``VmRSS``) or had at the most (``VmHWM``)."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def reset_peak_memory(pid: int) -> None:
    """Let ``VmHWM`` begin again at what the process has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
