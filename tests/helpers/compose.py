"""``docker-compose.yml`` as a test sees it: with its variables filled in."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
SECRETS = "/run/secrets/"
_VARIABLE = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}")


def compose(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file with these variables set; without any, with its defaults."""
    given = variables or {}
    text = _VARIABLE.sub(lambda match: given.get(match[1]) or match[2], FILE.read_text())
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def service(name: str) -> dict[str, Any]:
    """One of its services."""
    definition: dict[str, Any] = compose()["services"][name]
    return definition


def environment(name: str, secrets: Path) -> dict[str, str]:
    """What a service's container has in its environment; its secrets lie in a folder."""
    variables: dict[str, str] = service(name)["environment"]
    return {key: str(value).replace(SECRETS, f"{secrets}/") for key, value in variables.items()}


def make_secrets(folder: Path) -> Path:
    """The folder of secrets that `deploy/make-secrets` writes."""
    shutil.copy(ROOT / "deploy" / "make-secrets", folder)
    for _ in range(2):  # the second time changes nothing
        subprocess.run([folder / "make-secrets"], check=True)
    return folder / "secrets"
