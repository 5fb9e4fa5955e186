"""The settings of the hooks, from ``GRADLEDGER_*`` environment variables.

An invalid value is reported once on standard error, and the default is used: training goes on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from gradledger.autostart import RUN_ID, RUN_ID_FORMAT
from gradledger.capture.step_sampling import OVERHEAD_SHARE
from gradledger.delivery.proxies import DIRECT, ProxyError, parse_proxy
from gradledger.delivery.spool import DEFAULT_BYTES, DEFAULT_FOLDER, SpoolLocation
from gradledger.on_finding import Policy, parse_policy
from gradledger.stderr import OncePerTopic

DEFAULT_URL = "http://127.0.0.1:4777"
DEFAULT_PROJECT = "default"
NO_SPOOL = "off"
EVERY_STEP = "full"
MIN_SPOOL_BYTES = 2**16
MAX_NAME = 256  # characters
SECRETS = ("TOKEN", "PROXY")  # their values never appear in a message

Contract = Literal["token", "sequence", "sample"]
T = TypeVar("T")

_messages = OncePerTopic()


@dataclass(eq=False, repr=False)
class Settings:
    """Where records are sent, and the description of the run."""

    url: str = DEFAULT_URL
    token: str | None = None
    proxy: str | None = None  # address of the proxy, "off", or None for HTTPS_PROXY and so on
    run: str | None = None  # id that all processes of one command share
    name: str | None = None
    project: str = DEFAULT_PROJECT
    contract: Contract | None = None
    scale: float | None = None
    config: dict[str, Any] = field(default_factory=dict)
    on_finding: Policy = Policy()  # noqa: RUF009 (a tuple)
    overhead: float | None = (
        OVERHEAD_SHARE  # share of the training thread's time; None records every step
    )
    source: bool = True  # send the source lines around the calls that findings point at
    summary: bool = False  # write the address of the run at its start, and its verdict at the end
    spool: Path | None = None  # folder for records that could not be sent; None disables the spool
    spool_bytes: int = DEFAULT_BYTES  # of one process; all processes together use up to 8 times it

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read the ``GRADLEDGER_*`` variables; the reference in the documentation lists them."""

        def read(name: str, parse: Callable[[str], T], default: T) -> T:
            return _read(environ, name, parse, default)

        default_overhead: float | None = OVERHEAD_SHARE
        return cls(
            url=read("URL", _url, DEFAULT_URL),
            token=read("TOKEN", _token, None),
            proxy=read("PROXY", _proxy, None),
            run=read("RUN", _run, None),
            name=read("NAME", _name, None),
            project=read("PROJECT", _name, None) or DEFAULT_PROJECT,
            config=with_tags(read("TAGS", _tags, []), {}),
            on_finding=read("ON_FINDING", parse_policy, Policy()),
            overhead=read("OVERHEAD", parse_overhead, default_overhead),
            source=read("SOURCE", _switch, True),
            summary=read("SUMMARY", _switch, False),
            spool=read("SPOOL", _folder, _folder(DEFAULT_FOLDER)),
            spool_bytes=read("SPOOL_BYTES", _bytes, DEFAULT_BYTES),
        )

    @property
    def spool_location(self) -> SpoolLocation | None:
        """Where records wait that could not be sent to this URL; None without a spool."""
        return None if self.spool is None else SpoolLocation(self.spool, self.url, self.spool_bytes)


def with_tags(tags: list[str], config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the configuration of a run, with ``tags`` appended to its own tags."""
    own = config.get("tags", [])
    own = own.split(",") if isinstance(own, str) else own if isinstance(own, (list, tuple)) else []
    return {**config, "tags": [*own, *tags]} if tags else dict(config)


def _read(environ: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    value = environ.get(f"GRADLEDGER_{name}", "").strip()
    if not value:
        return default
    try:
        return parse(value)
    except ValueError as error:
        shown = "" if name in SECRETS else f"={value[:80]!r}"
        _messages.write(name, f"GRADLEDGER_{name}{shown} is ignored: {error}")
        return default


# ---------------------------------------------------------------- parsers: ValueError if invalid


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("use a URL such as http://host:4777")
    _ = parts.port  # raises ValueError for an invalid port
    return value


def parse_url(value: Any) -> str:
    """The URL of a service, from a string or an object whose text is one."""
    try:
        return _url(str(value))
    except ValueError:
        raise ValueError(f"url={value!r} is invalid: use a URL such as http://host:4777") from None


def _token(value: str) -> str | None:
    if not re.fullmatch(r"[!-~]+", value):
        raise ValueError("a token consists of printable ASCII characters without spaces")
    return value


def _proxy(value: str) -> str | None:
    try:
        if value != DIRECT:
            parse_proxy(value)
    except ProxyError as error:
        raise ValueError(str(error)) from error
    return value


def _run(value: str) -> str | None:
    if not RUN_ID.fullmatch(value):
        raise ValueError(f"use {RUN_ID_FORMAT}")
    return value


def _name(value: str) -> str | None:
    if len(value) > MAX_NAME:
        raise ValueError(f"use at most {MAX_NAME} characters")
    return value


def _tags(value: str) -> list[str]:
    return [tag for tag in map(str.strip, value.split(",")) if tag]


def parse_overhead(value: str | float) -> float | None:
    """A share of the training thread's time; None (``full``) records every step."""
    if isinstance(value, str) and value == EVERY_STEP:
        return None
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"use a share of the time, above 0 and at most 1, or {EVERY_STEP!r}")
    return share


def parse_scale(value: Any) -> float:
    """An intended balance, which is a finite positive number."""
    try:
        scale = float(value)
    except Exception:
        scale = 0.0
    if not 0 < scale < float("inf"):
        raise ValueError(f"scale={value!r} is invalid: use the intended balance, a positive number")
    return scale


def _switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError("use 'on' or 'off'")
    return value == "on"


def _folder(value: str) -> Path | None:
    if value == NO_SPOOL:
        return None
    folder = Path(os.path.expanduser(value))
    return None if str(folder).startswith("~") else folder.absolute()  # a user without a home


def _bytes(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number < MIN_SPOOL_BYTES:
        raise ValueError(f"use a number of bytes, {MIN_SPOOL_BYTES} or more")
    return number
