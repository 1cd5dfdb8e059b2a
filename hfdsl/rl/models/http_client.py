"""Requests to a server that speaks JSON over HTTP: many at a time, with retries until a deadline.

The module needs the standard library only. Delays between retries have no jitter, so a step draws the same random
numbers whether or not a request is retried.

A server may do anything: dribble its headers, send without end, ask for immediate retries forever, or echo the key in
its answer. Socket timeouts restart with every byte, so each try runs on a thread of its own; at the deadline the
request stops waiting for it and shuts the connection. Answers have a size limit, and error messages redact the
credentials of the request.
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from hfdsl.errors import ResourceError
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import ServerConfig, without_credentials
from hfdsl.rl.workers.server_config import address_problem
from hfdsl.types.foreign_text import parse_json, parse_object

T = TypeVar("T")

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
"""The statuses after which a retry may succeed."""

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""The seconds before the first retry, which double each time up to the second number, unless the server names a delay
longer than the first."""

MAX_ANSWER_BYTES = 64 * 2**20
"""The most bytes of an answer; one of 128,000 tokens with their log-probs has about 8 MiB."""

MAX_EXCERPT, MAX_PROBLEM = 400, 2000
"""The most characters of an answer in an error, and of the error's own text."""

NAME_OF_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
"""A usual name of an environment variable; anything else may be the key itself, and no message shows it."""

SHORTEST_SECRET = 4
"""The fewest characters of a secret; a shorter text may be part of any word."""


class RequestError(Exception):
    """A failed request, which becomes an error of its row; an excerpt of the server's answer ends its message."""

    def __init__(self, code: str, problem: str, excerpt: str | None = None) -> None:
        super().__init__(problem)
        self.code, self.problem, self.excerpt = code, problem, excerpt


class _StoppedError(Exception):
    """Ends the retries of a request after another one has failed for good."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the server."""

    status: int
    text: str
    retry_after: str | None
    """The header ``Retry-After``."""


