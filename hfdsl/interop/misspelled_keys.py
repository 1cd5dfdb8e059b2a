"""Mistaken keys: those that were probably meant instead, keys that are there already, and edits that mend both.

>>> nearest_key("actor.lerning_rate", ["actor.learning_rate", "critic.learning_rate"])
'actor.learning_rate'
>>> nearest_key("trainer.optim.lr", ["actor.optim.lr", "trainer.seed"])
'actor.optim.lr'
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from difflib import get_close_matches

from hfdsl.check.findings import Edit, Finding, Fix, Label
from hfdsl.interop.settings import Setting


def nearest_key(key: str, keys: Collection[str]) -> str | None:
    """The key that was probably meant: one that ends alike, or else a very similar one."""
    last = key.rpartition(".")[2]
    same = [name for name in keys if name.rpartition(".")[2] == last]
    near = get_close_matches(key, same, n=1, cutoff=0.5) or get_close_matches(key, keys, n=1, cutoff=0.85)
    return near[0] if near else None


def renamed(setting: Setting, near: str, skipped: int = 0) -> tuple[Fix, ...]:
    """The edit that renames a key, behind ``skipped`` characters of its setting; none across lines or outside files."""
    return _replaced(setting, skipped, len(setting.key.encode()), f"write {near}", near)


def added_again(setting: Setting) -> Finding:
    """HF971: ``+`` adds a key that is already there."""
    return Finding(
        "HF971",
        f"'+{setting.key}' adds a key that is already there",
        Label(setting.span, "Hydra refuses '+' for it"),
        notes=(f"write {setting.key}=... without '+'",),
        fixes=_replaced(setting, 0, 1, "leave out '+'", ""),
    )


def _replaced(setting: Setting, skipped: int, length: int, words: str, text: str) -> tuple[Fix, ...]:
    span = setting.span
    if span.line != span.end_line or span.file.startswith("<"):
        return ()
    start = span.column + skipped
    return (Fix(words, (Edit(replace(span, column=start, end_column=start + length), text),)),)
