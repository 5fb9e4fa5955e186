"""Nothing is sent to addresses that are not public, however they are written."""

from __future__ import annotations

import pytest

from gradledger_monitor.alerts.addresses import Refused, reach

FORBIDDEN = (
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # where clouds keep their keys
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1%eth0",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="GRADLEDGER_ALERT_NETWORKS"):
        reach([]).check("example.org", address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_what_is_public_is_not(address: str) -> None:
    reach([]).check("example.org", address)


def test_a_network_may_be_allowed_and_no_more_than_that() -> None:
    allowed = reach(["10.0.0.0/8", "::1/128"])
    for address in ("10.200.0.1", "::ffff:10.0.0.1", "::1"):
        allowed.check("example.org", address)
    for address in ("127.0.0.1", "192.168.0.1", "fc00::1"):
        with pytest.raises(Refused):
            allowed.check("example.org", address)
    with pytest.raises(ValueError):
        reach(["the office"])