class Client:
    """Sends requests for one model to one server.

    Raises:
        ResourceError: HF812 for a malformed address, or a key whose environment variable is not set.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config, self._url = config, _address(config.url)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        credentials = ":".join(unquote(part or "") for part in (self._url.username, self._url.password))
        if credentials != ":":
            self._headers["Authorization"] = f"Basic {base64.b64encode(credentials.encode()).decode()}"
        if config.api_key is not None:
            self._headers["Authorization"] = f"Bearer {_key(config.api_key)}"
        self._redacted = _redaction(self._url, self._headers.get("Authorization", ""))
        self._stopped = threading.Event()
        self._exchanges: set[_Exchange] = set()

    def ask(self, path: str, bodies: Sequence[dict[str, Any]], parse: Callable[[dict[str, Any]], T]) -> list[T]:
        """Send the request of every row, and return the parsed answers in the order of the rows.

        Raises:
            HfError: HF911 if the server does not answer in time, HF912 if it refuses a request, HF913 if an answer is
                malformed; the error names the first such row. Other requests are then not retried.
        """
        self._stopped.clear()
        with ThreadPoolExecutor(max(1, min(self._config.concurrency, len(bodies)))) as pool:
            futures = [pool.submit(self._request, path, body, parse) for body in bodies]
            unfinished: Collection[Future[T]] = futures
            try:
                _, unfinished = wait(futures, return_when=FIRST_EXCEPTION)
            except BaseException:
                for exchange in list(self._exchanges):
                    exchange.abort()
                raise
            finally:  # a request failed, or Ctrl-C interrupted the wait: else leaving the pool would wait for retries
                if unfinished:
                    self._stopped.set()
                    for future in unfinished:
                        future.cancel()
        for row, future in enumerate(futures):
            error = None if future.cancelled() else future.exception()
            if isinstance(error, RequestError):
                raise bad_row(row, self._text(error), error.code)
            if error is not None and not isinstance(error, _StoppedError):
                raise error
        return [future.result() for future in futures]

    def _text(self, error: RequestError) -> str:
        """The message of an error, without credentials."""
        excerpt = "" if error.excerpt is None else f": {_short(self._redacted(error.excerpt))}"
        return _short(self._redacted(error.problem), MAX_PROBLEM) + excerpt

    def _request(self, path: str, body: dict[str, Any], parse: Callable[[dict[str, Any]], T]) -> T:
        answer = self._with_retries(path, json.dumps({"model": self._config.model, **body}).encode())
        try:
            value = parse_json(answer.text)
        except ValueError as error:
            raise RequestError("HF913", f"the answer is not JSON ({error})", answer.text) from None
        if not isinstance(value, dict):
            raise RequestError("HF913", "the answer is not a JSON object", answer.text)
        return parse(value)

    def _with_retries(self, path: str, body: bytes) -> _Answer:
        """The answer with status 200, within ``patience`` seconds; without patience there is one try."""
        start, tries, backoff = time.monotonic(), 0, FIRST_DELAY
        timeout, patience = self._config.timeout, self._config.patience
        problem, excerpt = "", None
        while True:
            tries += 1
            requested_delay = None
            seconds = min(timeout, max(patience - (time.monotonic() - start), 0.0)) if patience else timeout
            try:
                answer = self._attempt(path, body, seconds)
                if answer.status == 200:
                    return answer
                problem, excerpt = f"the server answered {answer.status}", _message(answer.text)
                if answer.status not in RETRYABLE:
                    raise RequestError("HF912", problem, excerpt)
                requested_delay = _seconds(answer.retry_after)
            except TimeoutError:
                if tries == 1 or seconds == timeout:  # else patience cut this try short, and the one before says more
                    problem, excerpt = f"no answer within {'timeout=' * (seconds == timeout)}{seconds:.3g} s", None
            except (OSError, HTTPException) as error:
                problem, excerpt = type(error).__name__, str(getattr(error, "strerror", None) or error)
            backoff = min(backoff, LONGEST_DELAY)
            delay = backoff if requested_delay is None else requested_delay
            if time.monotonic() - start + delay >= patience:
                request = f"POST {without_credentials(self._config.url).rstrip('/')}/{path}"
                times = f"{tries} tr{'y' if tries == 1 else 'ies'} within patience={patience:g} s"
                raise RequestError(
                    "HF911", f"{request} did not succeed in {times}; the last one: {problem}", excerpt
                ) from None
            if self._stopped.wait(delay):
                raise _StoppedError
            backoff *= 2

    def _attempt(self, path: str, body: bytes, seconds: float) -> _Answer:
        """One try of at most ``seconds``, on a connection of its own, since servers drop idle ones."""
        query = f"?{self._url.query}" if self._url.query else ""
        exchange = _Exchange(self._url, seconds, (f"{self._url.path.rstrip('/')}/{path}{query}", body, self._headers))
        self._exchanges.add(exchange)
        try:
            return exchange.answer(seconds)
        finally:
            self._exchanges.discard(exchange)


class _Exchange:
    """One request and its answer, on a thread that is abandoned if it takes too long."""

    def __init__(self, url: SplitResult, timeout: float, request: tuple[str, bytes, dict[str, str]]) -> None:
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        self._connection = kind(url.hostname or "", url.port, timeout=max(timeout, 1e-3))
        self._request, self._aborted = request, False
        self._socket: socket.socket | None = None
        self._outcome: Future[_Answer] = Future()

    def answer(self, seconds: float) -> _Answer:
        """The answer, within ``seconds``.

        Raises:
            TimeoutError: if it is not complete by then.
            RequestError: HF913 if it is too long.
            OSError, HTTPException: if the connection fails or is aborted.
        """
        threading.Thread(target=self._run, daemon=True).start()
        try:
            return self._outcome.result(seconds)
        finally:
            self.abort()

    def abort(self) -> None:
        """Shut the connection, if there is one, so that the thread ends."""
        self._aborted = True
        if self._socket is not None:
            with suppress(OSError):  # it may be shut already
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._exchange())
        except (OSError, HTTPException, RequestError) as error:
            self._outcome.set_exception(error)
        except Exception as error:  # noqa: BLE001  # a malformed answer may raise anything within http.client
            self._outcome.set_exception(ConnectionError(f"{type(error).__name__}: {error}"))
        finally:
            self._connection.close()

    def _exchange(self) -> _Answer:
        self._connection.connect()
        self._socket = self._connection.sock
        if self._aborted:
            raise ConnectionAbortedError
        self._connection.request("POST", *self._request)
        # A response that ends its connection takes over the socket, so closing the connection would not close it.
        with self._connection.getresponse() as response:
            parts, size = [], 0
            while part := response.read1(1 << 16):
                parts.append(part)
                size += len(part)
                if size > MAX_ANSWER_BYTES:
                    raise RequestError("HF913", f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            if _truncated(response, size):
                problem = f"the connection was cut after {size} bytes"
                raise ConnectionError(problem)
            text = b"".join(parts).decode("utf-8", "replace")
            return _Answer(response.status, text, response.headers.get("Retry-After"))


def _address(text: str) -> SplitResult:
    """The parts of a server's address; HF812 for a malformed one."""
    problem = address_problem(text)
    if problem is not None:
        raise ResourceError("HF812", problem)
    return urlsplit(text)


