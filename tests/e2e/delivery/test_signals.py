"""SIGTERM to ``torchrun`` with ranks that wait: the same with and without the hooks."""

from __future__ import annotations

import signal
from pathlib import Path

from helpers.batches import eventually
from helpers.patience import HANGS
from integration.delivery.conftest import Scripts
from integration.delivery.test_signals import COLLECTIVE

from .conftest import TORCHRUN, WITH_HOOKS, Commands


def terminated_agent(commands: Commands, folder: Path, hooks: bool, url: str) -> tuple[int, bool]:
    """The exit status of torchrun after SIGTERM, and whether it had to kill a rank."""
    folder.mkdir()
    commands.scripts = Scripts(folder)
    command = [*(WITH_HOOKS if hooks else []), *TORCHRUN, "--standalone"]
    code = COLLECTIVE.replace("dist.recv", "open(f'rank{rank}', 'w').close()\ndist.recv")
    process = commands.start(code, url, *command)
    assert eventually(HANGS, lambda: all((folder / f"rank{rank}").exists() for rank in (0, 1)))
    if hooks:
        assert eventually(HANGS, lambda: commands.scripts.on_disk() == 6)
    process.send_signal(signal.SIGTERM)
    _, output = process.communicate(timeout=HANGS)
    return process.returncode, "SIGKILL" in output


def test_ranks_that_wait_in_a_collective_end_as_without_the_hooks(
    commands: Commands, tmp_path: Path, nowhere: str
) -> None:
    alone = terminated_agent(commands, tmp_path / "alone", False, nowhere)
    hooked = terminated_agent(commands, tmp_path / "hooked", True, nowhere)
    assert hooked == alone
    assert commands.scripts.on_disk() == 6
