"""`gradledger check` as a gate: report files, annotations, a baseline."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

from gradledger_monitor.gate.send_runs import runs_here
from helpers.launching import CLASSIC, TRAIN, UNEQUAL, Launch, train
from helpers.patience import HANGS
from helpers.service import running_service


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


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, without the configuration of a person."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_line_the_commit_and_what_differs_from_it_are_in_the_output(
    launch: Launch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    shutil.copy(TRAIN, script)
    for command in (["init"], ["add", "."], ["commit", "-m", "x"]):
        git(tmp_path, *command)
    commit = git(tmp_path, "rev-parse", "HEAD")

    def checked() -> tuple[str, dict[str, Any]]:
        done = launch("check", "--json", "v.json", "--", "python", str(script), CLASSIC, "4")
        return done.stderr, json.loads((tmp_path / "v.json").read_text())

    text, verdict = checked()
    (finding,) = verdict["findings"]
    code = finding["code"][0]
    assert (code["file"], script.read_text().splitlines()[code["line"] - 1].strip()) == (
        "train.py",
        code["source"][code["line"] - code["first"]].strip(),
    )
    assert f"--> train.py:{code['line']}" in text
    assert f"commit {commit[:10]}\n" in text
    assert (verdict["commit"], verdict["dirty"]) == (commit, "no")
    script.write_text(script.read_text() + "\n")
    text, verdict = checked()
    assert f"commit {commit[:10]} with uncommitted changes: train.py" in text
    assert (verdict["commit"], verdict["dirty"]) == (commit, "train.py")


def test_a_run_is_sent_to_the_service_that_has_its_page(launch: Launch, tmp_path: Path) -> None:
    command = ("check", "--send", "--name", "sent", "--", *train(CLASSIC, 4))
    with running_service(tmp_path / "runs.db") as service:
        done = launch(*command, GRADLEDGER_URL=service.url)
        assert done.returncode == 1, done.stderr
        (page,) = re.findall(r"^gradledger: sent to (\S+)$", done.stderr, re.M)
        deadline = time.monotonic() + HANGS
        (run,) = service.get("/runs").json()["runs"]
        while run["steps"] < 4 and time.monotonic() < deadline:  # it evaluates what it has stored
            (run,) = service.get("/runs").json()["runs"]
        assert page == f"{service.url}/runs/{run['id']}"
        assert (run["name"], run["steps"], runs_here(service.url)) == ("sent", 4, True)
    refused = launch(*command, GRADLEDGER_URL=service.url)
    assert f"not sent to {service.url}: Connection refused" in refused.stderr
    assert (refused.returncode, runs_here(service.url)) == (1, False)


def test_an_invalid_baseline_is_bad_usage(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}")
    done = launch("check", "--baseline", "b.json", "--", "true")
    assert done.returncode == 2
    assert "not a verdict" in " ".join(done.stderr.replace("│", " ").split())
    both = launch("check", "--baseline", "b.json", "--stop", "--", "true")
    assert both.returncode == 2
