"""Running a page: its blocks one after another, as a reader would, in a folder of the page's own.

- ``python``: the blocks of a page are one program; ``title`` at the first one names its file. A later block with
  another title is a file of its own, which is written but not run. Programs of other pages are there, such as
  ``grpo.py``.
- ``text`` after Python: what has been printed since the last such block. As in a doctest, ``...`` stands for any text.
- ``console``: every line that begins with ``$`` is a command, and what follows is its output; ``shell`` has commands
  alone. Commands of hfdsl run in this process. ``exits="1"`` says that they report findings.
- ``toml``: with ``title`` a file for the commands. Otherwise a whole run is checked, a deployment is read, and a part
  of a run must have the types of the fields that it changes.
- ``bash``: a script for the commands, under its ``title``.
- ``part``: the block is a part of this file of the repository, lines with ``...`` aside.
- ``needs``: what a machine of the tests lacks. The block is compiled, parsed, or read as a command line, and not run.

Only the nightly run takes pages whole: any other has the local backend for Ray's, which gives the same values, and
reads the command lines of ``SLOW`` commands alone.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import yaml

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.runtime.running import Running
from hfdsl.tools import cli
from tests.docs.blocks import PAGES, ROOT, Block, blocks

CHECKER = doctest.OutputChecker()
SLOW = {"diff", "doctor", "export", "train"}
OPTIONS = {"exits", "needs", "part", "title"}


class WrongBlockError(AssertionError):
    """A block that does not do what its page says; the text begins with the page and the line."""

    def __init__(self, block: Block, text: str) -> None:
        super().__init__(f"{block}: {text}")


def compare(block: Block, shown: str, printed: str) -> None:
    """Hold what a page shows against what is printed."""
    if not CHECKER.check_output(shown, printed, doctest.ELLIPSIS):
        example = doctest.Example("", shown)
        raise WrongBlockError(block, "\n" + CHECKER.output_difference(example, printed, doctest.ELLIPSIS))


class PageRun:
    """One run of a page; ``run`` takes its blocks in order."""

    def __init__(self, page: Path, folder: Path, *, whole: bool) -> None:
        self.page, self.folder, self.whole = page, folder, whole
        self.blocks = blocks(page)
        self.printed = ""
        python = [block for block in self.blocks if block.language == "python" and not skipped(block)]
        title = next((block.options.get("title") for block in python), None) or "page.py"
        program = [block for block in python if block.options.get("title", title) == title]
        self.file = folder / title
        self.file.write_text("\n\n".join(block.text for block in program), "utf-8")
        self.code = dict(zip((block.line for block in program), codes(self.file, program), strict=True))
        self.module = ModuleType("__main__")
        self.module.__file__ = str(self.file)
        for name, text in programs().items():
            if name != title:
                (folder / name).write_text(text, "utf-8")

    def run(self) -> None:
        """Run every block.

        Raises:
            WrongBlockError: where one fails, or prints something else than the page shows.
        """
        for name in ("examples", "benchmarks", "hfdsl"):
            (self.folder / name).symlink_to(ROOT / name)
        with self.as_main(), on_ray(self.imported()) if self.whole else on_one_process():
            for block in self.blocks:
                unknown = set(block.options) - OPTIONS
                if unknown:
                    raise WrongBlockError(block, f"unknown options {unknown}")
                if block.language not in RUN:
                    raise WrongBlockError(block, f"'{block.language}' is not one of {', '.join(RUN)}")
                if "part" in block.options:
                    hold_part(block)
                elif skipped(block):
                    SKIPPED[block.language](block)
                else:
                    RUN[block.language](self, block)

    def imported(self) -> list[ModuleType]:
        """The programs of other pages that this one imports."""
        text = self.file.read_text("utf-8")
        names = re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)
        return [importlib.import_module(name) for name in sorted(set(names)) if f"{name}.py" in programs()]

    @contextlib.contextmanager
    def as_main(self) -> Iterator[None]:
        """The page's program is ``__main__``, so Ray sends its classes along."""
        main, path, modules = sys.modules["__main__"], list(sys.path), set(sys.modules)
        sys.modules["__main__"] = self.module
        sys.path.insert(0, str(self.folder))  # as of a script
        try:
            yield
        finally:
            sys.modules["__main__"], sys.path[:] = main, path
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", "") or "").startswith(str(self.folder)):
                    del sys.modules[name]

    def python(self, block: Block) -> None:
        if block.line not in self.code:
            (self.folder / block.options["title"]).write_text(block.text, "utf-8")
            return
        with contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                exec(self.code[block.line], vars(self.module))  # noqa: S102
            except Exception as error:
                raise WrongBlockError(block, f"{type(error).__name__}: {error}") from error
        self.printed += out.getvalue()

    def text(self, block: Block) -> None:
        printed, self.printed = self.printed, ""
        compare(block, block.text, printed.replace(f"{self.folder}/", ""))

    def console(self, block: Block) -> None:
        for command, shown in commands(block):
            words = shlex.split(command, comments=True)
            if words[0] == "python" and (self.folder / words[1]).is_file():
                with contextlib.redirect_stdout(io.StringIO()) as script:
                    runpy.run_path(str(self.folder / words[1]), run_name="__main__")
                compare(block, shown, script.getvalue())
                continue
            if words[0] != "hfdsl":
                hold_command(block, words)
                continue
            if words[1] in SLOW and not self.whole:
                hold_arguments(block)
                continue
            exits, out, err = self.hfdsl(words[1:])
            if exits != int(block.options.get("exits", 0)):
                raise WrongBlockError(block, f"{command!r} exits with {exits}\n{out}{err}")
            if shown:
                compare(block, shown, out)

    def hfdsl(self, words: list[str]) -> tuple[int, str, str]:
        """A command of hfdsl: its exit code, and what it writes. A run of two steps shows that a training starts."""
        if words[0] == "train":
            words = [*words, "--set", "steps=2"]
        if not self.whole:
            words = ["local" if word == "ray" else word for word in words]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                exits = cli.main(words)
            except SystemExit as end:
                exits = int(end.code or 0)
        return exits, out.getvalue(), err.getvalue()

    def bash(self, block: Block) -> None:
        (self.folder / block.options["title"]).write_text(block.text, "utf-8")

    def toml(self, block: Block) -> None:
        table = tomllib.loads(block.text)
        if "title" in block.options:
            (self.folder / block.options["title"]).write_text(block.text, "utf-8")
        elif "algorithm" in table and "steps" in table:
            file = self.folder / f"line_{block.line}.toml"
            file.write_text(block.text, "utf-8")
            exits, out, err = self.hfdsl(["check", "--elsewhere", "--strict", file.name])
            if exits:
                raise WrongBlockError(block, out + err)
        else:
            hold_fields(block, table)


