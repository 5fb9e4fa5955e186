"""Which worker runs which files."""

from __future__ import annotations

from typing import Any

import pytest

BROWSER = "tests/e2e/browser"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files of the browser to one worker: each worker would start a browser."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore # noqa: PLC0415

    class OneBrowser(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return BROWSER if file.startswith(f"{BROWSER}/") else file

    return OneBrowser(config, log) if config.getvalue("dist") == "loadfile" else None
