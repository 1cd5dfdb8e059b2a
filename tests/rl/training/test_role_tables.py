# ruff: noqa: B006, B008  # defaults that can change, as users write them
"""The table of a role of one's own: what its constructor takes, as far as TOML can say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import ConfigError
from hfdsl.graph.spans import Span
from hfdsl.rl.batches import Prompts, Scores
from hfdsl.rl.training.check import ConfigCheck
from hfdsl.rl.training.config import Loaded, from_table, load
from hfdsl.rl.training.json_schema import json_schema
from hfdsl.rl.training.toml.tables import to_toml
from tests.rl.training.toy import Follows, table

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Weights:
    first: float = 1.0
    second: float = 1.0


class Listed(Follows):
    def __init__(
        self,
        names: list[str] | None = None,
        *extra: int,
        widths: Sequence[int] = (),
        pairs: tuple[int, ...] = (),
        table: dict[str, float] = {},
        groups: Mapping[str, list[int]] = {},
        weights: Weights = Weights(first=5.0),
        anything: list[Any] = [],
        **more: int,
    ) -> None: ...


class Keyed(Follows):
    def __init__(self, by_size: dict[int, float]) -> None: ...


class Other(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, prompts: Prompts) -> Scores:
        return Scores(score=prompts.mask.tensor.sum(1).float())


class Unreadable(Follows):
    def __init__(self, price: Decimal, count: int = 1) -> None: ...


def loaded(folder: Path, role: type, *changes: str, **arguments: Any) -> Loaded:
    reward = {"reward": arguments} if arguments else {}
    return from_table(table(folder, roles={"reward": f"{__name__}:{role.__name__}"}, **reward), changes)


def test_a_constructor_takes_lists_and_tables(tmp_path: Path) -> None:
    changes = ["reward.groups.a=[1]", "reward.weights.second=7", "reward.anything=['x', 1]"]
    run = loaded(tmp_path, Listed, *changes, names=["a", "b"], widths=[1], pairs=[2, 3], table={"x": 1})
    assert run.deployment()["reward"].kwargs == {
        "names": ["a", "b"],
        "widths": (1,),
        "pairs": (2, 3),
        "table": {"x": 1.0},
        "groups": {"a": [1]},
        "weights": Weights(5.0, 7.0),
        "anything": ["x", 1],
    }
    assert ConfigCheck().reports(run)[0].codes == ()


def test_a_default_that_can_change_is_a_copy_for_each_object(tmp_path: Path) -> None:
    one, other = (loaded(tmp_path, Listed).deployment()["reward"].kwargs for _ in range(2))
    assert (
        one
        == other
        == {
            "names": None,
            "widths": (),
            "pairs": (),
            "table": {},
            "groups": {},
            "weights": Weights(5.0, 1.0),
            "anything": [],
        }
    )
    for name in ("table", "groups", "weights", "anything"):
        assert one[name] is not other[name]


def test_what_a_role_takes_is_written_and_read_again(tmp_path: Path) -> None:
    run = loaded(tmp_path, Listed, names=["a"], groups={"a": [1, 2]})
    file = tmp_path / "again.toml"
    file.write_text(to_toml(run.table()))
    assert load(file).table() == run.table()


def test_a_schema_has_the_items_of_lists(tmp_path: Path) -> None:
    schema = json_schema(type(loaded(tmp_path, Listed).config), "run")
    reward = schema["definitions"]["RewardArguments"]["properties"]
    assert [reward[name]["items"]["type"] for name in ("widths", "pairs")] == [["integer", "string"]] * 2
    assert reward["names"]["items"] == {"type": "string"}
    assert reward["table"]["additionalProperties"]["type"] == ["number", "string"]


@pytest.mark.parametrize(
    ("role", "arguments", "text"),
    [
        (Listed, {"names": "a"}, "'reward.names' takes a list of str or None, got 'a'"),
        (Listed, {"names": ["a", 1]}, "'reward.names[1]' takes str, got 1"),
        (Listed, {"widths": "ab"}, "'reward.widths' takes a list of int, got 'ab'"),
        (Listed, {"table": {"x": "a"}}, "'reward.table.x' takes float, got 'a'"),
        (Listed, {"table": [1]}, "'reward.table' takes a table, got [1]"),
        (Listed, {"groups": {"a": [1, "b"]}}, "'reward.groups.a[1]' takes int, got 'b'"),
        (Listed, {"anything": 1}, "'reward.anything' takes a list of Any, got 1"),
        (Listed, {"extra": [1]}, "there is no field 'extra' in 'reward'"),
        (
            Keyed,
            {"by_size": {"1": 2}},
            "reward.by_size is declared as a table whose keys are int, which a table cannot",
        ),
        (Unreadable, {"price": 1}, "the annotations of Unreadable.__init__ cannot be evaluated: name 'Decimal'"),
    ],
)
def test_what_a_constructor_does_not_take(role: type, arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, role, **arguments)
    assert str(caught.value).startswith(f"HF901: {text}")


def test_an_item_on_the_command_line_is_one_of_its_change(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(to_toml(table(tmp_path, roles={"reward": f"{__name__}:Listed"})))
    with pytest.raises(ConfigError, match=r'--set reward.names=\["a", 1\]: \'reward.names\[1\]\' takes str, got 1'):
        load(file, ['reward.names=["a", 1]'])


def test_a_constructor_that_cannot_be_read_is_one_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(to_toml(table(tmp_path, roles={"reward": f"{__name__}:Unreadable"})))
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert isinstance(caught.value.span, Span)
    assert file.read_text().splitlines()[caught.value.span.line - 1].startswith("reward = ")


def test_a_class_of_another_type_is_one_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(to_toml(table(tmp_path, roles={"reward": f"{__name__}:Other"})))
    [finding] = [f for report in ConfigCheck().reports(load(file)) for f in report if f.code == "HF515"][:1]
    assert finding.primary.span.file == str(file)
    assert file.read_text().splitlines()[finding.primary.span.line - 1].startswith("reward = ")


def test_an_empty_table_of_a_role_without_arguments_is_to_be_removed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"which takes no table; remove \[reward\], or name a class that takes one"):
        from_table(table(tmp_path, reward={}))
    for change in ("reward={}", "reward.scale=1"):
        with pytest.raises(ConfigError, match=r"'reward' is a role of class Follows, which takes no table; remove"):
            from_table(table(tmp_path), [change])
