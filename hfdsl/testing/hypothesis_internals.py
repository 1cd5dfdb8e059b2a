"""Every private interface of hypothesis that hfdsl uses; tried with hypothesis 6.170.

A release without the table loses ``st.from_type`` for hfdsl's types and nothing else, so there is no upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Imported within functions: hypothesis calls ``entry.register``, and so this, while it is imported itself.


def strategy_lookup() -> dict[str, Any] | None:
    """The table of functions from a type to its strategy, by library, through which hypothesis finds numpy's own.

    Its public interface registers a strategy for one class and not for all that derive from it.
    """
    from hypothesis.strategies._internal import types

    lookup: dict[str, Any] | None = getattr(types, "_global_extra_lookup", None)
    return lookup


def print_by_name(module: str, name: str, function: Callable[[Any, Any, bool], None]) -> None:
    """Have hypothesis print the values of a class with this function, without importing the class."""
    from hypothesis.vendor.pretty import for_type_by_name

    for_type_by_name(module, name, function)
