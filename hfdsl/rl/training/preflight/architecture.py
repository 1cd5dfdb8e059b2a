"""The keys and values of a model's configuration, looked up in the text of transformers, which is not imported.

``vocab_sise = 30`` is no error there: the model has the default vocabulary. So a key counts as misspelled if neither
the model's own files nor the files that all models share have the word, and it resembles a field of the configuration.
Values that transformers refuses, or whose model cannot be called, are reported before a launch does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hfdsl.check.findings import Finding
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.ready import READY_ROLES
from hfdsl.rl.training.toml.changes import RenameField, SetField
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.slicing import BY_HEADS, HEADS, model_config
from hfdsl.types.numbers import divisors, is_count

_FIELD = re.compile(r"^    (\w+): |self\.(\w+) = ", re.MULTILINE)
_ANNOTATED = re.compile(r"^    (\w+): ([^=\n]+)", re.MULTILINE)
_QUOTED = re.compile(r'"([\w-]+)"')

LEAST: Final[Mapping[str, int]] = {
    "vocab_size": 1,
    "hidden_size": 1,
    "intermediate_size": 0,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1,
}
"""The sizes of a model, each with the least that transformers accepts."""

WHOLE_HEADS: Final = "is not a multiple of the number of attention"
"""A part of the error that a model's configuration raises if its heads do not divide its width."""


def model_keys_are_read(subject: Subject) -> Iterator[Finding]:
    """Every key of a model's configuration is one that transformers reads."""
    for field, model in subject.parts(ModelConfig):
        fields, words = _vocabulary(str(model_config(model).get("model_type")))
        for key in model.config or {}:
            nearest = get_close_matches(key, fields - set(model.config or {}), n=1, cutoff=0.8)
            if nearest and key not in words and not _is_shared(key):
                wrong = f"{field}.config.{key}"
                yield subject.finding(
                    "HF720",
                    f"no '{model_config(model).get('model_type')}' model reads '{key}'; did you mean '{nearest[0]}'?",
                    wrong,
                    notes=(f"transformers drops a key that it does not know, and '{nearest[0]}' keeps its default",),
                    changes=(RenameField(wrong, nearest[0]),),
                )


def model_types_exist(subject: Subject) -> Iterator[Finding]:
    """The type of a new model is no misspelled type of transformers, to which a user's module may add types."""
    for field, model in subject.parts(ModelConfig):
        name, types = (model.config or {}).get("model_type"), _types()
        if not isinstance(name, str) or model.path is not None or not _is_of_ready_role(subject, field):
            continue
        if name in types or _is_registered(name):
            continue
        near = get_close_matches(name, types, n=3, cutoff=0.7)
        if near:
            yield subject.finding(
                "HF812",
                f"transformers has no model of the type '{name}'; did you mean '{near[0]}'?",
                f"{field}.config.model_type",
                changes=[SetField(f"{field}.config.model_type", candidate) for candidate in near],
            )


def model_sizes_fit(subject: Subject) -> Iterator[Finding]:
    """The sizes in a model's configuration are numbers that make a model."""
    for field, model in subject.parts(ModelConfig):
        values, written = model_config(model), model.config or {}
        wrong = dict(_wrong_numbers(str(values.get("model_type")), written))
        for key, problem in wrong.items():
            yield subject.finding("HF812", problem, f"{field}.config.{key}")
        if not wrong:
            yield from _undivided(subject, field, values, written)


