"""Tests the hooks on several versions of Python and PyTorch, and prints one table.

    python tests/matrix/run.py [--pythons "3.10 /path/to/python3.14"] [--torches "2.6.0 2.8.0"]
                               [--every-pair] [--jobs 2] [--discard] [--write docs/compatibility.md]

It needs ``uv`` in the environment of its interpreter. Each PyTorch is tested on the first Python
that has a wheel of it, and each Python with the newest PyTorch that has one; ``--every-pair`` tests
all pairs. An environment is built once and kept in ``.venvs/matrix``, or deleted after its tests
(``--discard``); logs are in ``build/matrix``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[2]
PYTHONS = "3.10 3.11 3.12 3.13 3.14"
TORCHES = "2.6.0 2.8.0 2.10.0 2.15.0"

TESTS = (
    "tests/integration/hooks",
    "tests/integration/losses",
    "tests/e2e/torch_compile",
    "tests/integration/launcher/test_autostart.py",
    "tests/integration/delivery/test_without_posix.py",
    "tests/unit/test_wire.py",
)
BEGIN, END = "<!-- written by make matrix -->\n", "<!-- end -->\n"
NO_WHEEL, NOT_TESTED = "no wheel", "not tested"


class Python(NamedTuple):
    """An interpreter."""

    version: str  # 3.12
    path: str


class Pair(NamedTuple):
    """A version of Python and one of PyTorch."""

    python: str
    torch: str


Table = dict[Pair, str]


class UnavailableError(Exception):
    """An environment cannot be built."""


def main() -> int:
    """Run the command; the exit status is 1 if a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pythons", default=PYTHONS, help="versions or paths")
    parser.add_argument("--torches", default=TORCHES, help="versions, the oldest first")
    parser.add_argument("--every-pair", action="store_true", help="test all pairs of versions")
    parser.add_argument("--jobs", type=int, default=1, help="test processes at a time")
    parser.add_argument("--discard", action="store_true", help="delete each environment after use")
    parser.add_argument("--write", type=Path, help="write the table into this page")
    options = parser.parse_args()
    pythons = list(find_pythons(options.pythons.split()))
    torches = options.torches.split()
    table = wheels(pythons, torches)
    wanted = list(table) if options.every_pair else chosen(table)
    for python in pythons:
        for torch in torches:
            pair = Pair(python.version, torch)
            if pair in wanted and table[pair] != NO_WHEEL:
                table[pair] = run(python, torch, options.jobs)
                if options.discard:
                    shutil.rmtree(environment(pair), ignore_errors=True)
                if options.write:  # after each: all pairs take long
                    write(options.write, table)
                report(f"Python {pair.python}, PyTorch {torch}: {table[pair]}")
    report("\n" + markdown(table))
    return int(any("failed" in result for result in table.values()))


def find_pythons(names: Sequence[str]) -> Iterator[Python]:
    """The interpreters that exist, by version or path."""
    for name in names:
        found = uv("python", "find", name)
        if found.returncode != 0:
            report(f"Python {name}: not found")
            continue
        path = found.stdout.strip()
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        version = subprocess.check_output([path, "-c", code], text=True).strip()
        yield Python(version, path)


def wheels(pythons: Sequence[Python], torches: Sequence[str]) -> Table:
    """All pairs: which have no wheel of PyTorch, and which are not tested yet."""
    table = {}
    for python in pythons:
        for torch in torches:
            arguments = ["--no-deps", "--only-binary", ":all:", "--python-version", python.version]
            command = ["pip", "compile", "--python", python.path, *arguments, "-"]
            compiled = uv(*command, stdin=f"torch=={torch}\n")
            missing = "has no wheels with a matching Python" in compiled.stderr
            table[Pair(python.version, torch)] = NO_WHEEL if missing else NOT_TESTED
    return table


