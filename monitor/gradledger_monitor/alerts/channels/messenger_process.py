"""Sends one message with Apprise, in a separate process.

Apprise and its plugins open connections themselves. An audit hook refuses every address that is not
allowed at the moment of the connection, whatever the name resolved to before.
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

INSTALL = "Apprise is not installed in the service: pip install 'gradledger[alerts]'"
_STATUS = re.compile(r"\berror=(\d{3})\b")
_FENCED = re.compile(r"```\n(.*?)\n```", re.DOTALL)
_INTERNET = (socket.AF_INET, socket.AF_INET6)


def main() -> None:
    """Read the request from stdin and write the result to stdout, both as JSON."""
    request = json.load(sys.stdin)
    with _captured_warnings() as warnings:
        outcome, detail = _send(request, warnings)
    status = _STATUS.search(detail)
    code = int(status[1]) if status else None
    if code == 410:
        outcome = "gone"
    json.dump({"outcome": outcome, "detail": detail, "status": code}, sys.stdout)


def _send(request: dict[str, Any], warnings: list[str]) -> tuple[str, str]:
    try:
        apprise = importlib.import_module("apprise")
    except ModuleNotFoundError:
        return "failed", INSTALL
    _disable_redirects()
    refused = _refuse_connections(request["networks"])
    try:
        delivered = _notify(apprise, request)
    except TypeError as error:  # Apprise raises it for a URL that it cannot parse
        return "failed", f"{error}"
    if delivered:
        return "delivered", ""
    return "failed", "; ".join([*refused[-1:], *warnings[-2:]]) or "Apprise gave no reason"


def _notify(apprise: Any, request: dict[str, Any]) -> bool:
    messenger = apprise.Apprise()
    if not messenger.add(request["url"]):
        raise TypeError("Apprise does not support this URL; see the documentation of Apprise")
    with tempfile.TemporaryDirectory(prefix="gradledger-") as folder:
        image = request["image"]
        picture = Path(folder) / "run.png"
        if image:
            picture.write_bytes(base64.b64decode(image))
        body = request["body"]
        return bool(
            messenger.notify(
                title=request["title"],
                body=_indent_code(body) if _sends_html(messenger) else body,
                notify_type=request["type"],
                body_format="markdown",
                attach=str(picture) if image else None,
            )
        )


def _sends_html(messenger: Any) -> bool:
    (service,) = messenger
    if hasattr(service, "resolve_format"):  # since Apprise 2.0
        return bool(service.resolve_format("markdown") == "html")
    return bool(service.notify_format == "html")


def _indent_code(body: str) -> str:
    """Replace fenced code by indented code: Apprise does not convert fences to HTML."""
    return _FENCED.sub(lambda code: f"\n{indent(code[1], '    ')}\n", body)


def _disable_redirects() -> None:
    """A redirect would send the message to a host that nobody configured."""
    vars(importlib.import_module("requests.sessions"))["DEFAULT_REDIRECT_LIMIT"] = 0


def _refuse_connections(networks: list[str]) -> list[str]:
    """Refuse connections that are not allowed from now on; return the growing list of refusals."""
    policy, refused = EgressPolicy.allowing(networks), list[str]()

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            return
        connection, address = arguments[0], arguments[-1]
        try:
            if connection.family not in _INTERNET or address is None:
                raise AddressRefused("only connections over IP are allowed")
            policy.check(str(address[0]), str(address[0]))
        except (
            AddressRefused,
            ValueError,
        ) as error:  # ValueError: not an IP address
            refused.append(str(error))
            raise ConnectionRefusedError(str(error)) from error

    sys.addaudithook(audit)
    return refused


@contextmanager
def _captured_warnings() -> Iterator[list[str]]:
    """The messages that are logged as warnings; stdout is only for the result."""
    messages: list[str] = []

    class Capture(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.basicConfig(level=logging.WARNING, handlers=[Capture()])
    yield messages


if __name__ == "__main__":
    main()
