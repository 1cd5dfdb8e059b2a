"""Values as Hydra and OmegaConf have them: overrides, interpolations, YAML."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.graph.spans import Span
from hfdsl.interop.settings import Configuration, NotKnown, Setting
from hfdsl.interop.text import ReadError, SourceText
from hfdsl.interop.values import NoValueError, SweepError, override_value
from hfdsl.interop.yaml_text import read_yaml

PLACE = Span("run.sh", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-1", -1), ("1_000", 1000), ("007", "007"), ("1e-6", 1e-6), ("1.", 1.0), ("True", True),
        ("false", False), ("null", None), ("vllm", "vllm"), ("", ""), ("[a, b]", ["a", "b"]),
        ("['a b',1]", ["a b", 1]), ("[]", []),
        ("{a: 1, 'b': [2]}", {"a": 1, "b": [2]}), ("'8'", "8"), ("a/b:c", "a/b:c"), ("${x.y}", "${x.y}"),
        ("9" * 40, "9" * 40),
    ],
)  # fmt: skip
def test_the_value_of_an_override(text: str, value: Any) -> None:
    assert override_value(text) == value
    assert type(override_value(text)) is type(value)


@pytest.mark.parametrize("text", ["[a", "{a}", "'a", "{a:1", "[a b"[:2], "[" * 200])
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(NoValueError):
        override_value(text)


def test_a_sweep_is_no_value() -> None:
    with pytest.raises(SweepError):
        override_value("1,2")


def configuration(defaults: dict[str, Any], **given_values: Any) -> Configuration:
    settings = {key.replace("__", "."): value for key, value in given_values.items()}
    return Configuration("x", defaults, {k: Setting(k, v, PLACE) for k, v in settings.items()}, PLACE)


def test_interpolations_lead_to_the_key_that_decides() -> None:
    defaults = {"a.n": 1, "b.n": "${oc.select:a.n,5}", "b.m": "${.n}", "c": "${oc.select:nowhere,7}", "d": "x-${a.n}"}
    c = configuration(defaults, a__n=3)
    assert [c.value(key) for key in ("b.n", "b.m", "c", "d")] == [3, 3, 7, "x-3"]
    assert [c.owner(key) for key in ("b.n", "b.m", "c", "d")] == ["a.n", "a.n", "c", "d"]


@pytest.mark.parametrize("value", ["${a}", "${b}", "${oc.env:HOME}", "${now:%d}", "${nowhere}", "x${y:z}"])
def test_what_only_a_run_knows_is_not_known(value: str) -> None:
    with pytest.raises(NotKnown):
        configuration({"a": value, "b": "${a}"}).value("a")


def yaml(text: str) -> dict[str, Any]:
    return {setting.key: setting.value for setting in read_yaml(SourceText("c.yaml", text))}


def test_yaml_has_the_values_that_omegaconf_reads() -> None:
    text = "a:\n  b: 8\n  lr: 1e-6\n  on: true\n  none: null\n  text: '8'\n  list: [1, x]\n  empty: {}\n"
    expected: dict[str, Any] = {
        "a.b": 8,
        "a.lr": 1e-6,
        "a.on": True,
        "a.none": None,
        "a.text": "8",
        "a.list": [1, "x"],
        "a.empty": {},
    }
    assert yaml(text) == expected


def test_yaml_settings_have_their_places() -> None:
    [first, second] = read_yaml(SourceText("c.yaml", "a:\n  ü: 8\n  c: 9"))
    assert (first.span.line, first.span.column, first.value_span.column, first.value_span.end_column) == (2, 2, 6, 7)
    assert (second.span.line, second.text) == (3, "9")


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: b: c", "- 1", "8", "\0", "a: &x [*x]", "? [a]\n: 1", "a: " + "[" * 1000],
    ids=range(8),
)
def test_what_is_no_configuration(text: str) -> None:
    with pytest.raises(ReadError, match="HF970"):
        yaml(text)


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 9)
    ]
    with pytest.raises(ReadError, match="HF970"):
        yaml("\n".join(lines))


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ReadError):
        yaml(text)
