"""Prefixes of names, such as those of wrappers: ``model.up.weight`` beside ``up.weight``."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def renamed_by_prefix(names: Sequence[str], others: Collection[str]) -> str | None:
    """How others have all of these names, in words, if it is with one prefix more or less; else None.

    >>> renamed_by_prefix(["up.weight", "down.weight"], ["model.down.weight", "model.up.weight", "model.norm.weight"])
    "them as 'model.…'"
    >>> renamed_by_prefix(["module.up.weight", "module.down.weight"], ["up.weight", "down.weight"])
    "them without 'module.'"
    >>> renamed_by_prefix(["model.up.weight"], ["up.weight"])
    "'up.weight'"
    """
    first, known = names[0], frozenset(others)
    for other in others:
        added = other.removesuffix(first)
        if other.endswith(first) and _ends_a_module(added) and known.issuperset(added + name for name in names):
            return f"them as '{added}…'" if len(names) > 1 else f"'{other}'"
        removed = first.removesuffix(other)
        if (
            first.endswith(other)
            and _ends_a_module(removed)
            and all(name.startswith(removed) and name.removeprefix(removed) in known for name in names)
        ):
            return f"them without '{removed}'" if len(names) > 1 else f"'{other}'"
    return None


def _ends_a_module(prefix: str) -> bool:
    return prefix[-1:] in (".", "/")