def _wrong_numbers(model_type: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of integers that are none, or less than a model can have, each with the message about it."""
    integers = _integers(model_type)
    for key, value in values.items():
        if key not in integers or value is None:
            continue
        if type(value) is not int:
            yield key, f"the '{key}' of a '{model_type}' model is a whole number, got {value!r}"
        elif value < LEAST.get(key, value):
            yield key, f"the '{key}' of a '{model_type}' model is at least {LEAST[key]}, got {value}"


def _undivided(
    subject: Subject, field: str, values: Mapping[str, Any], written: Mapping[str, Any]
) -> Iterator[Finding]:
    """The width of a model and its heads, where one does not divide the other and the configuration says so."""
    model_type = str(values.get("model_type"))
    width, heads, key_heads = (values.get(name) for name in ("hidden_size", *HEADS))
    if not is_count(heads, least=1) or written.keys().isdisjoint(("hidden_size", *HEADS)):
        return
    if is_count(width, least=1) and width % heads and WHOLE_HEADS in _configurations(model_type):
        key, other = _written("hidden_size", HEADS[0], written)
        yield subject.finding(
            "HF812",
            f"the hidden_size of a '{model_type}' model is a multiple of its num_attention_heads, got {width} and "
            f"{heads}",
            f"{field}.config.{key}",
            related={f"{field}.config.{other}": f"{values[other]} here"},
        )
    shares = model_type in BY_HEADS and HEADS[1] in _integers(model_type)
    if shares and is_count(key_heads, least=1) and heads % key_heads:
        key, other = _written(HEADS[1], HEADS[0], written)
        fitting = max(size for size in divisors(heads) if size <= key_heads)
        yield subject.finding(
            "HF812",
            f"each key-value head of a '{model_type}' model serves as many attention heads, so num_key_value_heads "
            f"divides num_attention_heads: got {key_heads} and {heads}",
            f"{field}.config.{key}",
            related={f"{field}.config.{other}": f"{values[other]} here"},
            changes=(SetField(f"{field}.config.{HEADS[1]}", fitting),),
        )


def _written(key: str, other: str, written: Mapping[str, Any]) -> tuple[str, str]:
    """Two keys, first the one that a configuration has beside the files of its model."""
    return (key, other) if key in written or other not in written else (other, key)


def _is_of_ready_role(subject: Subject, field: str) -> bool:
    """Whether the model is that of a ready-made role: the class of another one may add types when it is constructed."""
    role = subject.loaded.roles.get(field.partition(".")[0])
    return role is not None and role.__module__.startswith(READY_ROLES)


def _is_registered(model_type: str) -> bool:
    """Whether a user's module has added a type to transformers, which it has imported then."""
    registry = sys.modules.get("transformers.models.auto.configuration_auto")
    return registry is not None and model_type in registry.CONFIG_MAPPING


@cache
def _types() -> frozenset[str]:
    """The words that may be types of models; none if transformers lists them in another way."""
    root, names = _folder(), ("auto_mappings.py", "configuration_auto.py")
    files = [] if root is None else [root / "models/auto" / name for name in names]
    texts = [file.read_text("utf-8", errors="replace") for file in files if file.is_file()]
    words = frozenset(word for text in texts for word in _QUOTED.findall(text))
    return words if "llama" in words else frozenset()


@cache
def _integers(model_type: str) -> frozenset[str]:
    """The fields of the configuration of a type of model that are integers wherever its files declare them."""
    declared: dict[str, set[str]] = {}
    for name, annotation in _ANNOTATED.findall(_configurations(model_type)):
        declared.setdefault(name, set()).add(annotation.strip())
    return frozenset(name for name, annotations in declared.items() if annotations <= {"int", "int | None"})


def default_tokens(model_type: str, field: str) -> tuple[int | None, ...]:
    """The token that a type of model has in a field by default, or None; empty if its files do not state one."""
    configurations = _configurations(model_type)
    texts = set(re.findall(rf"^    {field}: [^=\n]+ = (.+)$", configurations, re.MULTILINE))
    is_computed = f"self.{field}" in configurations or f'"{field}"' in configurations
    [text] = texts if len(texts) == 1 and not is_computed else [""]
    return (None,) if text == "None" else (int(text),) if text.isdecimal() else ()


@cache
def _configurations(model_type: str) -> str:
    """The text of the files that declare the configuration of a type of model; empty for an unknown type."""
    root = _folder()
    folder = None if root is None else root / "models" / model_type.replace("-", "_")
    files = [] if folder is None else sorted(folder.glob("configuration_*.py"))
    return "\n".join(file.read_text("utf-8", errors="replace") for file in files)


def _folder() -> Path | None:
    spec = find_spec("transformers")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def _vocabulary(model_type: str) -> tuple[frozenset[str], frozenset[str]]:
    """The fields of the configuration of a type of model, and all words of its files; none of an unknown type."""
    root = _folder()
    folder = None if root is None else root / "models" / model_type.replace("-", "_")
    if folder is None or not folder.is_dir():
        return frozenset(), frozenset()
    texts = [file.read_text("utf-8", errors="replace") for file in folder.glob("*.py")]
    fields = frozenset(name for pair in _FIELD.findall(_configurations(model_type)) for name in pair if name)
    return fields, frozenset(re.findall(r"\w+", "\n".join(texts)))


@cache
def _is_shared(key: str) -> bool:
    """Whether a file that all models share has the word."""
    root = _folder()
    word = re.compile(rb"\b" + re.escape(key.encode()) + rb"\b")
    files = [] if root is None else [*root.glob("*.py"), *root.glob("generation/*.py"), *root.glob("integrations/*.py")]
    return any(word.search(file.read_bytes()) for file in files)
