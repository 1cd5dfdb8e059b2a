"""Requests to a server that speaks JSON over HTTP: many at a time, tried again within a time, told in words.

It needs the standard library alone, and draws no random numbers: how long it waits is no part of what a step computes.
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
"""What a server answers that may do better in a while."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds between two tries: each time twice as many, unless the server says how many."""

MAX_SHOWN = 400
"""How many characters of an answer an error shows."""


class RequestError(Exception):
    """What is wrong with one request; it becomes an error of its row."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code, self.problem = code, problem


class _StoppedError(Exception):
    """A request is not tried again, since another one has failed for good."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the server: its status, its text, and what it says of when to ask again."""

    status: int
    text: str
    retry_after: str | None


class Client:
    """Asks one server for one model.

    Raises:
        ResourceError: HF812 for an address that is none, or a key that is not there.
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
        """What ``read`` makes of the answer to each body, which is the request of the row with its number.

        Raises:
            HfError: HF911 where the server is not there in time, HF912 where it refuses a request, HF913 where an
                answer is not what it should be; with the first such row. No other request is tried again then.
        """
        self._stopped.clear()
        with ThreadPoolExecutor(max(1, min(self._config.concurrency, len(bodies)))) as pool:
            asked = [pool.submit(self._request, path, body, read) for body in bodies]
            left: Collection[Future[T]] = asked
            try:
                _, left = wait(asked, return_when=FIRST_EXCEPTION)
            finally:  # where one failed, or the wait was interrupted
                if left:
                    self._stopped.set()
                    for one in left:
                        one.cancel()
        for row, one in enumerate(asked):
            error = None if one.cancelled() else one.exception()
            if isinstance(error, RequestError):
                raise bad_row(row, error.problem, error.code)
            if error is not None and not isinstance(error, _StoppedError):
                raise error
        return [one.result() for one in asked]

    def _request(self, path: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        answer = self._with_retries(path, json.dumps({"model": self._config.model, **body}).encode())
        try:
            value = json.loads(answer.text)
        except ValueError as error:
            raise RequestError("HF913", f"the answer is no JSON ({error}): {_short(answer.text)}") from None
        if not isinstance(value, dict):
            raise RequestError("HF913", f"the answer is no JSON object: {_short(answer.text)}")
        return read(value)

    def _with_retries(self, path: str, body: bytes) -> _Answer:
        """An answer with status 200.

        What may be better in a while is tried again, as long as no more than ``patience`` seconds have passed.
        """
        start, tries, pause = time.monotonic(), 0, FIRST_DELAY
        while True:
            tries += 1
            asked = None
            try:
                answer = self._attempt(path, body)
                if answer.status == 200:
                    return answer
                problem = f"the server answered {answer.status}: {_message(answer.text)}"
                if answer.status not in RETRYABLE:
                    raise RequestError("HF912", problem)
                asked = _seconds(answer.retry_after)
            except TimeoutError:
                problem = f"no answer within timeout={self._config.timeout:g} s"
            except (OSError, HTTPException) as error:
                problem = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            pause = min(pause, LONGEST_DELAY)
            seconds = pause if asked is None else max(asked, 0.0)
            if time.monotonic() - start + seconds > self._config.patience:
                where = f"POST {self._config.url.rstrip('/')}/{path}"
                times = f"{tries} tr{'y' if tries == 1 else 'ies'} within patience={self._config.patience:g} s"
                raise RequestError("HF911", f"{where} did not succeed in {times}; the last one: {problem}")
            if self._stopped.wait(seconds):
                raise _StoppedError
            pause *= 2

    def _attempt(self, path: str, body: bytes) -> _Answer:
        """One try, which takes ``timeout`` seconds at most; a connection is not used again, since servers drop them."""
        end = time.monotonic() + self._config.timeout
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=self._config.timeout)
        try:
            connection.connect()
            socket = connection.sock
            connection.request("POST", f"{self._url.path.rstrip('/')}/{path}", body, self._headers)
            response = _before(end, socket, connection.getresponse)
            text = b"".join(iter(lambda: _before(end, socket, lambda: response.read1(1 << 16)), b""))
            if _truncated(response, text):
                raise ConnectionError(f"the connection was cut after {len(text)} bytes")
            return _Answer(response.status, text.decode("utf-8", "replace"), response.headers.get("Retry-After"))
        finally:
            connection.close()


def _before(end: float, socket: Any, act: Callable[[], T]) -> T:
    """Do something that waits for the server, until the time is up."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    socket.settimeout(left)
    return act()


def _truncated(response: HTTPResponse, text: bytes) -> bool:
    """Whether a connection ended before the answer did; a chunked one tells by itself."""
    length = response.headers.get("Content-Length", "")
    return length.isdigit() and len(text) < int(length)


def _seconds(retry_after: str | None) -> float | None:
    """The seconds that a server asks to wait: a number, or a date; None where it says nothing that can be read.

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
    """What a server says is wrong, in one of the forms that servers have.

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
