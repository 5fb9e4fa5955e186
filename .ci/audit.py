"""Known vulnerabilities of every installed package, by pip-audit and the advisories of PyPI.

Where the advisories cannot be reached, pip-audit may take a package for one without
vulnerabilities. So it is first given a release that has some. If it does not find them, nothing is
audited, and that is said: `make audit` then passes, or fails with GRADLEDGER_AUDIT=required.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

VULNERABLE = "jinja2==2.10"  # CVE-2019-10906 and more
OURS = {"gradledger"}


class Report(NamedTuple):
    """What pip-audit printed, and its exit status: one is also a package that it cannot audit."""

    status: int
    json: str
    errors: str


Audit = Callable[[Sequence[str]], Report]


def installed() -> list[str]:
    """Every package of this environment but our own, without local parts of versions (+cpu)."""
    found = {(one.name.lower(), one.version.partition("+")[0]) for one in distributions()}
    return sorted(f"{name}=={version}" for name, version in found if name not in OURS)


def pip_audit(requirements: Sequence[str]) -> Report:
    """Audit these requirements, and nothing that they depend on."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("\n".join(requirements) + "\n")
        options = ["--strict", "--no-deps", "--disable-pip", "--format", "json", "--requirement"]
        command = [sys.executable, "-m", "pip_audit", *options, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Report(done.returncode, done.stdout, done.stderr)


def vulnerable(report: Report) -> list[str]:
    """The packages with known vulnerabilities, each with their names; empty without a report."""
    try:
        packages = json.loads(report.json)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return []
    found = {one["name"]: [v["id"] for v in one.get("vulns", ())] for one in packages}
    return [f"{name}: {', '.join(ids)}" for name, ids in found.items() if ids]


def main(audit: Audit = pip_audit) -> int:
    """Audit this environment; the exit status."""
    probe = audit([VULNERABLE])
    if not vulnerable(probe):
        required = os.environ.get("GRADLEDGER_AUDIT") == "required"
        word = "FAILED" if required else "SKIPPED"
        print(f"make audit: {word}: the advisories cannot be reached, no package was audited")
        print(
            f"make audit: pip-audit finds nothing wrong with {VULNERABLE}: {probe.errors.strip()}"
        )
        return 1 if required else 0
    packages = installed()
    report = audit(packages)
    print(f"make audit: {len(packages)} packages, {len(vulnerable(report))} of them vulnerable")
    print("\n".join([*vulnerable(report), report.errors.strip()]))
    return report.status


if __name__ == "__main__":
    sys.exit(main())
