"""Servers that lie, on loopback: each lie ends in time and in a coded error, without the credentials that were sent."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from io import StringIO
from typing import Any

import pytest

from hfdsl.errors import HfError, ResourceError
from hfdsl.rl.models import http_client
from hfdsl.rl.models.http_client import Client, RequestError
from hfdsl.rl.models.openai_api import _completion
from hfdsl.rl.workers.config import ServerConfig
from tests.rl.workers.server import Fault, Server, says, serving

pytestmark = pytest.mark.timeout(60)  # a client that believes these servers waits for minutes

BODY = {"prompt": [3], "max_tokens": 1}
KEY = 'sk-"very"-secret/value'


def ask(server: Server, path: str = "", **changes: Any) -> list[Any]:
    config = ServerConfig(server.url + path, "small", **{"timeout": 0.4, "patience": 0.4, **changes})
    return Client(config).ask("completions", [BODY], lambda answer: answer)


def refused(fault: Fault, path: str = "", **changes: Any) -> tuple[HfError, Server]:
    """The error of a request to a server that does nothing else."""
    with serving(*[fault] * 10_000) as server, pytest.raises(HfError) as error:
        ask(server, path, **changes)
    return error.value, server


def raw(*parts: bytes, pause: float = 0.0, times: int = 1) -> Fault:
    """Sends these bytes, without an end if ``times`` is large."""

    def fault(handler: BaseHTTPRequestHandler, _: dict[str, Any]) -> None:
        try:
            for part in parts[:-1]:
                handler.wfile.write(part)
            for _time in range(times):
                handler.wfile.write(parts[-1])
                time.sleep(pause)
        except OSError:
            pass  # nobody listens any more

    return fault


@pytest.mark.parametrize("delay", ["nan", "-5", "0", "-inf", "0.0000001", "Wed, 21 Oct 2015 07:28:00 GMT", "", "9" * 9])
def test_no_delay_that_a_server_names_makes_the_client_spin(delay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_DELAY", 0.05)
    error, server = refused(says(503, "busy", Retry_After=delay))
    assert error.code == "HF911"
    assert len(server.asked) <= 4  # after 0.05, 0.15 and 0.35 s


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (raw(OK, b"a: b\r\n", pause=0.05, times=80), "HF911"),  # headers without an end
        (raw(b"H", pause=0.05, times=80), "HF911"),
        (raw(OK + b"a: ", b"b", pause=0.05, times=80), "HF911"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.05, times=80), "HF911"),
        (raw(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", pause=0.05, times=80), "HF911"),
        (raw(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n"), "HF911"),
        (raw(OK, b"a: b\r\n", times=1000), "HF911"),  # more headers than anybody sends
        (raw(b"\x1b[2J nonsense\r\n\r\n"), "HF911"),
        (raw(b""), "HF911"),
        (raw(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{"), "HF913"),
        (says(200, "[" * 100_000), "HF913"),
        (says(200, '{"a": "\\ud800"'), "HF913"),
        (says(200, '{"a": ' + "9" * 5000 + "}"), "HF913"),
        (says(418, '{"error": ' * 500), "HF912"),
        (says(400, '{"error": "\\ud800"}'), "HF912"),
    ],
)
def test_what_is_no_answer_ends_in_time_and_in_a_code(fault: Fault, code: str) -> None:
    error, _ = refused(fault)
    assert error.code == code
    str(error).encode()  # no halves of surrogate pairs
    assert "\x1b" not in str(error)
    assert len(str(error)) < 3000


def test_an_answer_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 10_000)
    error, _ = refused(raw(OK + b"\r\n", b" " * 1000, times=10**6), timeout=20, patience=20)
    assert error.code == "HF913"
    assert "the answer is longer than 10000 bytes" in str(error)


def test_a_try_ends_with_the_patience_for_all_of_them() -> None:
    error, _ = refused(raw(OK, b"a: b\r\n", pause=0.05, times=400), timeout=60, patience=0.3)
    assert "within patience=0.3 s; the last one: no answer within 0.3 s" in str(error)


# -- credentials


@contextmanager
def logged() -> Iterator[StringIO]:
    """Everything that is logged meanwhile."""
    log, root = StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(log), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield log
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


@pytest.mark.parametrize(
    "fault",
    [
        says(200, f"no such key: {KEY}"),
        says(401, f"no such key: {KEY}"),
        says(401, json.dumps({"error": {"message": f"{'x' * 390}{KEY}"}})),  # where the message would be cut
        says(500, json.dumps({"error": {"code": KEY}})),
        raw(KEY.encode() + b"\r\n\r\n"),
    ],
)
def test_a_key_that_a_server_repeats_is_not_shown(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", f"{KEY}\n")  # as a file that holds one ends
    with logged() as log:
        error, server = refused(fault, api_key="SERVER_KEY")
    assert {headers["Authorization"] for _, headers, _ in server.asked} == {f"Bearer {KEY}"}
    assert "very" not in str(error) + log.getvalue()
    assert error.__cause__ is None


def test_credentials_in_an_address_are_sent_and_not_shown() -> None:
    config = ServerConfig("http://me:pass%20word@127.0.0.1:1/v1?key=hidden", "small")
    assert "http://***@127.0.0.1:1/v1'" in repr(config)
    with serving(says(403, "hidden, pass word, pass%20word, bWU6cGFzcyB3b3Jk")) as server:
        server.url = server.url.replace("//", "//me:pass%20word@")
        with pytest.raises(HfError) as error:
            ask(server, "?key=hidden")
    ((path, headers, _),) = server.asked
    assert (path, headers["Authorization"]) == ("/v1/completions?key=hidden", "Basic bWU6cGFzcyB3b3Jk")
    assert str(error.value) == "HF912: row 0: the server answered 403: ***, ***, ***, ***"
    with pytest.raises(HfError) as error:
        ask(server, "?key=hidden")  # where nobody listens any more
    assert "POST http://***@127.0.0.1:" in str(error.value)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "key", "value"),
    [
        ("http://me:hidden@h:99999/v1", None, ""),
        ("http://me:hidden@[::1/v1", None, ""),
        ("me:hidden@h/v1", None, ""),
        ("http://h/v1 \n?key=hidden", None, ""),
        ("http://h/v1", "sk-hidden", ""),
        ("http://h/v1", "SERVER_KEY", "hidden\x00"),
        ("http://h/v1", "SERVER_KEY", "hidden\nX: y"),
        ("http://h/v1", "SERVER_KEY", "hiddené"),
    ],
)
def test_a_configuration_that_cannot_be_sent_is_refused_without_its_secrets(
    url: str, key: str | None, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"SERVER_KEY": value})
    with pytest.raises(ResourceError, match="HF812") as error:
        Client(ServerConfig(url, "small", api_key=key))
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize("number", [10**400, -(10**400), float("-inf"), -1e300, "0", None])
def test_a_log_prob_is_a_number_that_a_tensor_holds(number: Any) -> None:
    choice: dict[str, Any] = {"finish_reason": "stop", "token_ids": [3], "logprobs": {"token_logprobs": [number]}}
    with pytest.raises(RequestError, match="expected a number up to 0"):
        _completion({"choices": [choice]}, 1)
    choice["token_ids"], choice["logprobs"] = None, {"token_logprobs": [-1.0], "tokens": ["token_id:" + "9" * 5000]}
    with pytest.raises(RequestError, match="the answer has no token_ids"):
        _completion({"choices": [choice]}, 1)
