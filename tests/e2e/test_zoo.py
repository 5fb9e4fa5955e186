"""The zoo detects each kind of difference, on programs that behave differently by design."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from zoo.catalogue import COLD, FLAGS, PROGRAMS, RANKS, SHELL, STATUS, SURROUNDINGS, programs
from zoo.comparing import foreign
from zoo.processes import HOOKS
from zoo.run import Runner, Trial
from zoo.surroundings import Surroundings

HARMFUL = {p.path.stem: p for p in programs(folder=PROGRAMS.parent / "harmful")}
NOBODY = Surroundings({"dead": "http://127.0.0.1:9"})


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(sys.executable, tmp_path_factory.mktemp("zoo"), NOBODY)
    yield runner
    runner.close()


def trial(runner: Runner, name: str) -> Trial:
    (trial,) = runner.trials(HARMFUL[name])
    return trial


@pytest.mark.parametrize(
    ("name", "difference"),
    [
        ("changes_output", "stdout, line 1: 'hooked', without the hooks 'alone'"),
        ("changes_errors", "stderr: 1 lines more, the last is 'and this one may not'"),
        ("dies", "exit status -11, without the hooks 0"),
        ("changes_status", "exit status 3, without the hooks 0"),
        ("ends_late", "s later"),
        ("ends_late_in_threads", "s later"),
        ("takes_memory", "MiB without the hooks"),
        (
            "fails_by_itself",
            "the program itself ends with status 1 instead of 0, and prints nothing",
        ),
    ],
)
def test_each_kind_of_harm_is_detected(runner: Runner, name: str, difference: str) -> None:
    differences = trial(runner, name).differences
    assert any(difference in one for one in differences), differences


def test_a_program_that_does_the_same_passes(runner: Runner) -> None:
    same = trial(runner, "is_the_same")
    assert same.differences == []
    assert "this line may be there" in same.hooked[0].stderr


def test_frames_of_the_hooks_in_a_traceback_are_no_difference() -> None:
    alone = 'Traceback:\n  File "a.py", line 1\n    f()\n    ^^^\n  File "b.py", line 2\nError: x\n'
    file = f"{HOOKS}/gradledger/capture/recorder.py"
    ours = f'  File "{file}", line 9, in g\n    return f()\n           ^^^\n'
    hooked = alone.replace('  File "b.py"', f'{ours}  File "b.py"')
    assert foreign(hooked) == foreign(alone) == alone


def test_every_entry_of_the_catalogue_is_about_a_program() -> None:
    names = [program.name for program in programs()]
    assert len(names) >= 60
    for table in (FLAGS, RANKS, SHELL, STATUS, SURROUNDINGS):
        assert set(table) <= set(names)
    assert all(any(name.startswith(start) for name in names) for start in COLD)


def test_no_program_knows_of_gradledger() -> None:
    """Some programs filter lines of gradledger from captured output; none imports it."""
    for path in sorted(PROGRAMS.rglob("*.py")):
        code = path.read_text()
        assert "import gradledger" not in code and "from gradledger" not in code, path
