"""The fork server of the tests, ``helpers/forkserver.py``."""

from __future__ import annotations

from pathlib import Path

from helpers import forkserver
from helpers.batches import eventually
from helpers.patience import HANGS

PROGRAM = """
import os, time
supervisor = os.getppid()
with open(f"/proc/{supervisor}/stat") as file:
    print(file.read().rpartition(")")[2].split()[1])
while time.process_time() < 0.1:
    pass
"""


def ticks_of_children(process: int) -> int:
    """The processor time of the ended children of a process, and theirs, in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]) + int(fields[14])


def test_a_server_is_charged_for_the_time_of_its_programs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    server = int(forkserver.run([script], server="service", timeout=HANGS).stdout)
    before = ticks_of_children(server)
    forkserver.run([script], server="service", timeout=HANGS)
    assert eventually(HANGS, lambda: ticks_of_children(server) > before)