def _key(variable: str) -> str:
    """The key in an environment variable; HF812 without a key, or for one that no header can hold."""
    label = repr(variable) if NAME_OF_VARIABLE.fullmatch(variable) else "..."
    key = os.environ.get(variable, "").strip() if variable and "=" not in variable and "\0" not in variable else ""
    if not key:
        raise ResourceError(
            "HF812",
            f"a ServerConfig has api_key={label}, the name of the environment variable that holds the key, but there "
            "is none on the worker; launch(..., worker_env={...}) sets one",
        )
    if not key.isascii() or not key.isprintable():
        raise ResourceError(
            "HF812", f"a ServerConfig has api_key={label}, whose key has characters other than printable ASCII"
        )
    return key


def _redaction(url: SplitResult, authorization: str) -> Callable[[str], str]:
    """A function that redacts the credentials of requests in a text."""
    values = [value for _, _, value in (part.partition("=") for part in url.query.split("&"))]
    raw = {url.username or "", url.password or "", authorization.partition(" ")[2], *values}
    raw |= {unquote(secret) for secret in raw}
    secrets = {form for secret in raw for form in (secret, json.dumps(secret)[1:-1]) if len(secret) >= SHORTEST_SECRET}
    if not secrets:
        return lambda text: text
    pattern = re.compile("|".join(re.escape(secret) for secret in sorted(secrets, key=len, reverse=True)))
    return lambda text: pattern.sub("***", text)


def _truncated(response: HTTPResponse, size: int) -> bool:
    """Whether the connection closed before the end of the answer; ``http.client`` notices it in chunked ones only."""
    length = response.headers.get("Content-Length", "")
    return length.isdecimal() and len(length) < 20 and size < int(length)


def _seconds(retry_after: str | None) -> float | None:
    """The seconds of a header ``Retry-After``, a number or a date; None for anything else or a negligible delay.

    >>> _seconds("1.5"), _seconds("soon"), _seconds("nan"), _seconds("-5"), _seconds("0"), _seconds(None)
    (1.5, None, None, None, None, None)
    """
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if seconds >= FIRST_DELAY else None  # NaN compares false


def _message(text: str) -> str:
    """The message in the body of an error, in any of the usual forms.

    >>> _message('{"error": {"message": "too long", "type": "BadRequest"}}'), _message("<html>")
    ('too long', '<html>')
    """
    try:
        value: Any = parse_object(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str, limit: int = MAX_EXCERPT) -> str:
    """A text in printable characters, cut for a message.

    >>> _short(""), _short("a" + chr(0xD800) + chr(27)), _short("abcd", limit=2)
    ('nothing', 'a??', 'ab ...')
    """
    printable = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text[:limit])
    return (printable if len(text) <= limit else f"{printable} ...") or "nothing"
