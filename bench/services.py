"""Stub services in separate processes, to which the hooks send.

``accepts`` acknowledges everything, ``refuses`` answers 503, ``hangs`` accepts connections and
never answers, ``is down`` is an address where nothing listens.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = "http://127.0.0.1:9"
SERVICE = """
import http.server, json, socket, sys
kind = sys.argv[1]
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        text = json.dumps({"stored": 1, "duplicates": 0}).encode()
        self.send_response(200 if kind == "accepts" else 503)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *about):
        pass
if kind == "hangs":
    listening, connections = socket.create_server(("127.0.0.1", 0)), []
    print(listening.getsockname()[1], flush=True)
    while True:
        connections.append(listening.accept())
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def service(kind: str) -> Iterator[str]:
    """The address of a service of that kind."""
    if kind == "is down":
        yield NOBODY
        return
    command = [sys.executable, "-c", SERVICE, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
