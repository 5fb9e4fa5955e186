"""What a person may change about the hooks, from ``GRADLEDGER_*`` environment variables.

A value that cannot be meant is said once, and the default is used: training never fails on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from gradledger.capture.step_sampling import OVERHEAD_SHARE
from gradledger.delivery.proxies import DIRECT, ProxyError, parsed
from gradledger.delivery.spool import DEFAULT_BYTES, DEFAULT_FOLDER, Place
from gradledger.delivery.stderr_messages import Notices
from gradledger.on_finding import Policy, policy

DEFAULT_URL = "http://127.0.0.1:4777"
DEFAULT_PROJECT = "default"
NO_SPOOL = "off"
EVERY_STEP = "full"
SMALLEST_SPOOL = 2**16

Contract = Literal["token", "sequence", "sample"]
T = TypeVar("T")

_notices = Notices()


@dataclass(eq=False, repr=False)
class Settings:
    """Where to send, and how the run calls itself."""

    url: str = DEFAULT_URL
    token: str | None = None
    proxy: str | None = None  # to the service: an address, "off", or None for HTTPS_PROXY and so on
    run: str | None = None  # identity that everything one command starts has in common
    name: str | None = None
    project: str = DEFAULT_PROJECT
    contract: Contract | None = None
    scale: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    on_finding: Policy = Policy()  # noqa: RUF009 (a tuple)
    overhead: float | None = OVERHEAD_SHARE  # of the training thread's time; None: no limit
    spool: Path | None = None  # where to keep what cannot be sent; None keeps nothing
    spool_bytes: int = DEFAULT_BYTES  # of one process; of all together, eight times that

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """``GRADLEDGER_*`` variables; see the settings table in the documentation."""

        def said(name: str, meant: Callable[[str], T], default: T) -> T:
            return _said(environ, name, meant, default)

        usual: float | None = OVERHEAD_SHARE
        return cls(
            url=said("URL", _url, DEFAULT_URL),
            token=said("TOKEN", _token, None),
            proxy=said("PROXY", _proxy, None),
            run=said("RUN", _run, None),
            name=said("NAME", _name, None),
            project=said("PROJECT", _name, None) or DEFAULT_PROJECT,
            config=tagged(said("TAGS", _tags, []), {}),
            on_finding=said("ON_FINDING", policy, Policy()),
            overhead=said("OVERHEAD", overhead, usual),
            spool=said("SPOOL", _folder, _folder(DEFAULT_FOLDER)),
            spool_bytes=said("SPOOL_BYTES", _bytes, DEFAULT_BYTES),
        )

    @property
    def place(self) -> Place | None:
        """Where records wait that could not be sent to this URL."""
        return None if self.spool is None else Place(self.spool, self.url, self.spool_bytes)


def tagged(tags: list[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration, with words from elsewhere among its ``tags``."""
    own = config.get("tags", [])
    own = own.split(",") if isinstance(own, str) else own if isinstance(own, (list, tuple)) else []
    return {**config, "tags": [*own, *tags]} if tags else dict(config)


def _said(environ: Mapping[str, str], name: str, meant: Callable[[str], T], default: T) -> T:
    value = environ.get(f"GRADLEDGER_{name}", "").strip()
    if not value:
        return default
    try:
        return meant(value)
    except ValueError as error:
        shown = "" if name in ("TOKEN", "PROXY") else f"={value[:80]!r}"
        _notices.once(name, f"GRADLEDGER_{name}{shown} is ignored: {error}")
        return default


# ---------------------------------------------------------------- ValueError where it is not meant


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be like http://host:4777")
    _ = parts.port  # raises for one that is none
    return value


def service_url(value: Any) -> str:
    """The address of a service, from whatever a script holds it in; ValueError if it is none."""
    try:
        return _url(str(value))
    except ValueError as error:
        raise ValueError(f"url must be like http://host:4777, not {value!r}") from error


def _token(value: str) -> str | None:
    if not re.fullmatch(r"[!-~]+", value):
        raise ValueError("a token has neither spaces nor other signs than ASCII")
    return value


def _proxy(value: str) -> str | None:
    try:
        if value != DIRECT:
            parsed(value)
    except ProxyError as error:
        raise ValueError(str(error)) from error
    return value


def _run(value: str) -> str | None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,120}", value):
        raise ValueError("up to 120 letters, digits, '.', '_' and '-'")
    return value


def _name(value: str) -> str | None:
    if len(value) > 256:
        raise ValueError("it is longer than 256 characters")
    return value


def _tags(value: str) -> list[str]:
    return [tag for tag in map(str.strip, value.split(",")) if tag]


def overhead(value: str | float) -> float | None:
    """A share of the training thread's time; None where every step is to be watched."""
    if isinstance(value, str) and value == EVERY_STEP:
        return None
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"a share of the time between 0 and 1, or {EVERY_STEP!r}")
    return share


def balance(value: Any) -> float:
    """An intended balance; ValueError if it is no positive number."""
    try:
        intended = float(value)
    except Exception:
        intended = 0.0
    if not 0 < intended < float("inf"):
        raise ValueError(f"scale is the intended balance and must be positive, not {value!r}")
    return intended


def _folder(value: str) -> Path | None:
    if value == NO_SPOOL:
        return None
    folder = Path(os.path.expanduser(value))
    return None if str(folder).startswith("~") else folder.absolute()  # a user without a home


def _bytes(value: str) -> int:
    number = int(value)
    if number < SMALLEST_SPOOL:
        raise ValueError(f"it must be {SMALLEST_SPOOL} or more")
    return number
