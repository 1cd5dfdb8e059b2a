"""The hypothesis entry point: ``st.from_type`` learns hfdsl's types, and examples print as code.

It loads nothing of hfdsl before such a type is asked for.
"""

from __future__ import annotations

from typing import Any

from hfdsl.testing import registration


def register() -> None:
    """Register the types of hfdsl with hypothesis; it may be called again."""
    registration.register(_strategy_of)


def _strategy_of(kind: Any) -> Any:
    if not registration.is_of_hfdsl(kind):
        return None  # hfdsl is not loaded for the sake of other types
    from hfdsl.testing.strategies.lookup import strategy_of

    return strategy_of(kind)