@contextlib.contextmanager
def on_one_process() -> Iterator[None]:
    """Plans that are launched on Ray run on the local backend."""
    launch = CompiledPlan.launch

    def local(plan: CompiledPlan, backend: Any = "local", **options: Any) -> Running:
        return launch(plan, "local" if backend == "ray" else backend, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledPlan, "launch", local)
        yield


@contextlib.contextmanager
def on_ray(modules: list[ModuleType]) -> Iterator[None]:
    """Programs run on the cluster of the tests, whose processes do not have the page's folder: they get the classes."""
    import ray
    from ray import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # cloudpickle has no types
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray, "init", lambda: None)
            yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


@cache
def programs() -> dict[str, str]:
    """The programs of all pages that name a file for theirs, and their files of TOML."""
    result: dict[str, str] = {}
    for page in PAGES:
        toml = [block for block in blocks(page) if block.language == "toml" and "title" in block.options]
        result |= {block.options["title"]: block.text for block in toml}
        python = [block for block in blocks(page) if block.language == "python" and not skipped(block)]
        if python and "title" in python[0].options:
            title = python[0].options["title"]
            result[title] = "\n\n".join(block.text for block in python if block.options.get("title", title) == title)
    return result


def skipped(block: Block) -> bool:
    return bool({"needs", "part"} & set(block.options))


