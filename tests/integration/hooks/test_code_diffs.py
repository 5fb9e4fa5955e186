"""`patch` and `git apply` accept the diffs of scripts, whatever the ends of their lines are."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import asdict

from gradledger_monitor.evaluation.finding_code import with_code
from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.findings import (
    FOR_THIS_LINE,
    EvaluationResult,
    Finding,
    fix_title,
)
from gradledger_monitor.reports import terminal
from gradledger_monitor.rules.loop import double_step, grads_not_zeroed
from gradledger_monitor.rules.reduction.fixes import MICRO_BATCH_MEAN
from helpers.training import recording

SCRIPT = """\
import torch
x = torch.ones(2, 2)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for index in range(4):
    loss = model(x).square().mean()
    loss.backward()
    if index % 2:
        optimizer.step()

        optimizer.step()
print("end")
"""
BLANKS = SCRIPT.replace("()\n", "()  \n").replace("\n\n", "\n    \n")
FIXES = {
    MICRO_BATCH_MEAN["plain"]: "reduction.missing_division",
    double_step.FIX: "loop.double_step",
}
LAST = SCRIPT.partition("\n\n")[0]
EXACT = {
    "lf": SCRIPT.encode(),
    "blanks": BLANKS.encode(),
    "tabs": SCRIPT.replace("    ", "\t").encode(),
    "mark": b"\xef\xbb\xbf" + SCRIPT.encode(),
    "latin": b"# coding: latin-1\n# \xe9\n" + SCRIPT.encode(),
    "feed": b"# \x0c a page\n" + SCRIPT.encode(),
    "no end": SCRIPT.encode().removesuffix(b"\n"),
}
INEXACT = {
    "crlf": SCRIPT.replace("\n", "\r\n").encode(),
    "mixed": SCRIPT.replace("\n", "\r\n", 2).encode(),
    "latin": b"# coding: latin-1\n" + SCRIPT.replace("()\n", "()  # \xe9\n").encode("latin-1"),
    "long": SCRIPT.replace("()\n", f"()  # {'x' * 240}\n").encode(),
}


def fixes_of(content: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """The findings with the fixes of a script that ran."""
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    path.write_bytes(content)
    with recording() as kept:
        exec(compile(content, str(path), "exec"), {"__name__": "__main__"})
    sent = [asdict(each) for record in kept.records(0) for each in record.code]
    calls = [CodeLocation(**each | {"source": tuple(each["source"])}) for each in sent]
    one_step = {grads_not_zeroed.FIX: "loop.grads_not_zeroed"}
    rules = FIXES if content.count(b"optimizer.step()") > 1 else one_step
    numbers = {"micro_batches": 2, "intended_micro_batches": 2}
    findings = [
        Finding(rule, 0, "error", 1, 4, 4, "t", "s", fix, numbers) for fix, rule in rules.items()
    ]
    return with_code(findings, {0: calls})


@pytest.mark.parametrize("kind", EXACT)
def test_diffs_apply(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for finding in fixes_of(EXACT[kind], tmp_path, monkeypatch):
        stream = io.StringIO()
        result = EvaluationResult("broken", [finding], [], {})
        terminal.console(stream).print(terminal.report("mine", 4, 1, result), crop=False)
        lines = stream.getvalue().split("\n")
        start = lines.index("  --- a/train.py")
        size = finding.fix.count("\n") + 1
        diff = "".join(f"{line[2:]}\n" for line in lines[start : start + size])
        assert diff == f"{finding.fix}\n"
        changed = []
        for tool in ("patch -p1", "git apply --unidiff-zero"):
            (tmp_path / "train.py").write_bytes(EXACT[kind])
            subprocess.run(tool.split(), input=diff.encode(), check=True, capture_output=True)
            changed.append((tmp_path / "train.py").read_bytes())
        assert changed[0] == changed[1] != EXACT[kind]


@pytest.mark.parametrize("kind", [*INEXACT, "last"])
def test_a_change_that_may_not_apply_has_no_header_of_a_diff(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = LAST.encode() if kind == "last" else INEXACT[kind]
    for finding in fixes_of(content, tmp_path, monkeypatch):
        assert fix_title(finding.fix) == FOR_THIS_LINE or kind in ("latin", "long")
        assert "--- a/" not in finding.fix
        assert "\r" not in f"{finding.fix}{finding.code}"
