"""`make audit` never passes in silence: what was not audited is said.

The advisories are not at hand where tests run, so pip-audit's reports are given.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document(**vulnerabilities: list[str]) -> str:
    """What pip-audit writes of packages."""
    packages = [
        {"name": name, "version": "1", "vulns": [{"id": one} for one in found]}
        for name, found in vulnerabilities.items()
    ]
    return json.dumps({"dependencies": packages, "fixes": []})


class Auditor:
    """Reports one thing of the probe, and another of what is installed."""

    def __init__(self, audit: ModuleType, probe: str, status: int = 0, found: str = "{}") -> None:
        self._report: Any = audit.Report
        self._probe, self._status, self._found = probe, status, found
        self.packages: Sequence[str] = ()

    def __call__(self, packages: Sequence[str]) -> Any:
        if list(packages) == ["jinja2==2.10"]:
            return self._report(1, self._probe, "could not be audited")
        self.packages = packages
        return self._report(self._status, self._found, "")


KNOWN = document(jinja2=["PYSEC-2019-217"])


@pytest.mark.parametrize(("status", "found"), [(0, document(a=[])), (1, document(a=["CVE-1"]))])
def test_where_advisories_are_there_the_audit_decides(
    audit: ModuleType, status: int, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    auditor = Auditor(audit, KNOWN, status, found)
    assert audit.main(auditor) == status
    names = [one.partition("==")[0] for one in auditor.packages]
    assert {"starlette", "sqlalchemy"} <= set(names) and "gradledger" not in names
    assert not [one for one in auditor.packages if "+" in one]
    assert ("a: CVE-1" in capsys.readouterr().out) == bool(status)


@pytest.mark.parametrize("probe", ["", "<html>", "{}", "[]", document(jinja2=[])])
def test_where_they_are_not_the_skip_is_said_and_can_be_a_failure(
    audit: ModuleType,
    probe: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auditor = Auditor(audit, probe)
    assert audit.main(auditor) == 0
    printed = capsys.readouterr().out
    assert "SKIPPED" in printed and "could not be audited" in printed
    monkeypatch.setenv("GRADLEDGER_AUDIT", "required")
    assert audit.main(auditor) == 1
    assert "FAILED" in capsys.readouterr().out
    assert auditor.packages == ()


def test_the_real_pip_audit_finds_the_probe_or_says_why_not(audit: ModuleType) -> None:
    pytest.importorskip("pip_audit", reason="make audit installs it")
    report = audit.pip_audit([audit.VULNERABLE])
    assert audit.vulnerable(report) or report.errors
