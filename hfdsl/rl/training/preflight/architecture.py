"""The keys of a model's configuration, looked up in the text of transformers, which silently drops unknown ones.

``vocab_sise = 30`` is no error there: the model has the default vocabulary. So a key counts as misspelled if neither
the model's own files nor the files that all models share have the word, and it resembles a field of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from hfdsl.check.findings import Finding
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import RenameField
from hfdsl.rl.workers.config import ModelConfig
from hfdsl.rl.workers.slicing import model_config

_FIELD = re.compile(r"^    (\w+): |self\.(\w+) = ", re.MULTILINE)


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
    texts = {file.name: file.read_text("utf-8", errors="replace") for file in folder.glob("*.py")}
    configurations = "\n".join(text for name, text in texts.items() if name.startswith("configuration_"))
    fields = frozenset(name for pair in _FIELD.findall(configurations) for name in pair if name)
    return fields, frozenset(re.findall(r"\w+", "\n".join(texts.values())))


@cache
def _is_shared(key: str) -> bool:
    """Whether a file that all models share has the word."""
    root = _folder()
    word = re.compile(rb"\b" + re.escape(key.encode()) + rb"\b")
    files = [] if root is None else [*root.glob("*.py"), *root.glob("generation/*.py"), *root.glob("integrations/*.py")]
    return any(word.search(file.read_bytes()) for file in files)
