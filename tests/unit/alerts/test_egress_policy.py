"""The egress policy refuses addresses that are not public, in every notation.

No socket is opened. The same rows apply on every Python version.
"""

from __future__ import annotations

import ipaddress
import socket

import pytest

from gradledger_monitor.alerts.egress_policy import (
    SPECIAL_NETWORKS,
    AddressRefused,
    EgressPolicy,
    SpecialNetwork,
)

REFUSED = {
    "0.0.0.0": "this network",
    "0.255.255.255": "this network",
    "10.1.2.3": "private use",
    "100.64.0.1": "shared address space",
    "100.100.100.200": "shared address space",  # metadata, Alibaba
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "168.63.129.16": "platform of Azure",
    "169.254.169.254": "link local",  # metadata, AWS, Azure, Google
    "169.254.170.2": "link local",  # credentials of AWS tasks
    "172.16.0.1": "private use",
    "172.31.255.255": "private use",
    "192.0.0.1": "IETF protocol assignments",
    "192.0.0.9": "IETF protocol assignments",
    "192.0.0.170": "IETF protocol assignments",
    "192.0.0.192": "IETF protocol assignments",  # metadata, Oracle
    "192.0.2.1": "documentation",
    "192.88.99.1": "6to4 relays",
    "192.168.1.1": "private use",
    "198.18.0.1": "benchmarking",
    "198.19.255.255": "benchmarking",
    "198.51.100.1": "documentation",
    "203.0.113.1": "documentation",
    "224.0.0.1": "multicast",
    "239.255.255.255": "multicast",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "::": "unspecified",
    "::1": "loopback",
    "::7f00:1": "IPv4-compatible",
    "::ffff:127.0.0.1": "loopback",
    "::ffff:10.0.0.1": "private use",
    "::ffff:169.254.169.254": "link local",
    "::ffff:192.0.0.192": "IETF protocol assignments",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b::a9fe:a9fe": "link local",
    "64:ff9b::c000:c0": "IETF protocol assignments",
    "64:ff9b:1::1": "local translation",
    "64:ff9b:1::808:808": "local translation",
    "100::1": "discard only",
    "100:0:0:1::1": "dummy prefix",
    "200::1": "not global unicast",
    "2001::1": "Teredo",
    "2001:0:4136:e378:8000:63bf:80ff:fffe": "Teredo",  # 127.0.0.1 inside
    "2001:0:4136:e378:8000:63bf:f7f7:f7f7": "Teredo",  # 8.8.8.8 inside
    "2001:2::1": "IETF protocol assignments",
    "2001:10::1": "IETF protocol assignments",
    "2001:20::1": "IETF protocol assignments",
    "2001:1ff:ffff::1": "IETF protocol assignments",
    "2001:db8::1": "documentation",
    "2002:7f00:1::": "6to4",
    "2002:a9fe:a9fe::1": "6to4",
    "2002:808:808::1": "6to4",
    "3fff::1": "documentation",
    "3fff:fff:ffff::1": "documentation",
    "4000::1": "not global unicast",
    "5f00::1": "segment routing",
    "8000::1": "not global unicast",
    "fc00::1": "unique local",
    "fd00:ec2::254": "unique local",  # metadata, AWS
    "fd20:ce::254": "unique local",  # metadata, Google
    "fe00::1": "not global unicast",
    "fe80::1%eth0": "link local",
    "fec0::1": "site local",
    "feff:ffff::1": "site local",
    "ff02::1": "multicast",
    "ff0e::1": "multicast",
}

PUBLIC = (
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.215.14", "100.63.255.255"),
    *("100.128.0.0", "126.255.255.255", "128.0.0.0", "168.63.129.15", "168.63.129.17"),
    *("169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255"),
    *("192.0.1.0", "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0"),
    *("198.17.255.255", "198.20.0.0", "203.0.112.255", "203.0.114.0", "223.255.255.255"),
    *("::ffff:8.8.8.8", "64:ff9b::808:808", "2000::1", "2001:200::1", "2001:4860:4860::8888"),
    *("2001:db7:ffff::1", "2001:db9::", "2003::1", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"),
    *("2a00:1450::1", "3ffe:ffff::1", "3fff:1000::1"),
)


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if it opens a socket or resolves a name."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, fail)


@pytest.mark.parametrize(("address", "network"), REFUSED.items())
def test_an_address_that_is_not_public_is_refused_with_its_network(
    address: str, network: str
) -> None:
    with pytest.raises(AddressRefused, match="GRADLEDGER_ALERT_NETWORKS") as error:
        EgressPolicy.allowing([]).check("example.org", address)
    assert f"({network}" in str(error.value)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    EgressPolicy.allowing([]).check("example.org", address)


@pytest.mark.parametrize("special", SPECIAL_NETWORKS, ids=lambda special: str(special.network))
def test_every_network_is_refused_from_its_first_to_its_last_address(
    special: SpecialNetwork,
) -> None:
    for address in (special.network[0], special.network[-1]):
        with pytest.raises(AddressRefused):
            EgressPolicy.allowing([]).check("example.org", str(address))


def test_every_network_has_an_address_in_the_table() -> None:
    refused = [ipaddress.ip_address(address.partition("%")[0]) for address in REFUSED]
    for special in SPECIAL_NETWORKS:
        assert any(address in special.network for address in refused), special


def test_only_the_networks_in_the_settings_are_allowed_in_addition() -> None:
    allowed = EgressPolicy.allowing(["10.0.0.0/8", "::1/128"])
    for address in ("10.200.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "::1"):
        allowed.check("example.org", address)
    for address in ("127.0.0.1", "192.168.0.1", "fc00::1", "2002:a00:1::", "::a00:1"):
        with pytest.raises(AddressRefused):
            allowed.check("example.org", address)
    with pytest.raises(ValueError):
        EgressPolicy.allowing(["the office"])
