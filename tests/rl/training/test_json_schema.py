"""The JSON schema of a configuration takes the files that are read, and refuses what reading refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from jsonschema import Draft7Validator

from hfdsl.errors import ConfigError
from hfdsl.rl.fields import Count
from hfdsl.rl.training.algorithms import READY
from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.config_names import read_names
from hfdsl.rl.training.json_schema import field_docs, json_schema
from hfdsl.rl.training.placement import DeploymentConfig
from hfdsl.rl.training.toml.tables import read_toml, resolve_references
from hfdsl.rl.training.typed import build
from hfdsl.tools import output
from hfdsl.tools.cli import main
from hfdsl.tools.training import Finder

ROOT = Path(__file__).parents[3]
FILES = sorted([*ROOT.glob("examples/**/*.toml"), *ROOT.glob("benchmarks/training/*.toml")])
RUNS = [path for path in FILES if "algorithm" in read_toml(path)]
DEPLOYMENTS = [path for path in FILES if path not in RUNS]

STRUCTURAL = re.compile(
    r"' takes |there is no field|(is|are) missing$| names one of |must be (at least|above|at most|below) "
)
"""The messages for mistakes that a schema can know."""


def kind_of(path: Path) -> type:
    if path in DEPLOYMENTS:
        return DeploymentConfig
    return read_names({**read_toml(path), "deployment": None}, (), Finder())[0].kind


@cache
def ready_validator(name: str) -> Draft7Validator:
    return validator(READY[name])


def validator(kind: type) -> Draft7Validator:
    schema = json.loads(json.dumps(json_schema(kind, "test")))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_fits_its_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table = read_toml(path)
    assert [error.message for error in validator(kind_of(path)).iter_errors(table)] == []
    if path in RUNS:
        loaded = from_table(table, find=Finder())
        if table["algorithm"] in READY:
            # The schema of an algorithm does not know the evaluation, which may have roles of its own.
            own = loaded.roles.keys() - {*loaded.algorithm.trace().roles}
            without = {name: value for name, value in table.items() if name not in own}
            assert [error.message for error in ready_validator(table["algorithm"]).iter_errors(without)] == []
        written = loaded.table()
        assert [error.message for error in validator(kind_of(path)).iter_errors(written)] == []


OTHERS: tuple[Any, ...] = (True, 0, 7, 2.5, "text", "none", ["text"], {"text": 1})


def mutants(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The table with one field misspelled, left out, or of another value, and what was done to it."""
    for key, value in table.items():
        others = {name: inner for name, inner in table.items() if name != key}
        yield f"{key} misspelled", {**others, f"{key}x": value}
        yield f"without {key}", others
        for replacement in OTHERS:
            yield f"{key} = {replacement!r}", {**table, key: replacement}
        if isinstance(value, dict):
            for path, inner in mutants(value):
                yield f"{key}.{path}", {**table, key: inner}


def refusal(kind: type, table: dict[str, Any]) -> str:
    """Why a table is refused, or an empty text."""
    try:
        build(kind, resolve_references(table))
    except ConfigError as error:
        return error.message
    return "algorithm is missing" if kind is not DeploymentConfig and "algorithm" not in table else ""


@pytest.mark.nightly_besides("grpo.toml", "split.toml")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_mutated_file_is_refused_by_both(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table, kind = read_toml(path), kind_of(path)
    if isinstance(table.get("deployment"), str):
        table["deployment"] = read_toml(table["deployment"])
    schema, refused = validator(kind), 0
    for done, mutant in mutants(table):
        if isinstance(mutant.get("deployment"), str):
            continue  # a path, as far as the schema knows
        message, valid = refusal(kind, mutant), schema.is_valid(mutant)
        assert message or valid, f"{done}: only the schema refuses it"
        assert not (STRUCTURAL.search(message) and valid), f"{done}: only reading refuses it: {message}"
        refused += not valid
    assert refused > 20


@dataclass(frozen=True)
class Named:
    """A table
    of two lines, with ``code``.

    And more.
    """

    size: int = 3
    """How large
    it is."""
    names: tuple[str, ...] = ("a",)
    pair: tuple[int, str] | None = None
    "Two of them."
    level: Literal["low", 2] = "low"
    function: Callable[[int], int] | str = "f"
    inner: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Count] = field(default_factory=dict)
    steps: list[Count] | None = None


def test_what_a_field_says_of_itself_is_in_the_schema() -> None:
    assert field_docs(Named) == {"size": "How large it is.", "pair": "Two of them."}
    schema = json_schema(Named, "named")
    reference = r"^\$[A-Za-z_]\w*(\.\w+)*$"
    assert schema["description"] == "A table of two lines, with `code`."
    assert schema["properties"]["size"] == {
        "type": ["integer", "string"],
        "pattern": reference,
        "description": "How large it is.",
        "default": 3,
    }
    assert schema["properties"]["names"]["default"] == ["a"]
    assert schema["properties"]["pair"]["maxItems"] == 2
    assert "none" in schema["properties"]["pair"]["pattern"]
    assert schema["properties"]["level"]["anyOf"] == [
        {"enum": ["low", 2]},
        {"type": "string", "pattern": reference},
    ]
    assert schema["properties"]["function"] == {"type": "string", "default": "f"}
    assert schema["properties"]["sizes"]["additionalProperties"]["minimum"] == 1
    assert schema["properties"]["steps"]["items"]["minimum"] == 1


Capture = pytest.CaptureFixture[str]


def said(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_writes_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(ROOT)
    code, out, _ = said(capsys, "schema", "grpo")
    assert (code, json.loads(out)) == (output.OK, json_schema(READY["hfdsl.rl.dataflows.grpo:grpo"], "grpo"))
    assert json.loads(said(capsys, "schema", "deployment")[1])["required"] == ["pools"]
    assert json.loads(said(capsys, "schema", "examples/deployments/split.toml")[1])["required"] == ["pools"]
    own_schema = json.loads(said(capsys, "schema", "tests.rl.training.toy:follow")[1])
    assert "policy" in own_schema["required"]
    assert own_schema["definitions"]["Options"]["properties"]["width"]["default"] == 2
    descriptions = [table["description"] for table in (own_schema, *own_schema["definitions"].values())]
    assert descriptions[0].startswith("A training run."), "a derived class has the docstring of its base"
    assert not [text for text in descriptions if "=" in text], "nobody reads the signature of a dataclass"
    file = tmp_path / "spelling.json"
    assert said(capsys, "schema", "examples/spelling.toml", "-o", str(file)) == (output.OK, "", "")
    reward = json.loads(file.read_text())["properties"]["reward"]
    assert reward["allOf"] == [{"$ref": "#/definitions/VerifierConfig"}]


def test_mistakes_of_the_command_are_reported(tmp_path: Path, capsys: Capture) -> None:
    code, _, err = said(capsys, "schema", "grop")
    assert (code, err) == (
        output.USAGE,
        "hfdsl schema: 'grop' is no TOML file, no module:name, and no ready-made algorithm; did you mean 'grpo'?\n",
    )
    assert "cannot write" in said(capsys, "schema", "grpo", "-o", str(tmp_path / "no/file.json"))[2]
    file = tmp_path / "run.toml"
    file.write_text("algorithm = 'math:pi'")
    code, _, err = said(capsys, "schema", str(file))
    assert code == output.FINDINGS
    assert f"HF901]: {file}: 'algorithm': 3.14" in err
