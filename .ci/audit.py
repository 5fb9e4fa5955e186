"""Known vulnerabilities of every installed package, by pip-audit and the advisories of PyPI.

pip-audit takes a package of which PyPI says nothing for one without vulnerabilities. So PyPI is
asked first for a release whose vulnerabilities are known. Where it cannot be reached, nothing is
audited, and that is said: `make audit` then passes, or fails with GRADLEDGER_AUDIT=required.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path

VULNERABLE = "https://pypi.org/pypi/jinja2/2.10/json"  # CVE-2019-10906 and more
TIMEOUT = 20.0  # seconds
OURS = {"gradledger"}

Audit = Callable[[Sequence[str]], int]


class Unreachable(Exception):
    """The advisory service does not answer; the text says how."""


def known_vulnerabilities(url: str) -> int:
    """How many vulnerabilities a release has by the document there. Raises ``Unreachable``."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # nosec B310
            found = json.load(answer)["vulnerabilities"]
    except (urllib.error.URLError, OSError) as error:
        raise Unreachable(f"{url}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(f"{url} is not a document of PyPI: {error!r}") from error
    return len(found)


def installed() -> list[str]:
    """Every package of this environment but our own, without local parts of versions (+cpu)."""
    found = {(one.name.lower(), one.version.partition("+")[0]) for one in distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name not in OURS)


def pip_audit(requirements: Sequence[str]) -> int:
    """The exit status of pip-audit; one is also a package that PyPI does not know."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "installed.txt"
        file.write_text("\n".join(requirements) + "\n")
        command = [sys.executable, "-m", "pip_audit", "--strict", "--no-deps", "--disable-pip"]
        return subprocess.run([*command, "--requirement", str(file)], check=False).returncode


def main(url: str = VULNERABLE, audit: Audit = pip_audit) -> int:
    """Audit this environment; the exit status."""
    try:
        known = known_vulnerabilities(url)
    except Unreachable as error:
        required = os.environ.get("GRADLEDGER_AUDIT") == "required"
        word = "FAILED" if required else "SKIPPED"
        print(f"make audit: {word}: the advisory service cannot be reached, no package was audited")
        print(f"make audit: {error}")
        return 1 if required else 0
    if not known:
        print(f"make audit: FAILED: {url} lists none of the vulnerabilities that it has")
        return 1
    packages = installed()
    print(f"make audit: {len(packages)} packages")
    return audit(packages)


if __name__ == "__main__":
    sys.exit(main())
