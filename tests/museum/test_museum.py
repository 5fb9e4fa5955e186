"""Every script of the museum: played under the real hooks, judged by the real rules.

The server that plays them is shared; a sample also goes through the whole ``gradledger check``.
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
import torch

from helpers import forkserver
from helpers.command import gradledger
from museum.code_lines import wrong_location
from museum.evaluation import counts
from museum.labels import HERE, Piece, collection
from museum.run import result_of
from museum.stage import Stage
from museum.truth import CHECKS, Testimony

PIECES = collection()
INCIDENTS = [piece for piece in PIECES if piece.kind == "incident"]
PROVED_LOOKALIKES = [p for p in PIECES if p.kind == "look-alike" and p.label.evidence]

HEALTHY = 1e-3  # fp32 against double precision
REAL = 1e-2


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program in place of ``python`` whose process is a fork."""
    return str(forkserver.executable(tmp_path_factory.mktemp("bin")))


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_a_mistake_is_named_and_a_healthy_script_left_alone(stage: Stage, piece: Piece) -> None:
    result = result_of(stage, piece)
    assert not result.problem
    assert result.named or piece.kind != "incident", f"found {result.findings or 'nothing'}"
    assert not result.wrong_findings
    assert piece.kind != "incident" or not wrong_location(piece, result.code)


@pytest.mark.parametrize("piece", INCIDENTS, ids=lambda piece: piece.name)
def test_the_mistake_is_real_and_the_twin_is_without_it(stage: Stage, piece: Piece) -> None:
    fault = CHECKS[piece.label.evidence].fault
    assert fault(_testimonies(stage, piece.script, piece.ranks)) > REAL
    assert fault(_testimonies(stage, _twin(piece), piece.ranks)) <= HEALTHY


@pytest.mark.parametrize("piece", PROVED_LOOKALIKES, ids=lambda piece: piece.name)
def test_the_lookalike_is_healthy(stage: Stage, piece: Piece) -> None:
    fault = CHECKS[piece.label.evidence].fault
    assert fault(_testimonies(stage, piece.script, piece.ranks)) <= HEALTHY


@pytest.mark.parametrize("piece", PIECES[::30], ids=lambda piece: piece.name)
def test_the_whole_command_has_the_same_findings(
    stage: Stage, piece: Piece, python: str, tmp_path: Path
) -> None:
    findings = _checked(piece, python, tmp_path / "verdict.json")
    assert findings == result_of(stage, piece).findings


def test_what_follows_the_last_step_withdraws_a_finding_on_sampled_steps(stage: Stage) -> None:
    name = "lookalikes_parallel/changes_added_up"
    piece = next(piece for piece in PIECES if piece.name == name)
    result = result_of(stage, piece, "in_part")
    assert not result.problem
    assert not result.wrong_findings


def _twin(piece: Piece) -> Path:
    return piece.script.with_name(f"{piece.script.stem}_fixed.py")


def _testimonies(stage: Stage, script: Path, ranks: int) -> list[Testimony]:
    played = stage.play(script, ranks, watch="witness")
    assert not played.failed, played.printed
    return [torch.load(io.BytesIO(each), weights_only=False) for each in played.recorded]


def _checked(piece: Piece, python: str, output: Path) -> dict[str, int]:
    """Findings of the command that a user would type."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone"]
    torchrun += [f"--nproc_per_node={piece.ranks}"]
    train = [*([python] if piece.ranks == 1 else torchrun), str(piece.script)]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    environment["PYTHON_EXEC"] = python
    gradledger("check", "--json", output, "--", *train, environment=environment)
    rows = json.loads(output.read_text())["findings"]
    causes = [f for f in rows if not f["inhibited_by"]]
    findings: dict[str, int] = {}
    for finding in (f for f in causes if counts(piece, f["rule"], f["severity"])):
        first = findings.get(finding["rule"], finding["first_step"])
        findings[finding["rule"]] = min(first, finding["first_step"])
    return findings
