"""Spans: where in a user's file something stands, however many functions there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hfdsl.graph.spans import Span, caller_span


def test_every_function_keeps_its_own_places() -> None:
    calls: list[tuple[Callable[[], Span], Span]] = []
    for i in range(200):  # more than are remembered at a time
        names: dict[str, Any] = {"caller_span": caller_span}
        text = "\n" * i + "def place():\n" + f"    return [{'0, ' * i}caller_span()][-1]\n"
        exec(compile(text, f"made_{i}.py", "exec"), names)  # noqa: S102  # as a notebook does
        column = len(f"    return [{'0, ' * i}")
        calls.append((names["place"], Span(f"made_{i}.py", i + 2, column, i + 2, column + len("caller_span()"))))
    for _ in range(2):
        assert [place() for place, _ in calls] == [expected for _, expected in calls]
