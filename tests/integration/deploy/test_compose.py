"""``docker-compose.yml`` without an engine: it keeps to its specification, what it says is real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url
from typer.testing import CliRunner

from gradledger import __version__
from gradledger_monitor.cli import app
from gradledger_monitor.config.settings import Settings, setting_names
from gradledger_monitor.config.sources import SECRET_SETTINGS, environment_variable
from helpers.command import gradledger
from helpers.compose import FILE, ROOT, SECRETS, compose, environment, make_secrets, service
from helpers.patience import HANGS

SERVICES = sorted(compose()["services"])
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The secrets of a deployment."""
    return make_secrets(tmp_path_factory.mktemp("deploy"))


def test_it_keeps_to_the_compose_specification() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(FILE)], capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stdout


def test_the_check_against_the_specification_can_fail(tmp_path: Path) -> None:
    wrong = compose()
    wrong["services"]["monitor"]["replica"] = 3
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(wrong))
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, str(tmp_path / "wrong.yml")], capture_output=True, timeout=HANGS)
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
    known = {environment_variable(name) for name in setting_names()} | {
        f"{environment_variable(name)}_FILE" for name in SECRET_SETTINGS
    }
    assert set(told) <= known
    done = gradledger("config", environment={**os.environ, "HOME": str(tmp_path), **told})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in told:
        assert [line for line in lines if line.endswith(f"  ({name})")], name
    assert "# token required" in lines


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


def test_each_service_has_a_memory_limit_that_holds_its_work() -> None:
    limits = {name: _bytes(service(name)["deploy"]["resources"]["limits"]) for name in SERVICES}
    settings = Settings()
    at_once = settings.ingest_queue_bytes + settings.ingest_workers * settings.max_body_bytes
    assert limits["monitor"] > 2 * at_once
    assert limits["database"] > 2**28  # its shm_size
    (tmpfs,) = service("proxy")["tmpfs"]
    assert (
        limits["proxy"] > _bytes({"memory": tmpfs.partition("size=")[2]}) > settings.max_body_bytes
    )


def _bytes(limit: dict[str, str]) -> int:
    number, unit = limit["memory"][:-1], limit["memory"][-1]
    return int(number) * {"m": 2**20, "g": 2**30}[unit]


def test_all_images_are_pinned_by_the_documented_command(tmp_path: Path) -> None:
    """With an engine that knows four tags; there is none here that could ask a registry."""
    digest = f"sha256:{'0123456789abcdef' * 4}"
    _engine(tmp_path, f"echo '\"{digest}\"'")
    done = _pin_images(tmp_path)
    assert done.returncode == 0, done.stderr
    pinned = dict(line.split("=", 1) for line in done.stdout.splitlines())
    said = compose(pinned)["services"]
    args = said["monitor"]["build"]["args"]
    images = [said["database"]["image"], said["proxy"]["image"], *args.values()]
    assert len(images) == len(pinned) == 4
    assert all(image.endswith(f"@{digest}") for image in images), images
    froms = [line.split()[1] for line in DOCKERFILE.read_text().splitlines() if line[:5] == "FROM "]
    assert froms == [f"${{{name}}}" for name in args]
    defaults = set(re.findall(r"^ARG PYTHON.*", DOCKERFILE.read_text(), re.M))
    unpinned = service("monitor")["build"]["args"]
    assert defaults == {f"ARG {name}={image}" for name, image in unpinned.items()}


def test_an_image_without_a_digest_is_not_pinned(tmp_path: Path) -> None:
    for answer in ("echo null", "echo", "exit 1"):
        _engine(tmp_path, answer)
        done = _pin_images(tmp_path)
        assert done.returncode != 0 and done.stdout == ""


def _engine(folder: Path, answer: str) -> None:
    docker = folder / "docker"
    asked = '[ "$1 $2 $3" = "buildx imagetools inspect" ] || exit 9'
    docker.write_text(f"#!/bin/sh\n{asked}\n{answer}\n")
    docker.chmod(0o755)


def _pin_images(folder: Path) -> subprocess.CompletedProcess[str]:
    path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [ROOT / "deploy" / "pin-images"]
    return subprocess.run(command, env=path, capture_output=True, text=True, timeout=HANGS)


@pytest.mark.parametrize("networks", ["10.0.0.0/8; }", "proxy.example", "10.0.0.1,$host"])
def test_a_tls_proxy_that_is_no_address_is_refused(networks: str, tmp_path: Path) -> None:
    script = [ROOT / "deploy" / "tls-proxies.sh", tmp_path / "tls-proxies.conf"]
    environment = {**os.environ, "GRADLEDGER_TLS_PROXIES": networks}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 1 and "GRADLEDGER_TLS_PROXIES" in done.stderr
    assert not (tmp_path / "tls-proxies.conf").exists()


def test_what_the_proxy_mounts_is_there_and_runs() -> None:
    for volume in service("proxy")["volumes"]:
        source, target, mode = volume.split(":")
        assert (ROOT / source).is_file() and mode == "ro"
        if target.startswith("/docker-entrypoint.d/"):  # others are passed over there
            assert os.access(ROOT / source, os.X_OK) and target.endswith(".sh")
    outside = compose()["networks"]["outside"]["ipam"]["config"][0]["subnet"]
    inside = compose()["networks"]["inside"]["ipam"]["config"][0]["subnet"]
    assert service("monitor")["environment"]["GRADLEDGER_TRUSTED_PROXIES"] == inside != outside


def test_the_image_has_the_health_check_of_the_compose_file() -> None:
    options, _, command = _dockerfile()["HEALTHCHECK"].partition(" CMD ")
    check = service("monitor")["healthcheck"]
    assert yaml.safe_load(command) == check["test"][1:]
    assert options.split() == [
        f"--interval={check['interval']}",
        f"--timeout={check['timeout']}",
        f"--start-period={check['start_period']}",
    ]


@pytest.mark.parametrize("printed", ["gradledger {version}", "gradledger 9.9"])
def test_the_image_gets_the_version_of_the_package(printed: str, tmp_path: Path) -> None:
    """With an engine that prints its arguments, and one version for `docker run`."""
    docker = tmp_path / "docker"
    output = printed.format(version=__version__)
    docker.write_text(f'#!/bin/sh\n[ "$1" = run ] && echo "{output}" || echo "$@"\n')
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [ROOT / "deploy" / "build-image"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANGS)
    assert f"--build-arg VERSION={__version__} " in done.stdout
    assert 'org.opencontainers.image.version="${VERSION}"' in _dockerfile()["LABEL"]
    assert done.returncode == (1 if "9.9" in printed else 0), done.stderr


def _dockerfile() -> dict[str, Any]:
    """The last of each instruction."""
    instructions: dict[str, Any] = {}
    for line in re.sub(r"\\\n\s*", "", DOCKERFILE.read_text()).splitlines():
        word, _, rest = line.partition(" ")
        instructions[word] = yaml.safe_load(rest) if rest.startswith("[") else rest
    return instructions
