"""The tutorial, followed to the letter: its files written, its commands run, output compared.

The command ``python`` is a fork of a process that has imported torch; ``gradledger`` starts anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from helpers import forkserver, http
from helpers.batches import eventually
from helpers.ports import reserved_port
from helpers.transcript import looks_like

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r'^```(\w+)(?: title="(.+?)")?\n(.*?)^```', PAGE.read_text(), re.M | re.S)
SECONDS = 900  # for one command, on a machine that has much else to do
LIVE = "gradledger run"  # its own lines are not compared: their place depends on the machine
OWN = re.compile(r"^(?:gradledger: |  http).*\n", re.M)


class Reader:
    """Somebody who types what the page shows, in a folder and a home of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.status = folder, 0
        self.background = ExitStack()
        self.port = self.background.enter_context(reserved_port())
        programs = [forkserver.executable(folder).parent, Path(sys.executable).parent]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        self.environ = {
            **clean,
            "HOME": str(folder),
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
            "GRADLEDGER_PORT": str(self.port),
            "GRADLEDGER_URL": f"http://127.0.0.1:{self.port}",
        }

    def write(self, name: str, text: str) -> None:
        """Save a file."""
        (self.folder / name).write_text(text)

    def patch(self, name: str, diff: str) -> None:
        """Change a file as a block with + and - says."""
        old = "".join(line[1:] for line in diff.splitlines(True) if line[0] in " -")
        new = "".join(line[1:] for line in diff.splitlines(True) if line[0] in " +")
        text = (self.folder / name).read_text()
        assert text.count(old) == 1, f"{name} holds this not once:\n{old}"
        self.write(name, text.replace(old, new))

    def type(self, command: str) -> str:
        """What the terminal shows then."""
        if command == "echo $?":
            return f"{self.status}\n"
        if command == "gradledger serve":
            return self._serve()
        done = subprocess.run(
            command.split(), cwd=self.folder, env=self.environ, text=True, timeout=SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if command.startswith(LIVE) else subprocess.STDOUT,
        )  # fmt: skip
        self.status = done.returncode
        return done.stdout

    def _serve(self) -> str:
        serving = subprocess.Popen(
            ["gradledger", "serve"], cwd=self.folder, env=self.environ, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.background.callback(serving.communicate)
        self.background.callback(serving.terminate)
        assert serving.stdout
        return serving.stdout.readline().replace(str(self.port), "4777")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """One who starts at the top of the page."""
    reading = Reader(tmp_path)
    with reading.background:
        yield reading


def test_following_the_tutorial_gives_what_it_shows(reader: Reader) -> None:
    for language, title, text in BLOCKS:
        if language == "python":
            reader.write(title, text)
        elif language == "diff":
            reader.patch(title, text)
        elif language == "console":
            for command, shown in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.M):
                said = reader.type(command)
                compared = OWN.sub("", shown) if command.startswith(LIVE) else shown
                assert looks_like(compared, said), f"$ {command}\n{said}"
    assert verdict_of(reader, "counting") == "balanced"


def verdict_of(reader: Reader, name: str) -> str:
    """What the tutorial's service says of a run, once it has judged all of it."""
    runs = f"http://127.0.0.1:{reader.port}/api/v1/runs"
    verdicts: list[str] = []

    def is_judged() -> bool:
        found = [run for run in http.get(runs).json()["runs"] if run["name"] == name]
        verdicts.extend(run["verdict"] for run in found if run["ended"])
        return verdicts[-1:] == ["balanced"]

    eventually(60, is_judged)
    return verdicts[-1]
