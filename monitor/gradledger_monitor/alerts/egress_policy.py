"""Which addresses a message can be sent to: public ones, and networks that the operator allowed.

Without this check, anyone who can configure a channel could make the service connect to its own
network: metadata services, databases, the service itself. The networks that are not public are
listed here, because ``is_global`` of ``ipaddress`` differs between Python versions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class SpecialNetwork:
    """A network without public services, and the document that defines it."""

    network: Network
    name: str
    source: str


# The networks that are not globally reachable according to
# https://www.iana.org/assignments/iana-ipv4-special-registry and
# https://www.iana.org/assignments/iana-ipv6-special-registry, multicast, and internal networks of
# clouds. Networks that are partly reachable (192.0.0.0/24, 2001::/23) are refused completely:
# no webhook receivers are in them.
SPECIAL_NETWORKS = tuple(
    SpecialNetwork(ipaddress.ip_network(network), name, source)
    for network, name, source in (
        ("0.0.0.0/8", "this network", "RFC 791"),
        ("10.0.0.0/8", "private use", "RFC 1918"),
        ("100.64.0.0/10", "shared address space", "RFC 6598"),
        ("127.0.0.0/8", "loopback", "RFC 1122"),
        ("168.63.129.16/32", "platform of Azure, inside a virtual machine", "Azure documentation"),
        ("169.254.0.0/16", "link local, metadata of clouds", "RFC 3927"),
        ("172.16.0.0/12", "private use", "RFC 1918"),
        ("192.0.0.0/24", "IETF protocol assignments, metadata of Oracle's cloud", "RFC 6890"),
        ("192.0.2.0/24", "documentation", "RFC 5737"),
        ("192.88.99.0/24", "6to4 relays, deprecated", "RFC 7526"),
        ("192.168.0.0/16", "private use", "RFC 1918"),
        ("198.18.0.0/15", "benchmarking", "RFC 2544"),
        ("198.51.100.0/24", "documentation", "RFC 5737"),
        ("203.0.113.0/24", "documentation", "RFC 5737"),
        ("224.0.0.0/4", "multicast", "RFC 5771"),
        ("240.0.0.0/4", "reserved, broadcast", "RFC 1112, RFC 8190"),
        ("::/128", "unspecified", "RFC 4291"),
        ("::1/128", "loopback", "RFC 4291"),
        ("::/96", "IPv4-compatible, deprecated", "RFC 4291"),
        ("64:ff9b:1::/48", "local translation to IPv4", "RFC 8215"),
        ("100::/64", "discard only", "RFC 6666"),
        ("100:0:0:1::/64", "dummy prefix", "RFC 9780"),
        ("2001::/32", "Teredo, which embeds IPv4 addresses", "RFC 4380"),
        ("2001::/23", "IETF protocol assignments", "RFC 2928"),
        ("2001:db8::/32", "documentation", "RFC 3849"),
        ("2002::/16", "6to4, which embeds IPv4 addresses; deprecated", "RFC 3056, RFC 7526"),
        ("3fff::/20", "documentation", "RFC 9637"),
        ("5f00::/16", "segment routing", "RFC 9602"),
        ("fc00::/7", "unique local, metadata of clouds", "RFC 4193"),
        ("fe80::/10", "link local", "RFC 4291"),
        ("fec0::/10", "site local, deprecated", "RFC 3879"),
        ("ff00::/8", "multicast", "RFC 4291"),
        # all of IPv6 except 2000::/3
        *(
            (network, "not global unicast", "RFC 4291")
            for network in ("::/3", "4000::/2", "8000::/1")
        ),
    )
)

# An IPv6 address in these reaches the IPv4 address in its last 32 bits, which is what is checked.
TRANSLATED = (
    ipaddress.IPv6Network("::ffff:0:0/96"),  # IPv4-mapped, RFC 4291: by the operating system
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64, RFC 6052: by a gateway
)


class AddressRefused(Exception):
    """The policy does not allow this address."""


@dataclass(frozen=True)
class EgressPolicy:
    """Allows public addresses and the networks that the operator listed."""

    allowed: tuple[Network, ...] = ()

    @classmethod
    def allowing(cls, networks: Sequence[str]) -> EgressPolicy:
        """A policy that also allows these networks. Raises ValueError for an invalid one."""
        return cls(tuple(ipaddress.ip_network(network, strict=False) for network in networks))

    def check(self, host: str, address: str) -> None:
        """Raise ``AddressRefused`` unless ``address``, to which ``host`` resolves, is allowed."""
        literal = ipaddress.ip_address(address.partition("%")[0])
        reached = translated(literal)
        if any(a in network for network in self.allowed for a in (literal, reached)):
            return
        special = next((s for s in SPECIAL_NETWORKS if reached in s.network), None)
        if special is not None:
            target = host if host == address else f"{host} ({address})"
            raise AddressRefused(
                f"{target} is not a public address ({special.name}, {special.source}). To allow "
                f"its network, set GRADLEDGER_ALERT_NETWORKS={reached}"
            )


def translated(address: Address) -> Address:
    """The IPv4 address that an IPv6 address is translated to, or the address itself."""
    if any(address in network for network in TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
