"""Sends one message with Apprise, in a process that does nothing else.

Apprise and its plugins connect as they like; an audit hook refuses every address that is not
allowed, at the moment of the connection, whatever a name meant a moment before.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import re
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

from gradledger_monitor.alerts.egress_policy import AddressRefused, EgressPolicy

INSTALL = "Apprise is not installed where the service runs: pip install 'gradledger[alerts]'"
_STATUS = re.compile(r"\berror=(\d{3})\b")
_FENCED = re.compile(r"```\n(.*?)\n```", re.DOTALL)
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def main() -> None:
    """Read what to send from stdin, and say on stdout what became of it."""
    told = json.load(sys.stdin)
    with _only_complaints() as complaints:
        fate, detail = _sent(told, complaints)
    status = _STATUS.search(detail)
    code = int(status[1]) if status else None
    if code == 410:
        fate = "gone"
    json.dump({"fate": fate, "detail": detail, "status": code}, sys.stdout)


def _sent(told: dict[str, Any], complaints: list[str]) -> tuple[str, str]:
    try:
        apprise = importlib.import_module("apprise")
    except ModuleNotFoundError:
        return "failed", INSTALL
    _follow_nothing()
    refused = _guard(told["networks"])
    try:
        done = _notify(apprise, told)
    except TypeError as error:  # what Apprise says of an address that it cannot read
        return "failed", f"{error}"
    if done:
        return "delivered", ""
    return "failed", "; ".join([*refused[-1:], *complaints[-2:]]) or "Apprise does not say why"


def _notify(apprise: Any, told: dict[str, Any]) -> bool:
    messenger = apprise.Apprise()
    if not messenger.add(told["url"]):
        raise TypeError("Apprise knows no such address; see its documentation")
    with tempfile.TemporaryDirectory(prefix="gradledger-") as folder:
        image = told["image"]
        picture = Path(folder) / "run.png"
        if image:
            picture.write_bytes(base64.b64decode(image))
        return bool(
            messenger.notify(
                title=told["title"],
                body=_indented(told["body"]) if _makes_html(messenger) else told["body"],
                notify_type=told["type"],
                body_format="markdown",
                attach=str(picture) if image else None,
            )
        )


def _makes_html(messenger: Any) -> bool:
    (service,) = messenger
    if hasattr(service, "resolve_format"):  # which Apprise has since 2.0
        return bool(service.resolve_format("markdown") == "html")
    return bool(service.notify_format == "html")


def _indented(body: str) -> str:
    """With indented code: Apprise takes fences for text where it makes HTML of Markdown."""
    return _FENCED.sub(lambda code: f"\n{indent(code[1], '    ')}\n", body)


def _follow_nothing() -> None:
    """Redirects lead elsewhere than a person said."""
    vars(importlib.import_module("requests.sessions"))["DEFAULT_REDIRECT_LIMIT"] = 0


def _guard(networks: list[str]) -> list[str]:
    """Refuse connections from now on; the list fills with what was refused."""
    allowed, refused = EgressPolicy.allowing(networks), []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            return
        connection, place = arguments[0], arguments[-1]
        try:
            if connection.family not in _INTERNET or place is None:
                raise AddressRefused("only the internet may be spoken with")
            allowed.check(str(place[0]), str(place[0]))
        except (AddressRefused, ValueError) as error:  # a name, which would be looked up unseen
            refused.append(str(error))
            raise ConnectionRefusedError(str(error)) from error

    sys.addaudithook(audit)
    return refused


@contextmanager
def _only_complaints() -> Iterator[list[str]]:
    """What is logged as a warning, and nothing on stdout but our answer."""
    heard: list[str] = []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logging.basicConfig(level=logging.WARNING, handlers=[Hearing()])
    yield heard


if __name__ == "__main__":
    main()
