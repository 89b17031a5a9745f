"""A loopback proxy that passes requests on to a server, and does to some of them what networks do.

It counts: the first so many requests that match are spoiled, whatever the time, so that tests do not depend on it.
"""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Matches = Callable[[str, str], bool]

REFUSALS = {"500": "InternalError", "403": "AccessDenied", "301": "PermanentRedirect"}


class FaultyProxy:
    """A proxy before the server at `target`.

    Attributes:
        url: its address.
        requests: what was asked, as (method, path, range).
        spoiled: how many requests were spoiled, by fault.
    """

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("http://")
        self.requests: list[tuple[str, str, str]] = []
        self.spoiled: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._fault, self._left, self._matches = "", 0, lambda method, path: False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                proxy.handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass  # a client that has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def spoil(self, fault: str, times: int, matches: Matches = lambda method, path: True) -> None:
        """Spoil the next `times` requests that match: `"500"`, `"cut"`, `"slow"`, `"403"` or `"301"`."""
        with self._lock:
            self._fault, self._left, self._matches = fault, times, matches
            self.requests, self.spoiled = [], Counter()

    def heal(self) -> None:
        """Let everything pass."""
        self.spoil("", 0)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fate(self, method: str, path: str) -> str:
        with self._lock:
            if self._left <= 0 or not self._matches(method, path):
                return ""
            self._left -= 1
            self.spoiled[self._fault] += 1
            return self._fault

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length) if length else b""
        with self._lock:
            self.requests.append((request.command, request.path, request.headers.get("Range", "")))
        fate = self._fate(request.command, request.path)
        if fate in REFUSALS:
            code, name = int(fate), REFUSALS[fate]
            text = f"<Error><Code>{name}</Code><Message>on purpose</Message></Error>".encode()
            request.send_response(code)
            request.send_header("Content-Length", str(len(text)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(text)
            return
        upstream = http.client.HTTPConnection(self.target, timeout=300)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("connection", "expect")}
        upstream.request(request.command, request.path, body or None, headers)
        answer = upstream.getresponse()
        data = answer.read()
        request.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                request.send_header(key, value)
        size = answer.getheader("Content-Length") if request.command == "HEAD" else len(data)
        request.send_header("Content-Length", str(size or 0))
        request.end_headers()
        upstream.close()
        if request.command == "HEAD":
            return
        if fate == "cut":  # the answer has begun, and does not come to its end
            request.wfile.write(data[: len(data) // 2])
            request.wfile.flush()
            request.close_connection = True
            request.connection.close()
        elif fate == "slow":
            for start in range(0, len(data), max(len(data) // 8, 1)):
                request.wfile.write(data[start : start + max(len(data) // 8, 1)])
                request.wfile.flush()
                time.sleep(0.01)
        else:
            request.wfile.write(data)
