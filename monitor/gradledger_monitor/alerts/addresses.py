"""Which addresses a message may be sent to: public ones, and networks that a person allowed.

Whoever may name a target could otherwise have the service knock at doors inside its own network:
metadata services, databases, itself.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IPv6 addresses that carry an IPv4 address through a gateway (RFC 6052)
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


class Refused(Exception):
    """Nothing may be sent to that address."""


@dataclass(frozen=True)
class Reach:
    """Public addresses, and these networks."""

    allowed: tuple[Network, ...] = ()

    def check(self, host: str, address: str) -> None:
        """Raise ``Refused`` unless something may be sent to the address that a host has."""
        found = ipaddress.ip_address(address.partition("%")[0])
        meant = _meant(found)
        if any(one in network for network in self.allowed for one in (found, meant)):
            return
        if not (meant.is_global and found.is_global) or meant.is_multicast:
            where = host if host == address else f"{host} ({address})"
            raise Refused(
                f"{where} is not a public address; if it is meant, allow its network: "
                f"GRADLEDGER_ALERT_NETWORKS={meant}"
            )


def reach(networks: Sequence[str]) -> Reach:
    """The public addresses and these networks. Raises ValueError for one that is none."""
    return Reach(tuple(ipaddress.ip_network(network, strict=False) for network in networks))


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inside = address.ipv4_mapped or address.sixtofour
    if inside is None and any(address in network for network in _NAT64):
        inside = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if inside is None and address.teredo is not None:
        inside = address.teredo[1]
    return inside or address
