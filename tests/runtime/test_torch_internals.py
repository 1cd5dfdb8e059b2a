"""Operations of a process group that begin as one."""

from __future__ import annotations

from typing import Any

import pytest

from hfdsl.runtime.rank.torch_internals import begin_together


class Group:
    """A process group that records what it is called with."""

    def __init__(self, *, supports_coalescing: bool) -> None:
        self.supports_coalescing = supports_coalescing
        self.calls: list[Any] = []

    def _start_coalescing(self) -> None:
        self.calls.append("start")

    def _end_coalescing(self) -> str:
        self.calls.append("end")
        return "all"

    def send(self, value: int) -> str:
        """Refuse negative values."""
        if value < 0:
            raise ValueError(value)
        self.calls.append(value)
        return f"work {value}"


def test_several_operations_are_one_where_the_group_can() -> None:
    group = Group(supports_coalescing=True)
    assert begin_together(group, group.send, [1, 2]) == ["all"]
    assert group.calls == ["start", 1, 2, "end"]


@pytest.mark.parametrize("values", [[1], [1, 2]])
def test_each_is_waited_for_where_it_cannot_or_has_one_alone(values: list[int]) -> None:
    group = Group(supports_coalescing=len(values) == 1)
    assert begin_together(group, group.send, values) == [f"work {value}" for value in values]
    assert group.calls == values


def test_an_operation_that_fails_leaves_no_group_open() -> None:
    group = Group(supports_coalescing=True)
    with pytest.raises(ValueError, match="-1"):
        begin_together(group, group.send, [1, -1, 2])
    assert group.calls == ["start", 1, "end"]
