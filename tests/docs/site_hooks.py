"""What the site has that its pages do not: the reference of all public names, and what a block needs as its caption.

The reference is a page for each part of the public modules, made when mkdocs builds the site.
``docs/public.md`` is the one table of what is public. For each of its names a page has a directive of mkdocstrings,
which reads signatures and docstrings from the source and imports nothing. ``mkdocs.yml`` names this file twice: as a
hook of mkdocs, and as an extension of griffe that shows the examples of docstrings as code.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r'(\w+)="([^"]*)"')

PARTS = {
    "reference/language.md": ("The language", ("hfdsl", "hfdsl.errors", "hfdsl.protocols")),
    "reference/runs.md": ("Plans and runs", ("hfdsl.plan", "hfdsl.runtime", "hfdsl.tools")),
    "reference/algorithms.md": ("Algorithms", ("hfdsl.rl",)),
    "reference/roles.md": ("Ready-made roles", ("hfdsl.rl.workers", "hfdsl.rl.engines", "hfdsl.rl.models")),
    "reference/training.md": ("Training and data", ("hfdsl.rl.training", "hfdsl.rl.data")),
    "reference/testing.md": ("Testing", ("hfdsl.testing",)),
    "reference/single_controller.md": ("The imperative layer", ("hfdsl.single_controller",)),
}
"""Pages, their titles, and the modules on each: a module is on the page that names the longest part of its path."""


RECORDS = "    options:\n      show_if_no_docstring: true\n"
"""Columns of records speak for themselves: they have dtypes and dims, and no docstrings."""


def table() -> list[tuple[str, list[str]]]:
    """The public modules with their names, in the order of the table."""
    text = (ROOT / "docs/public.md").read_text("utf-8")
    rows = re.findall(r"^\| `(hfdsl[\w.]*)` \| (.*) \|$", text, re.MULTILINE)
    listed = [(module, re.findall(r"`([\w*]+)`", cells)) for module, cells in rows]
    return [(module, names_of(module) if names == ["*"] else names) for module, names in listed]


def source_of(module: str) -> Path:
    """The file of a module."""
    file = ROOT.joinpath(*module.split("."))
    return file / "__init__.py" if file.is_dir() else file.with_suffix(".py")


@cache
def parsed(module: str) -> ast.Module:
    """The source of a module."""
    return ast.parse(source_of(module).read_text("utf-8"))


@cache
def imports(module: str) -> dict[str, tuple[str, str]]:
    """The names that a module imports from hfdsl, each with where it comes from and its name there."""
    nodes = [node for node in ast.walk(parsed(module)) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in nodes
        if node.module and node.module.startswith("hfdsl")
        for alias in node.names
    }


def names_of(module: str) -> list[str]:
    """What ``*`` stands for: ``__all__``, or the public classes and functions that the module defines."""
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    definitions = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [node.name for node in definitions if not node.name.startswith("_")]


def part_of(module: str) -> str:
    """The page that a module is on.

    >>> part_of("hfdsl.rl.training.loop"), part_of("hfdsl.rl.losses")
    ('reference/training.md', 'reference/algorithms.md')
    """
    prefixes = {prefix: page for page, (_, modules) in PARTS.items() for prefix in modules}
    return prefixes[max((name for name in prefixes if f"{module}.".startswith(f"{name}.")), key=len)]


def origin(module: str, name: str) -> str:
    """Where a name is defined, followed through the imports of its module."""
    return origin(*imports(module)[name]) if name in imports(module) else f"{module}.{name}"


def pages() -> dict[str, str]:
    """The text of every page; a name of two modules has its entry under the first, and a link under the other."""
    texts = {page: f"# {title}\n" for page, (title, _) in PARTS.items()}
    entries: dict[str, tuple[str, str]] = {}
    for module, names in table():
        page = part_of(module)
        texts[page] += f"\n## {module}\n"
        for name in names:
            defined = origin(module, name)
            first_page, entry = entries.setdefault(defined, (page, f"{module}.{name}"))
            if entry == f"{module}.{name}":
                texts[page] += f"\n::: {entry}\n{RECORDS if module == 'hfdsl.rl.batches' else ''}"
            else:
                texts[page] += f"\n`{name}` is [`{entry}`]({Path(first_page).name}#{entry}).\n"
    return texts


def on_files(files: Files, config: Any) -> Files:
    """Add the pages to those of the folder: a hook of mkdocs."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def captioned(options: str) -> str:
    """The options of a fence that mkdocs knows; what the tests read of it becomes a caption, or is left out.

    >>> captioned(' needs="two GPUs"'), captioned(' title="grpo.py"'), captioned(' exits="1"')
    (' title="needs two GPUs"', ' title="grpo.py"', '')
    """
    prefixes = {"title": "", "needs": "needs ", "part": "from "}
    titles = [(prefixes[name], value) for name, value in OPTION.findall(options) if name in prefixes]
    return "".join(f' title="{before}{value}"' for before, value in titles)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the options of all fences: a hook of mkdocs."""
    return re.sub(r"^( *```\w+)( .+)$", lambda fence: fence[1] + captioned(fence[2]), markdown, flags=re.MULTILINE)


def with_fences(text: str) -> str:
    """Docstrings have their examples as they stand in an interpreter; a page has them as code.

    >>> with_fences("A sum.\\n\\n>>> 1 + 1\\n2").split("\\n\\n")[1].splitlines()
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    paragraphs = re.split(r"\n{2,}", text)
    fenced = [f"```pycon\n{part}\n```" if part.lstrip().startswith(">>> ") else part for part in paragraphs]
    return "\n\n".join(fenced)


class Examples(griffe.Extension):
    """Shows the examples of docstrings as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change a docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
