"""A listener on loopback that answers for a vLLM server, as a load balancer or a proxy does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: In place of a status: the connection is closed without an answer, as by a server that isn't up.
CLOSED = 0


@dataclass
class FrontDoor:
    """The address to ask, and the paths that were asked for so far."""

    address: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def answering(statuses: Sequence[int], behind: str = "") -> Iterator[FrontDoor]:
    """Answer the first questions with ``statuses``, then send each on to the server ``behind``.

    Without a server behind it answers for one that is up.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            door.asked.append(self.path)
            number = len(door.asked) - 1
            if number >= len(statuses):
                self.answer(307 if behind else 200)
            elif statuses[number] != CLOSED:
                self.answer(statuses[number])

        do_POST = do_GET

        def answer(self, status: int) -> None:
            body = b'{"data": [{"id": "model"}]}'  # of /v1/models, which newer clients ask for
            self.send_response(status)
            if status == 307:
                self.send_header("Location", behind + self.path)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        door = FrontDoor(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield door
        finally:
            server.shutdown()


@contextmanager
def nobody() -> Iterator[str]:
    """Keep a port that nobody listens on, and yield its address."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"
