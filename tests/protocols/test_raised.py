"""The error of a body, which is of the type that the body raised too."""

from __future__ import annotations

import errno
import pickle
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from hfdsl.errors import ProtocolError, RoleError, WiringError
from hfdsl.protocols.raised import as_raised


class QuotaError(Exception):
    """Takes other arguments than it hands on, and shows itself in its own way."""

    def __init__(self, user: str, *, limit: int | None) -> None:
        super().__init__()
        self.user, self.limit = user, limit

    def __str__(self) -> str:
        return f"{self.user} has {self.limit}"


class HttpError(ValueError):
    code = 404

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer
        self.message = "not found"


@dataclass(frozen=True)
class FrozenError(Exception):
    number: int


class SlottedError(LookupError):
    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key


class FinalError(KeyError):
    def __init_subclass__(cls) -> None:
        raise TypeError("final")


class NewError(OSError):
    def __new__(cls, number: int, *, name: str) -> NewError:
        return super().__new__(cls, number, name)

    def __init__(self, number: int, *, name: str) -> None:
        super().__init__(number, name)


class UnreadableError(ZeroDivisionError):
    """Pickles and cannot be read again."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def raised(original: BaseException, *, sent: bool) -> RoleError:
    error = as_raised(RoleError("HF806", "Actor.act raised it on rank 1"), original)
    return pickle.loads(pickle.dumps(error)) if sent else error


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize(
    ("original", "attributes"),
    [
        (ValueError("bad"), {"args": ("bad",)}),
        (KeyError("x"), {"args": ("x",)}),
        (QuotaError("alice", limit=3), {"user": "alice", "limit": 3}),
        (QuotaError("bob", limit=None), {"limit": None}),
        (FrozenError(5), {"number": 5}),
        (SlottedError("k"), {"key": "k"}),
        (FileNotFoundError(errno.ENOENT, "gone", "a.txt"), {"errno": errno.ENOENT, "filename": "a.txt"}),
        (NewError(5, name="n"), {"errno": 5, "strerror": "n"}),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"), {"start": 0, "reason": "bad byte"}),
        (ExceptionGroup("two", [ValueError("a")]), {"message": "Actor.act raised it on rank 1"}),
        (StopIteration(7), {"value": 7}),
        (ImportError("no", name="missing"), {"name": "missing"}),
        (ProtocolError("HF413", "no rows"), {}),
        (WiringError("HF202", "no column"), {}),
        (UnreadableError(), {}),
        (RuntimeError("plain"), {}),
        (TimeoutError(), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_of_both_types(original: BaseException, attributes: dict[str, Any], sent: bool) -> None:
    error = raised(original, sent=sent)
    assert isinstance(error, RoleError)
    assert isinstance(error, type(original))
    assert (error.code, error.message) == ("HF806", "Actor.act raised it on rank 1")
    assert str(error) == "HF806: Actor.act raised it on rank 1"
    assert {name: getattr(error, name) for name in attributes} == attributes


@pytest.mark.parametrize("sent", [False, True])
def test_code_and_message_are_those_of_hfdsl(sent: bool) -> None:
    error = raised(HttpError({"body": 1}), sent=sent)
    assert isinstance(error, HttpError)
    assert (error.code, error.message, error.answer) == ("HF806", "Actor.act raised it on rank 1", {"body": 1})


@pytest.mark.parametrize("sent", [False, True])
def test_a_class_that_cannot_be_a_base_is_skipped(sent: bool) -> None:
    error = raised(FinalError("x"), sent=sent)
    assert isinstance(error, KeyError)
    assert not isinstance(error, FinalError)
    assert error.args == ("x",)


def test_attributes_that_cannot_be_pickled_are_omitted() -> None:
    error = raised(HttpError(threading.Lock()), sent=True)
    assert isinstance(error, HttpError)
    assert error.args == ()
    assert not hasattr(error, "answer")


def test_a_class_that_the_caller_cannot_import_leaves_its_place_to_its_base() -> None:
    class LocalError(IndexError):
        """Of no module: pickle sends it by name, in vain."""

    error = as_raised(RoleError("HF806", "text"), LocalError())
    assert isinstance(error, LocalError)
    LocalError.__qualname__ = "Nowhere"
    sent = pickle.loads(pickle.dumps(error))
    assert isinstance(sent, IndexError)
    assert str(sent) == "HF806: text"


def test_a_second_trip_changes_nothing() -> None:
    error = raised(QuotaError("alice", limit=3), sent=True)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, QuotaError)
    assert (again.user, again.limit, str(again)) == ("alice", 3, str(error))
