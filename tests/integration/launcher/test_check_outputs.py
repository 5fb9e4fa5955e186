"""`gradledger check` as a gate: report files, annotations, a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as xml

from helpers.launching import CLASSIC, UNEQUAL, Launch, train


def test_every_output_contains_the_bug_and_a_baseline_allows_it(
    launch: Launch, tmp_path: Path
) -> None:
    files = ["--json", "v.json", "--junit", "v.xml", "--sarif", "v.sarif"]
    done = launch("check", *files, "--", *train(CLASSIC, 4), GITHUB_ACTIONS="true")
    assert done.returncode == 1, done.stderr
    (suite,) = xml.parse(tmp_path / "v.xml").getroot()
    assert [c.get("name") for c in suite if c.find("failure") is not None] == [UNEQUAL]
    (run,) = json.loads((tmp_path / "v.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in run["results"]] == [UNEQUAL]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"].endswith("train.py")
    (line,) = (text for text in done.stdout.splitlines() if text.startswith("::"))
    assert line.startswith("::error file=") and UNEQUAL in line
    again = launch("check", "--baseline", "v.json", "--", *train(CLASSIC, 4))
    assert again.returncode == 0, again.stderr
    assert UNEQUAL in again.stderr
    assert "::error" not in again.stdout


def test_an_invalid_baseline_is_bad_usage(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}")
    done = launch("check", "--baseline", "b.json", "--", "true")
    assert done.returncode == 2
    assert "not a verdict" in " ".join(done.stderr.replace("│", " ").split())
    both = launch("check", "--baseline", "b.json", "--stop", "--", "true")
    assert both.returncode == 2
