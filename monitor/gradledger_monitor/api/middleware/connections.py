"""Limits on connections: their number, and how long each can take to send a request.

uvicorn closes connections that are idle after a response, but waits forever for a header or a body
that does not arrive. ``BoundedProtocol`` records the phase of each connection, and ``Guard`` checks
all of them every second. A connection has no time limit while the service prepares a response, so
that event streams stay open, but a client that stops reading its response is disconnected.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gradledger_monitor.api.middleware.connection_log import ConnectionLog
from gradledger_monitor.common.problems import Problem

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
OTHER_DESCRIPTORS = 64  # for the database, pipes and outgoing connections
MAX_BACKLOG = 512

# The phase of a connection. "idle": no byte of a request has arrived; "response": the service
# prepares or sends one.
Phase = Literal["idle", "header", "body", "response"]


@dataclass(frozen=True)
class Limits:
    """Limits on connections; times are in seconds."""

    connections: int
    per_client: int
    header: float
    body: float
    body_rate: int  # bytes a second
    idle: float
    send: float

    def seconds(self, phase: Phase, received: int) -> float:
        """The time limit of a phase in which ``received`` bytes have arrived."""
        if phase == "body":
            return self.body + received / self.body_rate
        return {"idle": self.idle, "header": self.header}.get(phase, float("inf"))


def backlog(descriptors: int) -> int:
    """The length of the kernel's queue of connections that are not accepted yet."""
    return max(8, min(MAX_BACKLOG, descriptors // 4))


def max_connections(descriptors: int) -> int:
    """The number of connections that a process with this many file descriptors can have."""
    return max(16, descriptors - backlog(descriptors) - OTHER_DESCRIPTORS)


class Guard:
    """Admits connections, and ends those that take too long. Use it only in the event loop."""

    def __init__(
        self,
        limits: Limits,
        connection_log: ConnectionLog,
        exempt: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.connection_log = connection_log
        self.now = now
        self._exempt = [ipaddress.ip_network(text, strict=False) for text in _networks(exempt)]
        # in the order in which their phases began: the longest wait comes first
        self._open: OrderedDict[BoundedProtocol, None] = OrderedDict()
        self._clients: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def admit(self, connection: BoundedProtocol) -> None:
        """Add a new connection; if there are too many, end the one that has waited longest."""
        host = connection.host
        if self._clients[host] >= self.limits.per_client and not self._is_exempt(host):
            self._make_space((c for c in self._open if c.host == host), connection)
        elif len(self._open) >= self.limits.connections:
            self._make_space(self._open, connection)
        self._open[connection] = None
        self._clients[host] += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch())

    def remove(self, connection: BoundedProtocol) -> None:
        """Remove a connection that has ended."""
        if connection in self._open:
            del self._open[connection]
            self._clients[connection.host] -= 1
            if not self._clients[connection.host]:
                del self._clients[connection.host]

    def entered_phase(self, connection: BoundedProtocol) -> None:
        """Reorder a connection that has entered a new phase."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def _make_space(self, candidates: Iterable[BoundedProtocol], new: BoundedProtocol) -> None:
        self.connection_log.count("too_many", new.host)
        waiting = (c for c in candidates if c.phase in ("idle", "header") and not c.ended)
        longest = next(waiting, None)
        if longest is not None:
            longest.cut()
        else:
            detail = "There are too many connections. Retry after 2 s."
            new.refuse(Problem(503, detail, retry_after=2))

    def _is_exempt(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._exempt)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self.sweep()
            except Exception:  # in one connection; the limits of all others must still apply
                log.exception("checking connections failed; retry in %g s", SWEEP_SECONDS)

    def sweep(self) -> None:
        """End the connections that have taken too long."""
        now = self.now()
        for connection in list(self._open):
            connection.end_if_late(now)
        self.connection_log.report()


def _networks(addresses: Sequence[str]) -> list[str]:
    """The addresses and networks in a list; ``*`` means all, and host names are ignored."""
    networks = []
    for text in addresses:
        if text == "*":
            return ["0.0.0.0/0", "::/0"]
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        networks.append(text)
    return networks


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which also records the phase of the connection and its start."""

    guard: Guard  # set by `protocol`

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.phase: Phase = "idle"
        self.since = self.guard.now()
        self.received = 0  # bytes in this phase
        self.ended = False
        self.host = ""
        self._unsent = 0
        self._unsent_since = self.since

    # ------------------------------------------------------------------ called by uvicorn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self.guard.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended, on either side."""
        self.guard.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request arrived."""
        if self.ended:
            return
        if self.phase == "idle":
            self._enter("header")
        self.received += len(data)
        try:
            super().data_received(data)
        except (h11.ProtocolError, ValueError):  # valid for h11 but not for uvicorn
            self.guard.connection_log.count("invalid", self.host)
            self.cut()
        self._note_phase()

    def on_response_complete(self) -> None:
        """A response was sent; the received bytes may contain the next request."""
        self._enter("idle")
        super().on_response_complete()
        self._note_phase()

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not HTTP."""
        self.guard.connection_log.count("invalid", self.host)
        self.ended = True
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # a response has started: nothing else can be sent
            self.transport.close()

    # ------------------------------------------------------------------ phases

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since, self.received = phase, self.guard.now(), 0
        self.guard.entered_phase(self)

    def _note_phase(self) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return  # idle or in a header
        phase: Phase = "body" if cycle.more_body else "response"
        if phase != self.phase:
            self._enter(phase)

    def end_if_late(self, now: float) -> None:
        """End the connection if its client takes too long. Called every ``SWEEP_SECONDS``."""
        limits = self.guard.limits
        if self._is_stuck_sending(now):
            return self._end("send_timeout")
        if self.phase == "body" and self.flow.read_paused:
            self.since += SWEEP_SECONDS  # the server paused reading, which does not count
        if self.ended or now - self.since <= limits.seconds(self.phase, self.received):
            return
        if self.phase == "idle":
            return self.cut()
        self._end("header_timeout" if self.phase == "header" else "body_timeout")

    def _is_stuck_sending(self, now: float) -> bool:
        """Whether bytes wait to be sent, and the client has read none for too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        return now - self._unsent_since > self.guard.limits.send

    # ------------------------------------------------------------------ the end

    def _end(self, reason: str) -> None:
        self.guard.connection_log.count(reason, self.host)
        limits = self.guard.limits
        if reason == "header_timeout":
            detail = f"The header did not arrive within {limits.header:g} s"
            self.refuse(Problem(408, f"{detail} (GRADLEDGER_HEADER_TIMEOUT)."))
        elif reason == "body_timeout":
            detail = f"The body arrives more slowly than {limits.body_rate:,} bytes per second "
            detail += "(GRADLEDGER_BODY_TIMEOUT, GRADLEDGER_BODY_MIN_RATE). Send fewer records."
            self.refuse(Problem(408, detail))
        else:
            self.cut()

    def refuse(self, problem: Problem) -> None:
        """Respond with a problem, if no response has started, and close the connection."""
        if self.ended:
            return
        self.ended = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                return self.cut()
            cycle.scope["state"]["connection_ended"] = True
            cycle.disconnected = True
            cycle.message_event.set()
        response = problem.response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        try:
            head = h11.Response(status_code=response.status_code, headers=headers)
            parts = (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))
        except h11.LocalProtocolError:
            return self.cut()
        self.transport.close()

    def cut(self) -> None:
        """Abort the connection without a response."""
        self.ended = True
        self.transport.abort()


def protocol(guard: Guard) -> type[asyncio.Protocol]:
    """The protocol class for uvicorn whose connections ``guard`` limits."""
    return type("GuardedProtocol", (BoundedProtocol,), {"guard": guard})
