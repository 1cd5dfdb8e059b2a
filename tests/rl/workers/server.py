"""A small server that speaks what the ready-made roles need of the OpenAI API, and fails on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]
"""What the server does with a request instead of answering it."""


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """As many tokens as the prompt has, one more each; the log-prob of a token is minus a tenth of it."""
    tokens = [token % 14 + 2 for token in body["prompt"]][: body["max_tokens"]]
    tokens = tokens if not body.get("seed", 0) % 2 else tokens[::-1]
    log_probs = {
        "tokens": [f"token_id:{token}" for token in tokens],
        "token_logprobs": [-token / 10 for token in tokens],
    }
    return {"index": 0, "text": "", "finish_reason": "stop", "token_ids": tokens, "logprobs": log_probs}


def judgement(body: dict[str, Any]) -> dict[str, Any]:
    """A mark for how often there is an "a" in what is asked."""
    answer = f"I count from 1. Mark: {body['messages'][-1]['content'].count('a')}.5"
    return {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}


@dataclass
class Server:
    """What a server has been asked, and how it answers. ``faults`` come first, in their order, one a request."""

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    answer: dict[str, Any] | None = None  # instead of one that is made of the request
    models: tuple[str, ...] = ()  # those that it has; any, where none are named
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    now: int = 0
    most: int = 0
    pause: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            self.asked.append((handler.path, dict(handler.headers), body))
            fault = self.faults.pop(0) if self.faults else None
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.pause)
        with self.lock:
            self.now -= 1  # before the answer, which makes room for the next request
        if fault is not None:
            fault(handler, body)
        elif self.models and body["model"] not in self.models:
            send(handler, 404, json.dumps({"error": {"message": f"The model `{body['model']}` does not exist."}}))
        else:
            choice = judgement(body) if handler.path.endswith("/chat/completions") else completion(body)
            send(handler, 200, json.dumps(self.answer or {"object": "x", "model": body["model"], "choices": [choice]}))


def send(handler: BaseHTTPRequestHandler, status: int, text: str, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(text.encode())


def says(status: int, text: str, **headers: str) -> Fault:
    return lambda handler, _: send(handler, status, text, **headers)


def cut(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    """Half an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')


def drips(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
    """An answer a byte at a time, for much longer than anybody waits."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _byte in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass  # nobody listens any more


@contextmanager
def serving(*faults: Fault, **options: Any) -> Iterator[Server]:
    """A server on a port of this machine, while the block runs."""
    server = Server(faults=list(faults), **options)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.take(self)

        def log_message(self, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 128

        def handle_error(self, *args: Any) -> None: ...  # a client that does not wait is not an error of the server's

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