def codes(file: Path, program: list[Block]) -> list[CodeType]:
    """The code of each block, with the lines that it has in the file of all blocks."""
    result, line = [], 0
    for block in program:
        tree = ast.parse(block.text)
        ast.increment_lineno(tree, line)
        line += block.text.count("\n") + 2
        result.append(compile(tree, str(file), "exec"))
    return result


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that is shown."""
    if block.language == "shell":
        return [(line, "") for line in block.text.splitlines() if line.strip()]
    parts = re.split(r"^\$ (.*)\n", block.text, flags=re.MULTILINE)
    if parts[0].strip():
        raise WrongBlockError(block, "a console begins with a command")
    return list(zip(parts[1::2], parts[2::2], strict=True))


def hold_command(block: Block, words: list[str]) -> None:
    """A command of another program: the extras and targets that it names are there."""
    if words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        extras = {extra for word in words for extra in re.findall(r"hfdsl\[(.*)\]", word)}
        missing = {name for extra in extras for name in extra.split(",")} - set(project["optional-dependencies"])
        if missing:
            raise WrongBlockError(block, f"there are no extras {missing}")
    elif words[0] == "make":
        if not re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE):
            raise WrongBlockError(block, f"there is no target {words[1]}")
    else:
        raise WrongBlockError(block, f"{words[0]!r} is not run here: say what it needs")


def hold_arguments(block: Block) -> None:
    """Commands of hfdsl that are not run still have arguments that exist."""
    for command, _ in commands(block):
        words = shlex.split(command, comments=True)
        if words[0] == "hfdsl":
            with contextlib.redirect_stderr(io.StringIO()) as err:
                try:
                    cli._arguments(words[1 : words.index("|") if "|" in words else None])
                except SystemExit:
                    raise WrongBlockError(block, f"{command!r}: {err.getvalue()}") from None


def hold_part(block: Block) -> None:
    """The lines of an excerpt are lines of its file, in this order."""
    source = (ROOT / block.options["part"]).read_text("utf-8")
    rest = "".join(source.split())
    for line in block.text.splitlines():
        for piece in filter(None, ("".join(part.split()) for part in line.split("..."))):
            _, piece_found, rest = rest.partition(piece)
            if not piece_found:
                raise WrongBlockError(block, f"{block.options['part']} does not have {line.strip()!r}")


def merged(table: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A table with the fields of another; a table of another kind replaces it."""
    result = dict(table)
    for key, value in change.items():
        before = result.get(key)
        same = isinstance(before, dict) and isinstance(value, dict) and before.get("kind") == value.get("kind")
        result[key] = merged(before, value) if same and before is not None else value
    return result


def hold_fields(block: Block, table: Mapping[str, Any]) -> None:
    """A part of a configuration has fields that exist, with values of their types."""
    from hfdsl.errors import HfError
    from hfdsl.rl.training.config import from_table
    from hfdsl.rl.training.config_names import by_name

    if "tool" in table:
        return
    base = tomllib.loads((ROOT / "examples/spelling.toml").read_text("utf-8"))
    base["deployment"] = tomllib.loads((ROOT / base["deployment"]).read_text("utf-8"))
    change = table
    if "pools" in table:
        base["deployment"], change = {}, {"deployment": table}
    if "algorithm" in table:  # options and roles are those of the algorithm
        roles = by_name(table["algorithm"]).trace().roles
        base = {key: value for key, value in base.items() if key not in {"options", "reference"} - set(roles)}
    try:
        from_table(merged(base, change))
    except HfError as error:
        raise WrongBlockError(block, str(error)) from error


def parse_python(block: Block) -> None:
    """The block is valid Python, and the modules that it imports exist."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "hfdsl":
            module = importlib.import_module(str(node.module))
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            if missing:
                raise WrongBlockError(block, f"{node.module} lacks {missing}")


RUN: dict[str, Callable[[PageRun, Block], None]] = {
    "python": PageRun.python,
    "text": PageRun.text,
    "console": PageRun.console,
    "shell": PageRun.console,
    "toml": PageRun.toml,
    "json": lambda _, block: json.loads(block.text),
    "yaml": lambda _, block: yaml.safe_load(block.text),
    "bash": PageRun.bash,
}
SKIPPED: dict[str, Callable[[Block], object]] = {
    "python": parse_python,
    "text": lambda _: None,
    "console": hold_arguments,
    "shell": hold_arguments,
    "toml": lambda block: tomllib.loads(block.text),
}
