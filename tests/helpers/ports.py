"""TCP ports for servers that start later, in other processes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port on which nothing listens until a server starts there.

    A port that is only chosen may be another connection's when the server starts. This one is
    bound: the kernel gives it to nobody, and whoever asks for it by its number may have it. It is
    bound on all addresses, because ``TCPStore`` listens on all of them: a port that is free on
    127.0.0.1 alone may belong to a connection from another address.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("", 0))
        yield reserved.getsockname()[1]
