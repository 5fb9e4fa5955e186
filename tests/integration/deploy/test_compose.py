"""``docker-compose.yml`` without an engine: it keeps to its specification, what it says is real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url
from typer.testing import CliRunner

from gradledger_monitor.cli import app
from gradledger_monitor.settings import names
from gradledger_monitor.sources import SECRET, variable
from helpers.compose import FILE, ROOT, SECRETS, compose, environment, service

SERVICES = sorted(compose()["services"])
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


def test_it_keeps_to_the_compose_specification() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(FILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_check_against_the_specification_can_fail(tmp_path: Path) -> None:
    wrong = compose()
    wrong["services"]["monitor"]["replica"] = 3
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(wrong))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(tmp_path / "wrong.yml")], capture_output=True, timeout=60)
    assert done.returncode == 1


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_hardened_and_watched(name: str) -> None:
    said = service(name)
    assert said["read_only"] and said["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in said["security_opt"]
    assert str(said["user"]).split(":")[0] not in ("0", "root")
    assert said["healthcheck"]["test"] and said["restart"] == "unless-stopped"


def test_only_the_proxy_can_be_reached_and_only_from_this_machine() -> None:
    assert [name for name in SERVICES if "ports" in service(name)] == ["proxy"]
    (port,) = service("proxy")["ports"]
    assert port.startswith("127.0.0.1:")
    assert compose()["networks"]["inside"]["internal"]
    assert [name for name in SERVICES if "outside" in service(name)["networks"]] == ["proxy"]


def test_no_secret_stands_in_the_file_and_each_is_made(secrets: Path) -> None:
    said = compose()
    made = {file.name for file in secrets.iterdir()}
    assert set(said["secrets"]) == made
    for name, one in said["secrets"].items():
        assert one["file"] == f"deploy/secrets/{name}"
    for name in SERVICES:
        wanted = service(name).get("environment", {}).values()
        used = {value.removeprefix(SECRETS) for value in wanted if str(value).startswith(SECRETS)}
        assert used == set(service(name).get("secrets", []))
    text = FILE.read_text()
    assert not [file for file in secrets.iterdir() if file.read_text() in text]


def test_secrets_are_kept_from_others_and_unlike_each_other(secrets: Path) -> None:
    assert secrets.stat().st_mode & 0o077 == 0
    texts = [file.read_text() for file in secrets.iterdir()]
    assert len(set(texts)) == len(texts) and all(len(text) >= 32 for text in texts)
    url = make_url((secrets / "database_url").read_text())
    assert url.password == (secrets / "database_password").read_text()
    database = service("database")["environment"]
    assert (url.username, url.database) == (database["POSTGRES_USER"], database["POSTGRES_DB"])
    assert url.host in SERVICES


def test_every_variable_is_a_setting_and_is_read(secrets: Path, tmp_path: Path) -> None:
    told = environment("monitor", secrets)
    known = {variable(name) for name in names()} | {f"{variable(name)}_FILE" for name in SECRET}
    assert set(told) <= known
    done = subprocess.run(
        [sys.executable, "-m", "gradledger_monitor.cli", "config"],
        env={**os.environ, "HOME": str(tmp_path), **told},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in told:
        assert [line for line in lines if line.endswith(f"  ({name})")], name
    assert "# callers must show a token" in lines


def test_the_command_of_the_monitor_is_one(secrets: Path) -> None:
    command = service("monitor")["command"]
    done = CliRunner().invoke(app, [*command, "--help"])
    assert done.exit_code == 0 and command == _dockerfile()["CMD"]
    assert _dockerfile()["ENTRYPOINT"] == ["gradledger"]


def test_the_image_has_what_is_installed_and_nobody_s_user() -> None:
    said = _dockerfile()
    assert said["USER"] == service("monitor")["user"]
    extras = (ROOT / "pyproject.toml").read_text()
    assert "\nmonitor = [" in extras and "\npostgres = [" in extras
    assert "[monitor,postgres]" in DOCKERFILE.read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored


def _dockerfile() -> dict[str, Any]:
    """The last of each instruction."""
    found: dict[str, Any] = {}
    for line in DOCKERFILE.read_text().splitlines():
        word, _, rest = line.partition(" ")
        found[word] = yaml.safe_load(rest) if rest.startswith("[") else rest
    return found
