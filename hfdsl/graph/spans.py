"""Source spans: where in the user's files something is written."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, TypeAlias

_ROOMS = (
    "types",
    "protocols",
    "graph",
    "deploy",
    "check",
    "plan",
    "single_controller",
    "runtime",
    "rl",
    "interop",
    "testing",
    "tools",
)
_PACKAGE = __file__.rpartition(f"graph{os.sep}")[0]  # not pathlib: `import hfdsl` is kept fast
_OWN = (*(f"{_PACKAGE}{room}{os.sep}" for room in _ROOMS), f"{_PACKAGE}__init__.py", f"{_PACKAGE}errors.py")
_PROGRAMS = tuple(
    f"{_PACKAGE}{place.replace('/', os.sep)}"
    for place in ("rl/dataflows/", "rl/training/evaluation.py", "testing/sample_roles.py", "testing/suite_programs.py")
)
"""Dataflows that users read, copy and change, and programs of tests: their lines are reported like a user's."""
_COMMAND = f"{_PACKAGE}tools{os.sep}cli.py"
_PYTHON = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120  # the same


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a file; lines from 1, columns from 0, the end exclusive.

    ``calls`` are the calls through which a traced dataflow reached the place, outermost first; they are no part of it.
    """

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    calls: tuple[CallSite, ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call of an inner dataflow, or of a plain Python function, in a dataflow that is traced."""

    callee: str
    span: Span


NOWHERE = Span("<unknown>", 0)


def caller_span() -> Span:
    """The expression in the user's code that is being executed: the innermost frame outside of hfdsl's own rooms.

    Nowhere, where only the command line stands between: what starts it is no program of a user.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        frame = None if frame.f_code.co_filename == _COMMAND else frame.f_back
    return NOWHERE if frame is None else frame_span(frame)


def traced_span(runner: CodeType) -> Span:
    """The expression in the user's code that is being executed, with the calls that lead there from the dataflow.

    ``runner`` is the code of the function that calls the dataflow's body.
    """
    frame: FrameType | None = sys._getframe(1)
    reached: list[FrameType] = []
    while frame is not None and frame.f_code is not runner:
        if not _is_library(frame):
            reached.append(frame)
        frame = frame.f_back
    if frame is None or not reached:
        return caller_span()
    if len(reached) == 1:
        return frame_span(reached[0])
    return _through_calls([(step.f_code.co_name, frame_span(step)) for step in reversed(reached)])


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions that Python creates for an expression, without a user's call."""


def _through_calls(steps: list[tuple[str, Span]]) -> Span:
    """The last of the places at which functions stand that call each other, outermost first, with those before it."""
    callers = pairwise(steps)
    calls = tuple(CallSite(callee, span) for (_, span), (callee, _) in callers if callee not in _COMPREHENSIONS)
    _, span = steps[-1]
    return replace(span, calls=calls) if calls else span


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is of hfdsl's rooms or of Python's own library: no line that a user can mend."""
    file = frame.f_code.co_filename
    if file == "<string>":  # the __init__ that dataclass makes, for a class of hfdsl
        return str(frame.f_globals.get("__name__", "")).startswith("hfdsl.")
    return _is_library_file(file)


@lru_cache(maxsize=1024)
def _is_library_file(file: str) -> bool:
    if file.startswith(_OWN):
        return not file.startswith(_PROGRAMS)
    return file.startswith(_PYTHON) and "site-packages" not in file


def frame_span(frame: FrameType) -> Span:
    """The expression at which a frame stands."""
    return _position(frame.f_code, frame.f_lasti) or Span(frame.f_code.co_filename, frame.f_lineno)


def traceback_span(error: BaseException, runner: CodeType | None = None) -> Span:
    """The innermost place outside of hfdsl that raised ``error``; with the calls that lead there from ``runner``."""
    steps, entry = list[tuple[str, Span]](), error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if code is runner:
            steps.clear()
        if not _is_library(entry.tb_frame):
            steps.append((code.co_name, _position(code, entry.tb_lasti) or Span(code.co_filename, entry.tb_lineno)))
        entry = entry.tb_next
    if not steps:
        return NOWHERE
    return steps[-1][1] if runner is None else _through_calls(steps)


def until_user(trace: TracebackType | None) -> TracebackType | None:
    """A traceback up to the innermost place outside of hfdsl; the whole one if there is none."""
    steps, entry = list[TracebackType](), trace
    while entry is not None:
        steps.append(entry)
        entry = entry.tb_next
    while steps and _is_library(steps[-1].tb_frame):
        steps.pop()
    shortened: TracebackType | None = None
    for step in reversed(steps):
        shortened = TracebackType(shortened, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return shortened or trace


_Positions: TypeAlias = "tuple[tuple[int | None, int | None, int | None, int | None], ...]"


class _Places(NamedTuple):
    """The positions of a function's instructions, and the spans of those that were asked for."""

    code: CodeType  # held, so that its id is of nothing else
    positions: _Positions
    spans: dict[int, Span | None]


