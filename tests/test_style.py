"""One name, one thing; one spelling; the words of the field."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = {"tests/test_style.py"}
CODE = ("hfdsl", "tests", "benchmarks", "examples")

# -- names

MEANT = {
    "Program": "a program as rules see it, and a drawn one, which is public as hfdsl.testing.strategies.Program",
}
"""Public names of classes and aliases that stand in several modules, each with the reason."""


def public_names(text: str) -> Iterator[str]:
    """Classes and type aliases of a module."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ClassDef):
            name = statement.name
        elif isinstance(statement, ast.AnnAssign) and "TypeAlias" in ast.unparse(statement.annotation):
            name = ast.unparse(statement.target)
        else:
            continue
        if not name.startswith("_"):
            yield name


def test_a_public_class_or_alias_stands_in_one_module() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "hfdsl").rglob("*.py")):
        for name in public_names(file.read_text("utf-8")):
            homes[name].append(str(file.relative_to(ROOT)))
    assert len(homes) > 300
    assert {name: files for name, files in homes.items() if len(files) > 1 and name not in MEANT} == {}
    assert {name for name in MEANT if len(homes[name]) < 2} == set(), "no longer in several modules"


def test_a_name_is_found() -> None:
    assert list(public_names("class A: ...\nB: TypeAlias = int\nclass _C: ...\nd: int = 1\n")) == ["A", "B"]


# -- words

BRITISH = re.compile(
    r"\b\w*(?:(?:optim|normal|serial|initial|material|penal|summar|recogn|organ|minim|maxim|special|general|util)is(?:e|ing|ation)"
    r"|colour|behaviour|favour|neighbour|misspelt|learnt|(?:label|model|cancel|travel|signal)l(?:ed|ing)|centred|metre\b|licence)\w*",
    re.IGNORECASE,
)
OUR_OWN = re.compile(
    r"\b(?:(?:is|are|was|were|be|been) (?:told(?! to\b| apart\b)|taught|dealt|heeded|brought)"
    r"|anew|heeded|whoever|such as have|(?:goes|went) on|for ever)\b"
)
"""Words of the first design, which a reader from the field does not know."""

ALLOWED = {
    "cancelled": "concurrent.futures spells its method so",
    "cancellederror": "asyncio spells its exception so",
}
"""Words that are spelled the British way on purpose, each with the reason."""


def texts(*patterns: str) -> list[Path]:
    files = [file for pattern in patterns for file in ROOT.glob(pattern) if str(file.relative_to(ROOT)) not in OWN]
    assert files
    return files


def docstrings(text: str) -> str:
    """The prose of a module: its docstrings and those of its classes, functions and fields."""
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return "\n".join(strings)


def test_the_spelling_is_american() -> None:
    files = texts(*(f"{room}/**/*.py" for room in CODE), "hfdsl/**/*.md", "docs/*.md", "README.md", "CONTRIBUTING.md")
    places = {word: file for file in files for word in re.findall(r"\w+", file.read_text("utf-8"))}  # one for each word
    british = {word: file for word, file in places.items() if BRITISH.search(word) and word.lower() not in ALLOWED}
    assert british == {}


def test_prose_is_in_the_words_of_the_field() -> None:
    prose = {file: file.read_text("utf-8") for file in texts("docs/*.md", "*.md", "hfdsl/check/explain/*.md")}
    modules = {file: file.read_text("utf-8") for file in texts(*(f"{room}/**/*.py" for room in CODE))}
    prose |= {
        file: docstrings(text) for file, text in modules.items() if OUR_OWN.search(text)
    }  # others need no parsing
    assert {f"{file.relative_to(ROOT)}: {m}" for file, text in prose.items() for m in OUR_OWN.findall(text)} == set()


ROOMS = (
    "types",
    "protocols",
    "graph",
    "deploy",
    "check",
    "plan",
    "rl",
    "single_controller",
    "runtime",
    "testing",
    "tools",
    "interop",
)
"""Rooms whose docstrings begin with a verb or a noun phrase."""


def summaries(text: str) -> Iterator[str]:
    """The first lines of the docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield (ast.get_docstring(node) or "").partition("\n")[0]


def test_docstrings_name_their_subject() -> None:
    files = texts(*(f"hfdsl/{room}/**/*.py" for room in ROOMS))
    vague = re.compile(r"(What|The same|That|Those|Which) ")
    lines = [(file, line) for file in files for line in summaries(file.read_text("utf-8"))]
    assert [f"{file.relative_to(ROOT)}: {line}" for file, line in lines if vague.match(line)] == []
    assert len(lines) > 2000
    assert vague.match("The same of a table.")


@pytest.mark.parametrize(
    "word", ["optimiser", "normalised", "behaviour", "Labelled", "neighbours", "modelling", "misspelt"]
)
def test_a_british_word_is_found(word: str) -> None:
    assert BRITISH.search(f"the {word} is")


@pytest.mark.parametrize("word", ["optimizer", "raised", "precise", "otherwise", "color", "model", "parallel"])
def test_an_american_word_is_not(word: str) -> None:
    assert not BRITISH.search(f"the {word} is")


def test_a_word_of_the_first_design_is_found() -> None:
    assert OUR_OWN.findall("it is told anew, was told to stop, and was brought") == ["is told", "anew", "was brought"]
    assert docstrings('"""One."""\nx = 1\n"""Two."""\n') == "One.\nTwo."
