"""Alerts to internal addresses are refused, and no connection is made.

The table is checked without a socket. What a service does with it is tried on loopback alone.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

from attack.arena import Arena
from attack.outcome import Outcome
from gradledger_monitor.alerts.egress_policy import AddressRefused, EgressPolicy
from helpers import http

INSIDE = (
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.8.9.10", "169.254.169.254"),
    *("172.16.0.1", "172.31.255.254", "192.0.0.1", "192.0.0.170", "192.0.0.192", "192.0.2.1"),
    *("192.168.1.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "100::1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2001:db8::1", "2002:7f00:1::"),
    *("2002:a9fe:a9fe::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1"),
    *("feff::1", "ff02::1", "2001:0:7f00:1::", "::127.0.0.1"),
)
OUTSIDE = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "64:ff9b::101:101")
# spellings that disguise addresses of this machine
SPELLINGS = (
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"),
    *("LOCALHOST.", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "127.0.0.1."),
    *("user@127.0.0.1", "localhost%00.example.org", "[::1]"),
)


def attack(arena: Arena) -> Iterator[Outcome]:
    """Check the table, then alert channels with spellings of this machine."""
    outcome = Outcome("addresses of alerts (SSRF)")
    guarded = EgressPolicy.allowing([])
    for address in (*INSIDE, *OUTSIDE):
        outcome.tried()
        try:
            guarded.check(address, address)
        except AddressRefused:
            if address in OUTSIDE:
                outcome.fault(f"{address} is public and refused")
        else:
            if address in INSIDE:
                outcome.fault(f"{address} may be reached")
    with Trap() as trap, arena.service(outcome, alert_timeout="2") as service:
        for number, spelling in enumerate(SPELLINGS):
            _try(service.url, outcome, f"c{number}", f"http://{spelling}:{trap.port}/hook")
        if trap.connections:
            outcome.fault(f"{trap.connections} connections were response")
    yield outcome


def _try(service: str, outcome: Outcome, name: str, url: str) -> None:
    channel = f"{service}/api/v1/alerts/channels/{name}"
    response = http.put(channel, json={"kind": "webhook", "url": url})
    outcome.answered(response.status_code, response.elapsed.total_seconds())
    if response.status_code != 200:
        return  # refused when the channel is configured
    tried = http.post(f"{channel}/test")
    outcome.answered(tried.status_code, tried.elapsed.total_seconds())
    if tried.status_code == 200 and tried.json()["outcome"] == "delivered":
        outcome.fault(f"{url} was delivered to")


class Trap:
    """A listening loopback socket that counts connections."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with closing(connection):
                self.connections += 1

    def __enter__(self) -> Trap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)