_places: dict[int, _Places] = {}


def _places_in(code: CodeType) -> _Places:
    """The places in a function.

    Python decodes positions from the first on, so decoding again for each call in a function is quadratic in its
    length.
    """
    places = _places.get(id(code))  # by identity, since the hash of code goes through all that it holds
    if places is None:
        if len(_places) == 64:
            _places.clear()
        places = _places[id(code)] = _Places(code, tuple(code.co_positions()), {})
    return places


def _position(code: CodeType, instruction: int) -> Span | None:
    """The place of an instruction; None if Python runs without column positions."""
    _, positions, spans = _places_in(code)
    if instruction not in spans:
        start, end, column, end_column = positions[instruction // 2] if instruction >= 0 else (None,) * 4
        spans[instruction] = None
        if start is not None and column is not None:
            spans[instruction] = Span(code.co_filename, start, column, end or start, end_column or 0)
    return spans[instruction]


def definition_span(subject: Callable[..., Any] | type) -> Span:
    """The line of a ``def`` or ``class`` statement (of the ``def`` itself, not of its decorators)."""
    try:
        if isinstance(subject, type):
            return Span(inspect.getsourcefile(subject) or "<unknown>", _class_line(subject))
        function = inspect.unwrap(subject)  # a decorator's own function may be in another file
        file = inspect.getsourcefile(function) or "<unknown>"
        code = function.__code__
        is_lambda = code.co_name == "<lambda>"  # has no def to look for
        return Span(file, code.co_firstlineno if is_lambda else _def_line(file, code.co_firstlineno), 0)
    except (OSError, TypeError, AttributeError):
        return NOWHERE


def column_span(record: Span, column: str) -> Span:
    """The declaration of a column in the class statement at ``record``; that place itself if there is none."""
    for first, last, columns in _class_columns(record.file, "".join(linecache.getlines(record.file))):
        if column in columns and first <= record.line <= last:
            return replace(columns[column], calls=record.calls)
    return record


@lru_cache(maxsize=16)  # by the text: an editor's server checks a file again after it has changed
def _class_columns(file: str, text: str) -> list[tuple[int, int, dict[str, Span]]]:
    """By class statement the lines above its body, and its annotated names."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return [
        (
            min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)]),
            statement.body[0].lineno - 1,
            {
                field.target.id: Span(
                    file, field.lineno, field.col_offset, field.end_lineno or 0, field.end_col_offset or 0
                )
                for field in statement.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            },
        )
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ClassDef)
    ]


@lru_cache(maxsize=1024)  # Python parses the whole file
def _class_line(subject: type) -> int:
    return inspect.findsource(subject)[1] + 1


def _def_line(file: str, first: int) -> int:
    """``co_firstlineno`` is the first decorator's line; walk down to the ``def``."""
    for line in range(first, first + 50):
        text = linecache.getline(file, line)
        if text.lstrip().startswith(("def ", "async def ")):
            return line
        if not text:  # the end of the file
            break
    return first
