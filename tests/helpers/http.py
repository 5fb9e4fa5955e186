"""HTTP requests as ``httpx2`` sends them, each on a connection of its own.

They share one TLS context: to load the certificates anew takes 25 ms of CPU time per request. And
they wait long for a response: after 5 s, as ``httpx2`` does, they would fail on a busy machine.
"""

from __future__ import annotations

import ssl
from functools import partial

import httpx2

from helpers.patience import HANGS

_TLS = ssl.create_default_context()

get = partial(httpx2.get, verify=_TLS, timeout=HANGS)
post = partial(httpx2.post, verify=_TLS, timeout=HANGS)
put = partial(httpx2.put, verify=_TLS, timeout=HANGS)
patch = partial(httpx2.patch, verify=_TLS, timeout=HANGS)
options = partial(httpx2.options, verify=_TLS, timeout=HANGS)
delete = partial(httpx2.delete, verify=_TLS, timeout=HANGS)
request = partial(httpx2.request, verify=_TLS, timeout=HANGS)
stream = partial(httpx2.stream, verify=_TLS, timeout=HANGS)
client = partial(httpx2.Client, verify=_TLS, timeout=HANGS)
