"""Rewards that the configurations name."""

from __future__ import annotations

from typing import Any


def score(response: str, row: dict[str, Any]) -> float:
    """1 for the answer."""
    return float(response == row["answer"])


def length(response: str) -> int:
    """A function that takes too little."""
    return len(response)
