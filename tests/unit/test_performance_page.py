"""The page of figures is what the benchmarks wrote: nothing is lost, and a missed goal is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / "bench"


def measured(name: str, value: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": "us", **more}


def written(
    folder: Path, *options: str, **reports: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    """What bench/page.py makes of files with these measures."""
    for name, measures in reports.items():
        report = {"title": name, "command": f"python bench/{name}.py", "measures": measures}
        (folder / f"{name}.json").write_text(json.dumps(report | {"notes": [f"About {name}."]}))
    command: list[str | Path] = [
        sys.executable,
        BENCH / "page.py",
        folder,
        folder / "page.md",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_missed_goal_stands_at_the_top_and_in_its_table(tmp_path: Path) -> None:
    slow = measured("a step", 151.2, low=140.0, high=163.0, goal="under 150 us", holds=False)
    fast = measured("a put", 4.0, floor="3 us", goal="under 5 us", holds=True)
    assert written(tmp_path, hooks=[slow, fast]).returncode == 0
    page = (tmp_path / "page.md").read_text()
    assert "1 of 2 goals are met." in page
    assert "- a step: 151 us, goal under 150 us" in page
    assert "| a step | 151 us | 140 to 163 |  | under 150 us | missed |" in page
    assert "| a put | 4.00 us |  | 3 us | under 5 us | met |" in page


def test_every_benchmark_has_its_chapter_with_its_command_and_its_notes(tmp_path: Path) -> None:
    written(tmp_path, one=[measured("a", 1.0)], two=[measured("b", 2.0)])
    page = (tmp_path / "page.md").read_text()
    for name in ("one", "two"):
        assert f"## {name}\n\n`python bench/{name}.py`" in page
        assert f"About {name}." in page


def test_where_nothing_stands_yet_there_is_nothing_to_keep(tmp_path: Path) -> None:
    assert written(tmp_path, "--keep", one=[measured("a", 9.0)]).returncode == 0
    assert "| a | 9.00 us |" in (tmp_path / "page.md").read_text()


def test_one_chapter_is_measured_anew_and_the_others_stay(tmp_path: Path) -> None:
    slow = measured("a", 9.0, goal="under 5 us", holds=False)
    written(tmp_path, one=[slow], two=[slow])
    before = (tmp_path / "page.md").read_text().replace("2.13", "an older")
    (tmp_path / "page.md").write_text(before)
    (tmp_path / "two.json").unlink()
    fast = measured("a", 4.0, goal="under 5 us", holds=True)
    assert written(tmp_path, "--keep", one=[fast]).returncode == 0
    page = (tmp_path / "page.md").read_text()
    assert page.split("## ")[2] == before.split("## ")[2]
    assert "| a | 4.00 us |" in page.split("## ")[1]
    assert "Measured separately: " in page.split("## ")[1]
    assert page.split("| date |")[0] == before.split("| date |")[0]  # what the others hold for
    assert "1 of 2 goals are met." in page and page.count("- a: 9.00 us, goal under 5 us") == 1


def test_without_figures_no_page_is_written(tmp_path: Path) -> None:
    done = written(tmp_path)
    assert done.returncode == 1
    assert "has no results: run `make bench`" in done.stderr
    assert not (tmp_path / "page.md").exists()
