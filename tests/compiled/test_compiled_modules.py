"""``make compiled`` tests compiled modules; only that target runs this file."""

from __future__ import annotations

import sysconfig
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from helpers import http
from helpers.service import running_service

ROOT = Path(__file__).resolve().parent.parent.parent


def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules that the build hook compiles."""
    monkeypatch.chdir(ROOT)
    spec = spec_from_file_location("compiling", "deploy/compile.py")
    assert spec is not None and spec.loader is not None
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    return [".".join(Path(source).with_suffix("").parts[1:]) for source in hook.sources()]


def test_all_compiled_modules_run_from_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    names = listed(monkeypatch)
    assert {"gradledger_monitor.model.step_facts", "gradledger_monitor.rules.norm.spike"} <= set(
        names
    )
    files = [str(import_module(name).__file__) for name in names]
    assert [f for f in files if not f.endswith(sysconfig.get_config_var("EXT_SUFFIX"))] == []


def test_the_metrics_of_a_service_report_compiled_rules(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db") as service:
        assert 'rules="compiled"' in http.get(f"{service.url}/metrics").text