def chosen(table: Table) -> set[Pair]:
    """Each PyTorch on the first Python that has a wheel of it, each Python with the newest."""
    available = [pair for pair, result in table.items() if result != NO_WHEEL]
    first = {pair.torch: pair for pair in reversed(available)}
    newest = {pair.python: pair for pair in available}
    return {*first.values(), *newest.values()}


def run(python: Python, torch: str, jobs: int) -> str:
    """Test one pair; the text of its cell."""
    folder = environment(Pair(python.version, torch))
    log = ROOT / "build" / "matrix" / f"{folder.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        build(folder, python, torch)
    except UnavailableError as error:
        report(str(error))
        return NOT_TESTED
    interpreter = folder / "bin" / "python"
    options = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *TESTS]
    museum = ["-m", "museum.run", "--core", "--jobs", str(jobs)]
    with log.open("w") as output:
        tests = execute([interpreter, *pytest], ROOT, output)
        exhibits = execute([interpreter, *museum], ROOT / "tests", output)
    return result(tests, exhibits, log)


def environment(pair: Pair) -> Path:
    """The folder of a pair's environment."""
    return ROOT / ".venvs" / "matrix" / f"python{pair.python}-torch{pair.torch}"


def execute(command: Sequence[object], folder: Path, output: IO[str]) -> int:
    """Run a command of the tests; its exit status."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    return subprocess.call(words, cwd=folder, env=environ, stdout=output, stderr=output)


def result(tests: int, exhibits: int, log: Path) -> str:
    """The text of a cell: what failed, if anything; then the failures go to the terminal, too."""
    text = log.read_text()
    if tests == exhibits == 0:
        return "passed"
    failures = re.findall(
        r"^(?:FAILED tests|ERROR tests|incident|twin|look-alike)\b.*", text, re.MULTILINE
    )
    report("\n".join([*failures, f"see {log}"]))
    return f"{max(len(failures), 1)} failed"


def build(folder: Path, python: Python, torch: str) -> None:
    """Create an environment, unless it is there and pyproject.toml is that of its creation."""
    stamp = folder / ".ready"
    pyproject = ROOT / "pyproject.toml"
    state = hashlib.sha256(f"{python} {torch} {pyproject.read_text()}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return
    report(f"preparing {folder.relative_to(ROOT)}")
    group = ["--group", f"{pyproject}:matrix", "--editable", f"{ROOT}[monitor]"]
    target = ["--python", str(folder / "bin" / "python")]
    for command in (
        ["venv", "--clear", "--python", python.path, str(folder)],
        ["pip", "install", *target, f"torch=={torch}", *group],
    ):
        done = uv(*command)
        if done.returncode != 0:
            raise UnavailableError(done.stderr.strip())
    stamp.write_text(state)


def uv(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run uv."""
    command = [sys.executable, "-m", "uv", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def write(page: Path, table: Table) -> None:
    """Write the results into the page's table; the other cells stay as they are."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    tested = {pair: result for pair, result in table.items() if result != NOT_TESTED}
    page.write_text(before + BEGIN + markdown({**table, **parse(old), **tested}) + END + after)


def parse(text: str) -> Table:
    """The cells of a table that ``markdown`` wrote."""
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    pythons = [cell.removeprefix("Python ") for cell in rows[0][1:]] if rows else []
    return {
        Pair(python, torch): cell
        for torch, *cells in rows[2:]
        for python, cell in zip(pythons, cells, strict=True)
    }


def markdown(table: Table) -> str:
    """A row for each PyTorch, a column for each Python."""
    pythons = sorted({pair.python for pair in table}, key=_number)
    torches = sorted({pair.torch for pair in table}, key=_number)
    lines = [
        f"| PyTorch | {' | '.join(f'Python {python}' for python in pythons)} |",
        "|---" * (len(pythons) + 1) + "|",
    ]
    for torch in torches:
        cells = [table.get(Pair(python, torch), NOT_TESTED) for python in pythons]
        lines.append(f"| {torch} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def report(text: str) -> None:
    """Write a line to the terminal at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


if __name__ == "__main__":
    sys.exit(main())
