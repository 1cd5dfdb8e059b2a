"""What ``hf.queue`` refuses, in words: numbers that no count can be, and values without rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, register

QUEUE: Any = hf.queue
"""A type checker refuses these arguments, too."""


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def made(self, rows: Rows) -> Rows: ...  # type: ignore[empty-body]  # never called

    @register(Dispatch.DP_PROTO)
    def nothing(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    def loose(self, rows: Rows) -> hf.f32[B]: ...  # type: ignore[empty-body]  # as above

    @register(Dispatch.ONE_TO_ALL)
    def counted(self, rows: Rows) -> int: ...  # type: ignore[empty-body]  # as above


def finding(queued: Callable[[Any, Any], Any]) -> hf.Finding:
    """The only finding of a dataflow that queues something."""

    @hf.dataflow
    def flow(rows: Rows, role: Role) -> Rows:
        result: Rows = queued(rows, role)
        return result

    [only] = flow.check().findings
    return only


@pytest.mark.parametrize("number", [2**63, 2**70, 10**400], ids=["2**63", "2**70", "400 digits"])
@pytest.mark.parametrize(
    ("argument", "takes"),
    [
        ("lag", "lag= takes a whole number of updates, 2**63 - 1 or less, got"),
        ("rows", "rows= takes a whole number of rows, 2**63 - 1 or less, or a dim, got"),
        ("group", "group= takes a whole number of rows, 2**63 - 1 or less, got"),
    ],
)
def test_the_limit_of_a_number_is_named(argument: str, takes: str, number: int) -> None:
    arguments = {"lag": 1, "late": "wait", argument: number}
    refused = finding(lambda rows, role: QUEUE(rows, **arguments))
    assert (refused.code, refused.message.startswith(f"hf.queue: {takes} ")) == ("HF740", True), refused.message
    with pytest.raises(hf.HfError, match=r"HF740: .*2\*\*63 - 1 or less"):
        QUEUE(Rows(x=torch.zeros(1)), **arguments)


def test_a_loss_cannot_correct_for_more() -> None:
    with pytest.raises(hf.HfError, match=r"HF120: corrects\('policy'\): lag= .* updates, 2\*\*63 - 1 or less, got"):
        hf.corrects("policy", lag=2**63)


RECORD = "give it a record that is a parameter of the dataflow or the result of a call"
NOTHING = f"{RECORD}; a call or a helper that returns nothing gives None"
COLUMN = "give it the whole record, and read the column of what it returns"


@pytest.mark.parametrize(
    ("queued", "shown", "advice"),
    [
        (lambda rows, role: QUEUE(None, lag=1, late="wait"), "None", NOTHING),
        (lambda rows, role: QUEUE(role.nothing(rows), lag=1, late="wait"), "None", NOTHING),
        (lambda rows, role: QUEUE(8, lag=1, late="wait"), "8", RECORD),
        (lambda rows, role: QUEUE("rows", lag=1, late="wait"), "'rows'", RECORD),
        (lambda rows, role: QUEUE(role, lag=1, late="wait"), "role 'role'", RECORD),
        (lambda rows, role: QUEUE(role.counted(rows)), "'role.counted', which is PerRank[int]", RECORD),
        (lambda rows, role: QUEUE(role.loose(rows)), "'role.loose', which is f32[B]", RECORD),
        (lambda rows, role: QUEUE(rows.x), "'rows.x'", COLUMN),
        (lambda rows, role: QUEUE(role.made(rows).x), "'role.made.x'", COLUMN),
    ],
)
def test_a_value_without_rows_is_named_with_what_to_give_instead(
    queued: Callable[[Any, Any], Any], shown: str, advice: str
) -> None:
    refused = finding(queued)
    assert (refused.code, refused.message) == ("HF206", f"hf.queue takes a record of rows, got {shown}")
    assert list(refused.notes) == [advice]
