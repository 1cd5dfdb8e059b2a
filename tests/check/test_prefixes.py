"""Names that differ by a prefix: the note of HF730 names it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.check.rules.weights.prefixes import renamed_by_prefix
from hfdsl.protocols.layouts import Parameter
from tests.check.prelude import B, Engine, Trainer
from tests.check.test_layouts import plain

NAMES = ("embed.weight", "layers.0.up.weight", "lm_head.weight")


@pytest.mark.parametrize(
    ("exported", "loaded", "notes"),
    [
        ("model.", "", ("'trainer' exports them as 'model.…'",)),
        ("", "base_model.model.", ("'trainer' exports them without 'base_model.model.'",)),
        ("", "", ()),
    ],
)
def test_the_note_names_the_prefix_of_all_missing_names(exported: str, loaded: str, notes: tuple[str, ...]) -> None:
    sides = [[Parameter(prefix + name, (8, 4)) for name in NAMES] for prefix in (exported, loaded)]
    pools = [hf.ResourcePool([1], name=name) for name in ("train", "engines")]
    trainer = hf.place(Trainer, *sides[0], pool=pools[0])
    engine = hf.place(Engine, *sides[1], pool=pools[1])
    report = plain.check(hf.Deployment(trainer=trainer, engine=engine), {B: 64})
    assert tuple(note for finding in report.findings if finding.code == "HF730" for note in finding.notes) == notes


def parts() -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(("a", "b", "model")), min_size=1, max_size=3).map(".".join)


@given(st.lists(parts(), min_size=2, unique=True, max_size=5), st.lists(parts(), min_size=1, unique=True, max_size=8))
def test_a_prefix_makes_all_names_those_of_the_others(names: list[str], others: list[str]) -> None:
    prefixes = {name[: place + 1] for name in (*names, *others) for place, sign in enumerate(name) if sign == "."}
    added = {prefix for prefix in prefixes if {prefix + name for name in names} <= set(others)}
    removed = {prefix for prefix in prefixes if set(names) <= {prefix + other for other in others}}
    expected = {f"them as '{prefix}…'" for prefix in added} | {f"them without '{prefix}'" for prefix in removed}
    said = renamed_by_prefix(names, others)
    assert (said in expected) if expected else said is None
