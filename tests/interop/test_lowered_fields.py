"""The fields of a lowered run are those that the pages on each library list."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hfdsl.interop.lowering import Lowered
from tests.interop.lowering_runs import lowered, of_nemo_rl, of_openrlhf, of_verl
from tests.interop.test_trl import command

DOCS = Path(__file__).parents[2] / "docs"


def rows_of(page: str) -> list[tuple[str, str]]:
    """The rows of the table of fields, without their backquotes."""
    table = (DOCS / page).read_text("utf-8").partition("## Fields of a run")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", table, re.MULTILINE)


def assert_has(run: Lowered, field: str) -> None:
    name, _, value = field.partition(" = ")
    expected = tomllib.loads(f"value = {value}")["value"]
    assert run.fields[name].value == expected


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-verl.md"))
def test_fields_of_verl_are_as_documented(setting: str, field: str) -> None:
    critic = {"critic.ppo_micro_batch_size_per_gpu": "4"} if "=gae" in setting else {}
    changes = dict(pair.split("=", 1) for pair in shlex.split(setting))
    assert_has(of_verl(**{**critic, **changes}), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-trl.md"))
def test_fields_of_trl_are_as_documented(setting: str, field: str) -> None:
    pairs = [part.partition(" ") for part in re.split(r"(?:^| )--", setting) if part]
    assert_has(lowered("trl", command(**{name: value for name, _, value in pairs})), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-nemo-rl.md"))
def test_fields_of_nemo_rl_are_as_documented(setting: str, field: str) -> None:
    assert_has(of_nemo_rl(**dict(pair.split("=", 1) for pair in shlex.split(setting))), field)


@pytest.mark.parametrize(("setting", "field"), rows_of("migrate-openrlhf.md"))
def test_fields_of_openrlhf_are_as_documented(setting: str, field: str) -> None:
    pairs = [part.partition(" ") for part in re.split(r"(?:^| )--", setting) if part]
    critic = {"critic.num_gpus_per_node": 8}
    assert_has(of_openrlhf(**{**critic, **{name: value for name, _, value in pairs}}), field)


def test_the_tables_are_there() -> None:
    pages = ("migrate-verl.md", "migrate-trl.md", "migrate-nemo-rl.md", "migrate-openrlhf.md")
    assert min(len(rows_of(page)) for page in pages) > 35
