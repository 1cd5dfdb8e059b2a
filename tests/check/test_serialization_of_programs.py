# mypy: disable-error-code="empty-body"
"""What of a program is sent to other processes: arguments of constructors and calls, and code that none can import."""

from __future__ import annotations

import threading
from typing import Any

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.check.findings import Finding

LOCK = threading.Lock()


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Pair(Rows):
    y: f32[B]


class Role(hf.Worker):
    def __init__(self, *positional: object, **named: object) -> None: ...

    @register(Dispatch.DP_PROTO)
    def look(self, rows: Rows, by: object = None) -> Rows: ...


class Strict(Role):
    def __init__(self, size: int) -> None: ...


def findings_of(body: Any, role: Any = Role, *positional: Any, **named: Any) -> list[Finding]:
    """The findings of a program on a placed role."""

    def program(rows: Rows, role: Any) -> Rows:
        result: Rows = body(rows, role)
        return result

    program.__annotations__["role"] = role
    place = hf.place(role, *positional, pool=hf.ResourcePool([1], use_gpu=False), **named)
    return list(hf.dataflow(program).check(hf.Deployment(role=place), {B: 8}).findings)


def look(rows: Any, role: Any) -> Any:
    return role.look(rows)


def test_arguments_of_a_constructor() -> None:
    [finding] = findings_of(look, Role, 3, by=[LOCK])
    assert finding.message == "role 'role' is given named['by'][0], a lock, which cannot be sent to another process"
    assert finding.notes[1] == "pass what it is built from, and build it in Role.__init__"
    assert findings_of(look, Role, 3, by=[4]) == []


def test_arguments_that_a_constructor_does_not_take() -> None:
    wrong, finding = sorted(findings_of(look, Strict, 3, LOCK), key=lambda finding: finding.code)
    assert (wrong.code, finding.code) == ("HF516", "HF802")
    assert finding.message.startswith("role 'role' is given argument 2, a lock, which")
    [*_, finding] = sorted(findings_of(look, Strict, 3, by=LOCK), key=lambda finding: finding.code)
    assert finding.message.startswith("role 'role' is given by, a lock, which")


def test_arguments_of_a_call() -> None:
    [finding] = findings_of(lambda rows, role: role.look(rows, {"with": LOCK}))
    assert finding.message == "'role.look' is given by['with'], a lock, which cannot be sent to another process"
    assert findings_of(lambda rows, role: role.look(rows, {"with": 3})) == []


def test_a_lock_in_place_of_a_column_is_that_mistake_alone() -> None:
    lock: Any = LOCK
    assert [finding.code for finding in findings_of(lambda rows, role: role.look(Pair(x=rows.x, y=lock)))] == ["HF206"]


def test_code_is_sent_once_with_what_it_uses() -> None:
    class Local(Role):
        @register(Dispatch.DP_PROTO)
        def look(self, rows: Rows, by: object = None) -> Rows:
            LOCK.acquire(blocking=False)
            return rows

    @hf.function
    def looked(rows: Rows) -> Rows:
        LOCK.acquire(blocking=False)
        return rows

    uses = "uses LOCK, a lock, and is sent with what it uses, which cannot be sent to another process"
    assert [finding.message for finding in findings_of(look, Local)] == [f"'Local' {uses}"]
    [finding] = findings_of(lambda rows, role: role.look(looked(rows)))
    assert finding.message == f"'looked' {uses}"
    assert finding.notes[1] == "make LOCK where it is used, or within a role's __init__"
