"""``gradledger doctor``: what would keep a training here from being recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gradledger import doctor, torch_version
from helpers.launching import GRADLEDGER, Launch
from helpers.patience import HANGS
from helpers.service import running_service


def lines(text: str) -> dict[str, str]:
    """The status and text of each check, by its name."""
    found = {}
    for line in text.splitlines():
        status, name, rest = line[:8].strip(), line[9:18].strip(), line[19:]
        found[name] = f"{status} {rest}"
    return found


def test_where_all_is_well_it_exits_0_and_names_what_it_checked(
    launch: Launch, tmp_path: Path
) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        done = launch("doctor", GRADLEDGER_URL=service.url)
        assert service.get("/runs").json()["runs"] == []  # the check records nothing
    checks = lines(done.stdout)
    assert done.returncode == 0, done.stdout
    assert checks["hooks"] == "ok they start when a program imports torch"
    assert checks["service"] == f"ok {service.url} accepts records without a token"
    assert checks["clock"].endswith(" s from the clock of the service")
    assert checks["spool"].endswith(", nothing waits to be sent")
    assert "torch.compile" in checks["not seen"]


def test_it_has_a_help_and_no_arguments(launch: Launch) -> None:
    assert "usage: gradledger doctor" in launch("doctor", "--help").stdout
    refused = launch("doctor", "--all")
    assert (refused.returncode, "--all" in refused.stderr) == (2, True)


def test_a_refused_token_and_a_stopped_service_exit_1(launch: Launch, tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db", access="token") as service:
        done = launch("doctor", GRADLEDGER_URL=service.url, GRADLEDGER_TOKEN="gl_wrong")
    assert done.returncode == 1
    assert "GRADLEDGER_TOKEN" in lines(done.stdout)["service"]
    done = launch("doctor", GRADLEDGER_URL=service.url, GRADLEDGER_SPOOL="off")
    checks = lines(done.stdout)
    assert done.returncode == 1
    assert checks["service"].startswith(
        f"failed {service.url}: Connection refused; `gradledger serve`"
    )
    assert checks["clock"].startswith("unknown")
    assert checks["spool"].startswith("unknown")


def test_it_asks_for_the_oldest_version_that_the_hooks_support() -> None:
    assert ".".join(map(str, torch_version.OLDEST)) == doctor.OLDEST


def test_a_reader_that_ends_early_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*GRADLEDGER, "doctor"], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=HANGS
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
