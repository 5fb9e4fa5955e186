"""A mistake on the command line is one clear line on standard error, and exit status 2."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from helpers.command import gradledger


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["serve", "--prot", "1"], ["gradledger serve: ", "--prot", "--port"]),
        (["check", "--fail-on", "never", "--", "true"], ["--fail-on", "'never' is not one of"]),
        (["check"], ["gradledger check: ", "Missing argument"]),
        (["imprt"], ["imprt"]),
        (["import", "/no/such/file"], ["/no/such/file"]),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], parts: list[str]) -> None:
    done = gradledger(*arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert [part for part in parts if part not in done.stderr] == []


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = gradledger("serve", "--db", f"sqlite:///{tmp_path}/a.db", "--port", port)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} is in use" in done.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GRADLEDGER_PORT", "abc"), ("GRADLEDGER_ALERT_NETWORKS", "home")],
)
def test_an_invalid_setting_is_one_line_with_its_variable(variable: str, value: str) -> None:
    done = gradledger("config", environment={variable: value})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert variable in done.stderr


def test_an_invalid_configuration_file_is_one_line_with_its_path(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("retention = {")
    done = gradledger("config", environment={"GRADLEDGER_CONFIG": str(file)})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert str(file) in done.stderr


def test_invalid_thresholds_of_a_check_are_one_line() -> None:
    done = gradledger("check", "--", "true", environment={"GRADLEDGER_THRESHOLDS": '{"a":'})
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "thresholds" in done.stderr


@pytest.mark.parametrize("text", ["[]", '["10.0.0.0/8", "::1"]', "10.0.0.0/8,::1"])
def test_networks_are_accepted_in_the_form_in_which_they_are_shown(text: str) -> None:
    variable = "GRADLEDGER_ALERT_NETWORKS"
    done = gradledger("config", environment={variable: text})
    shown = next(line for line in done.stdout.splitlines() if line.startswith(variable))
    value = shown.removeprefix(f"{variable}=").partition("  (")[0]
    again = gradledger("config", environment={variable: value})
    assert done.returncode == again.returncode == 0
    assert shown in again.stdout
