"""Requests to a server that speaks JSON over HTTP: many at a time, with retries until a deadline.

It needs the standard library only. Delays between retries have no random part, so a step draws the same random numbers
whether a request is retried or not.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import urlsplit

from hfdsl.errors import ResourceError
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import ServerConfig

T = TypeVar("T")

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
"""The statuses after which a retry may succeed."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""The seconds before the first retry, doubled each time up to the second number, unless the server names a delay."""

MAX_SHOWN = 400
"""The most characters of an answer that an error shows."""


class RequestError(Exception):
    """A failed request, which becomes an error of its row."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem


class _StoppedError(Exception):
    """A request is not retried, since another one has failed for good."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the server."""

    status: int
    text: str
    retry_after: str | None
    """Its header ``Retry-After``."""


class Client:
    """Sends requests for one model to one server.

    Raises:
        ResourceError: HF812 for a malformed address, or a key whose environment variable is not set.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config, self._url = config, urlsplit(config.url)
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ResourceError(
                "HF812", f'a ServerConfig needs url="http://host:port/v1" or one with https, got {config.url!r}'
            )
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if config.api_key is not None:
            if not os.environ.get(config.api_key):
                raise ResourceError(
                    "HF812",
                    f"a ServerConfig has api_key={config.api_key!r}, the name of the environment variable that holds "
                    "the key, and there is none on the worker; launch(..., worker_env={...}) sets one",
                )
            self._headers["Authorization"] = f"Bearer {os.environ[config.api_key]}"
        self._stopped = threading.Event()

    def ask(self, path: str, bodies: Sequence[dict[str, Any]], read: Callable[[dict[str, Any]], T]) -> list[T]:
        """Send the request of every row, and return what ``read`` makes of each answer, in the order of the rows.

        Raises:
            HfError: HF911 where the server does not answer in time, HF912 where it refuses a request, HF913 where an
                answer is malformed; the error names the first such row. Other requests are not retried then.
        """
        self._stopped.clear()
        with ThreadPoolExecutor(max(1, min(self._config.concurrency, len(bodies)))) as pool:
            futures = [pool.submit(self._request, path, body, read) for body in bodies]
            unfinished: Collection[Future[T]] = futures
            try:
                _, unfinished = wait(futures, return_when=FIRST_EXCEPTION)
            finally:  # a request failed, or Ctrl-C interrupted the wait: else leaving the pool would wait for retries
                if unfinished:
                    self._stopped.set()
                    for future in unfinished:
                        future.cancel()
        for row, future in enumerate(futures):
            error = None if future.cancelled() else future.exception()
            if isinstance(error, RequestError):
                raise bad_row(row, error.problem, error.code)
            if error is not None and not isinstance(error, _StoppedError):
                raise error
        return [future.result() for future in futures]

    def _request(self, path: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        answer = self._with_retries(path, json.dumps({"model": self._config.model, **body}).encode())
        try:
            value = json.loads(answer.text)
        except ValueError as error:
            raise RequestError("HF913", f"the answer is not JSON ({error}): {_short(answer.text)}") from None
        if not isinstance(value, dict):
            raise RequestError("HF913", f"the answer is not a JSON object: {_short(answer.text)}")
        return read(value)

    def _with_retries(self, path: str, body: bytes) -> _Answer:
        """The answer with status 200; retries end ``patience`` seconds after the first try."""
        start, tries, backoff = time.monotonic(), 0, FIRST_DELAY
        while True:
            tries += 1
            requested_delay = None
            try:
                answer = self._attempt(path, body)
                if answer.status == 200:
                    return answer
                problem = f"the server answered {answer.status}: {_message(answer.text)}"
                if answer.status not in RETRYABLE:
                    raise RequestError("HF912", problem)
                requested_delay = _seconds(answer.retry_after)
            except TimeoutError:
                problem = f"no answer within timeout={self._config.timeout:g} s"
            except (OSError, HTTPException) as error:
                problem = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            backoff = min(backoff, LONGEST_DELAY)
            delay = backoff if requested_delay is None else max(requested_delay, 0.0)
            if time.monotonic() - start + delay > self._config.patience:
                where = f"POST {self._config.url.rstrip('/')}/{path}"
                times = f"{tries} tr{'y' if tries == 1 else 'ies'} within patience={self._config.patience:g} s"
                raise RequestError("HF911", f"{where} did not succeed in {times}; the last one: {problem}")
            if self._stopped.wait(delay):
                raise _StoppedError
            backoff *= 2

    def _attempt(self, path: str, body: bytes) -> _Answer:
        """One try of at most ``timeout`` seconds, on a connection of its own, since servers drop idle connections."""
        deadline = time.monotonic() + self._config.timeout
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._config.timeout)
        try:
            connection.connect()
            socket = connection.sock
            connection.request("POST", f"{self._url.path.rstrip('/')}/{path}", body, self._headers)
            response = _before(deadline, socket, connection.getresponse)
            text = b"".join(iter(lambda: _before(deadline, socket, lambda: response.read1(1 << 16)), b""))
            if _truncated(response, text):
                raise ConnectionError(f"the connection was cut after {len(text)} bytes")
            return _Answer(response.status, text.decode("utf-8", "replace"), response.headers.get("Retry-After"))
        finally:
            connection.close()


def _before(deadline: float, socket: Any, receive: Callable[[], T]) -> T:
    """Receive from the server before the deadline.

    A socket's own timeout restarts with every read, so a server that sends a byte now and then would never time out.
    """
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    socket.settimeout(remaining)
    return receive()


def _truncated(response: HTTPResponse, text: bytes) -> bool:
    """Whether the connection closed before the end of the answer; ``http.client`` notices it for chunked ones only."""
    length = response.headers.get("Content-Length", "")
    return length.isdigit() and len(text) < int(length)


def _seconds(retry_after: str | None) -> float | None:
    """The seconds of a header ``Retry-After``, a number or a date; None for anything else.

    >>> _seconds("1.5"), _seconds("soon"), _seconds(None)
    (1.5, None, None)
    """
    if retry_after is None:
        return None
    try:
        return float(retry_after)
    except ValueError:
        pass
    try:
        return (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None


def _message(text: str) -> str:
    """The message in an error's body, in any of the usual forms.

    >>> _message('{"error": {"message": "too long", "type": "BadRequest"}}'), _message("<html>")
    ('too long', '<html>')
    """
    try:
        value = json.loads(text)
    except ValueError:
        return _short(text)
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return _short(value if isinstance(value, str) else json.dumps(value))


def _short(text: str) -> str:
    return (text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ...") or "nothing"
