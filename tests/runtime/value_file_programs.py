"""Classes of values that recordings hold, as data and not."""

from __future__ import annotations

import enum
from collections import namedtuple
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import hfdsl as hf
from hfdsl import f32, i64


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B, R]
    tokens: i64[B, hf.Ragged[R]]
    thing: hf.Obj[Any, B]
    hint: f32[B] | None = None


class Color(enum.Enum):
    RED = "red"
    BLUE = 2


class Pair(NamedTuple):
    left: Any
    right: Any


Plain = namedtuple("Plain", ["only"])  # the older kind


@dataclass(frozen=True, slots=True)
class Config:
    rate: float
    inner: Any = None


@dataclass
class Counted:
    total: int
    made: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        raise AssertionError("nothing is constructed when data are read")

    @cached_property
    def double(self) -> int:
        return 2 * self.total


@dataclass
class Deleted:
    """A dataclass that does something when it goes away."""

    path: str

    def __del__(self) -> None: ...


class Tree:
    """Not data: its class could do anything."""

    def __init__(self, *children: Any) -> None:
        self.children = list(children)


def helper(x: float) -> float:
    return x + 1


class Evil:
    """Its pickle runs code."""

    def __reduce__(self) -> Any:
        return _ran, ()


def _ran() -> None:
    RAN.append(1)


RAN: list[int] = []
