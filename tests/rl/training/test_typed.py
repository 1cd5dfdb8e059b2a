"""Tables become dataclasses, or an error says which field takes what; overrides and TOML keep every value."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ConfigError, SizeError
from hfdsl.rl.training.toml.tables import as_table, differences, flattened, resolve_references, to_toml, with_changes
from hfdsl.rl.training.typed import build
from hfdsl.rl.workers import TrainingConfig


@dataclass(frozen=True)
class Adam:
    rate: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    warmup: int | None = None
    clip: float | None = 0.2


@dataclass(frozen=True)
class Folder:
    path: str


@dataclass(frozen=True)
class Made:
    size: int = 2
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Actor:
    optimizer: Adam = field(default_factory=Adam)
    source: Folder | Made = field(default_factory=Made)
    dtype: Literal["f32", "bf16"] = "f32"
    names: tuple[str, ...] = ()
    fast: bool = False

    def __post_init__(self) -> None:
        if len(self.names) > 3:
            raise SizeError("HF302", "three names at most")
        if "" in self.names:
            raise ValueError("a name is no empty text")


@dataclass(frozen=True)
class Tree:
    name: str
    actor: Actor = field(default_factory=Actor)
    sizes: dict[str, int] = field(default_factory=dict)
    other: Actor | None = None


def refused(table: Any, changes: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        build(Tree, with_changes(table, Tree, changes))
    return str(caught.value)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({}, "'name' (str) is missing"),
        ({"name": 1}, "'name' takes str, got 1"),
        ({"name": "a", "acter": {}}, "there is no field 'acter'; did you mean 'actor'?"),
        (
            {"name": "a", "actor": {"rate": 1}},
            "there is no field 'rate' in 'actor'; did you mean 'actor.optimizer.rate'?",
        ),
        ({"name": "a", "actor": 1}, "'actor' takes a table of Actor, got 1"),
        ({"name": "a", "actor": {"optimizer": {"rate": "x"}}}, "'actor.optimizer.rate' takes float, got 'x'"),
        ({"name": "a", "actor": {"optimizer": {"rate": True}}}, "'actor.optimizer.rate' takes float, got True"),
        (
            {"name": "a", "actor": {"optimizer": {"betas": [1]}}},
            "'actor.optimizer.betas' takes a list of float, float, got [1]",
        ),
        ({"name": "a", "actor": {"optimizer": {"betas": [1, "a"]}}}, "'actor.optimizer.betas[1]' takes float, got 'a'"),
        ({"name": "a", "actor": {"optimizer": {"warmup": 1.5}}}, "'actor.optimizer.warmup' takes int or None, got 1.5"),
        (
            {"name": "a", "actor": {"dtype": "f16"}},
            "'actor.dtype' takes 'f32' or 'bf16', got 'f16'; did you mean 'bf16'?",
        ),
        ({"name": "a", "actor": {"fast": 1}}, "'actor.fast' takes bool, got 1"),
        ({"name": "a", "actor": {"source": {"size": 1}}}, "actor.source.kind names one of Folder, Made; it has none"),
        (
            {"name": "a", "actor": {"source": {"kind": "Mode"}}},
            "actor.source.kind names one of Folder, Made; got 'Mode'; did you mean 'Made'?",
        ),
        (
            {"name": "a", "actor": {"source": {"kind": []}}},
            "actor.source.kind names one of Folder, Made; got '[]'; there are: Folder, Made",
        ),
        ({"name": "a", "actor": {"source": {"kind": "Folder"}}}, "'actor.source.path' (str) is missing"),
        ({"name": "a", "sizes": {"B": "x"}}, "'sizes.B' takes int, got 'x'"),
        ({"name": "a", "actor": {"names": ["a"] * 4}}, "actor: three names at most"),
        ({"name": "a", "actor": {"names": [""]}}, "actor: a name is no empty text"),
    ],
)
def test_a_table_that_does_not_fit_is_reported(table: dict[str, Any], text: str) -> None:
    assert refused(table) == f"HF901: {text}"


def test_a_field_that_has_another_name_now_is_refused_with_it() -> None:
    text = "HF901: there is no field 'final' in 'actor.optimizer'; its name is now 'min_lr_ratio'"
    with pytest.raises(ConfigError) as caught:
        build(TrainingConfig, {"optimizer": {"final": 0.1}}, "actor")
    assert str(caught.value) == text
    with pytest.raises(ConfigError) as caught:
        with_changes({"actor": {}}, _Run, ["actor.optimizer.final=0.1"])
    assert str(caught.value) == text


@dataclass(frozen=True)
class _Run:
    actor: TrainingConfig


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("actor", "a change is FIELD=VALUE, such as seed=1, got 'actor'"),
        ("actor.optimizer.rat=1", "there is no field 'rat' in 'actor.optimizer'; did you mean 'rate'?"),
        ("optimizer.rate=1", "there is no field 'optimizer'; did you mean 'actor.optimizer'?"),
        ("actor.rate=1", "there is no field 'rate' in 'actor'; did you mean 'actor.optimizer.rate'?"),
        ("actor.lr=1", "there is no field 'lr' in 'actor'; there are: optimizer, source"),
        ("name.x=1", "'name' has no fields, but 'name.x' names one"),
        ("actor.optimizer.warmup=soon", "'actor.optimizer.warmup' takes int or None, got 'soon'"),
        ("actor.optimizer.rate=none", "'actor.optimizer.rate' takes float, got None"),
        ("actor.source.size=big", "'actor.source.size' takes int, got 'big'"),
        ("other.fast=1", "other.fast' takes bool, got 1"),
    ],
)
def test_a_change_that_does_not_fit_is_reported(change: str, text: str) -> None:
    assert text in refused({"name": "a", "actor": {"source": {"kind": "Made"}}}, (change,))


def test_changes_are_read_as_their_fields_say() -> None:
    table = with_changes(
        {"name": "a", "actor": {"source": {"kind": "Made", "size": 3}}},
        Tree,
        [
            "name=12",
            "actor.optimizer.rate=1",
            "actor.optimizer.warmup=5",
            "actor.optimizer.warmup=none",
            'actor.names=["x", "y"]',
            "sizes.B=4",
            "actor.source.options.deep=hello world",
            "other={fast = true}",
        ],
    )
    assert build(Tree, table) == Tree(
        name="12",
        actor=Actor(Adam(rate=1.0), Made(3, {"deep": "hello world"}), names=("x", "y")),
        sizes={"B": 4},
        other=Actor(fast=True),
    )


def test_references_are_what_they_refer_to() -> None:
    table = {"name": "a", "actor": {"optimizer": {"rate": 1.0}}, "other": "$actor"}
    assert build(Tree, resolve_references(table)).other == Actor(Adam(1.0))
    with pytest.raises(ConfigError, match=r"'\$other' refers to itself"):
        with_changes({**table, "other": "$other"}, Tree, ["other.fast=true"])
    with pytest.raises(ConfigError, match=r"'\$actr' refers to 'actr', and there is no 'actr'"):
        with_changes({**table, "other": "$actr"}, Tree, ["other.fast=true"])
    with pytest.raises(
        ConfigError, match=r"'\$actor.optimizer' refers to 'actor.optimizer', and there is no 'optimizer'"
    ):
        resolve_references({"other": "$actor.optimizer", "actor": {}})
    with pytest.raises(ConfigError, match=r"'\$b' refers to itself"):
        resolve_references({"a": "$b", "b": "$a"})
    assert resolve_references({"price": "$$5", "a": "$$a"}) == {"price": "$5", "a": "$a"}


@pytest.mark.parametrize("first", [0, 1])
def test_a_change_below_a_reference_is_one_of_a_copy(first: int) -> None:
    table = {"name": "a", "actor": {"optimizer": {"rate": 1.0}}, "other": "$actor"}
    changes = ["other.optimizer.warmup=3", "actor.fast=true"]
    changed = with_changes(table, Tree, changes[first:] + changes[:first])
    tree = build(Tree, resolve_references(changed))
    assert tree.actor == Actor(Adam(1.0), fast=True)
    assert tree.other == Actor(Adam(1.0, warmup=3), fast=True)
    assert table["other"] == "$actor"
    through = with_changes(
        {**table, "actor": {"optimizer": "$other.optimizer"}, "other": {"optimizer": {"rate": 2.0}}},
        Tree,
        ["actor.optimizer.warmup=1"],
    )
    assert build(Tree, resolve_references(through)).actor == Actor(Adam(2.0, warmup=1))


FLOATS = st.floats(allow_nan=False)
ADAMS = st.builds(Adam, FLOATS, st.tuples(FLOATS, FLOATS), st.none() | st.integers(), st.none() | FLOATS)
ANY = st.recursive(
    st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SOURCES = st.builds(Folder, st.text()) | st.builds(Made, st.integers(), st.dictionaries(st.text(), ANY, max_size=3))
NAMES = st.lists(st.text(min_size=1), max_size=3).map(tuple)
ACTORS = st.builds(Actor, ADAMS, SOURCES, st.sampled_from(["f32", "bf16"]), NAMES, st.booleans())
TREES = st.builds(Tree, st.text(), ACTORS, st.dictionaries(st.text(), st.integers(), max_size=3), st.none() | ACTORS)


@given(TREES)
def test_a_configuration_is_written_and_read_again(tree: Tree) -> None:
    assert build(Tree, resolve_references(tomllib.loads(to_toml(as_table(tree))))) == tree


@given(TREES, TREES)
def test_differences_are_what_has_to_be_changed(one: Tree, other: Tree) -> None:
    """What differs, and nothing else, is listed."""
    left, right = as_table(one), as_table(other)
    changed = differences(left, right)
    assert (changed == {}) is (left == right)
    assert {name: pair[::-1] for name, pair in changed.items()} == differences(right, left)


WORDS = st.text("abc $\"'\\#=\n\té", max_size=6)


@given(FLOATS, st.integers(-(2**63), 2**63 - 1), WORDS, st.booleans())
def test_a_change_of_one_field_changes_that_field(rate: float, size: int, name: str, fast: bool) -> None:
    before = as_table(Tree("a"))
    changes = [
        f"actor.optimizer.rate={rate!r}",
        f"actor.source.size={size}",
        f"name={to_toml({'x': name})[4:]}",
        f"actor.fast={str(fast).lower()}",
    ]
    tree = build(Tree, resolve_references(with_changes(before, Tree, changes)))
    assert tree == Tree(name, Actor(Adam(rate), Made(size), fast=fast))
    named = {"actor.optimizer.rate", "actor.source.size", "name", "actor.fast"}
    assert set(differences(before, as_table(tree))) <= named
    assert named <= dict(flattened(before)).keys()


class Undecorated(Adam):
    width: float = 0.5


def test_an_annotation_of_a_class_that_is_no_dataclass_is_no_field() -> None:
    with pytest.raises(
        ConfigError, match=r"^HF901: 'loss\.width' is not a field: .* Undecorated .* lacks .* @dataclass$"
    ):
        build(Undecorated, {"width": 0.3}, "loss")
    assert build(Undecorated, {"rate": 0.1}, "loss").rate == 0.1
