"""Trying mutants: one warm process that has collected the tests, and a forked child for each mutant."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pickle
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from benchmarks.mutation.mutants import Mutant, codes


@dataclass(frozen=True, slots=True)
class Test:
    """What a test reaches of the mutated files, as lines, and the CPU time that it needs under the tracer."""

    lines: frozenset[tuple[str, int]]
    seconds: float


class Trying:
    """A pytest plugin that tries mutants in place of running the tests once.

    ``tried`` is called with each mutant and its fate: ``killed``, ``timeout``, ``survived`` or ``unreached``.
    """

    def __init__(
        self, root: Path, drawn: Sequence[Mutant], examples: int, longest: float, tried: Callable[[Mutant, str], None]
    ) -> None:
        self.root, self.drawn, self.examples, self.longest, self.tried = root, drawn, examples, longest, tried
        self.files = {str(root / mutant.file): mutant.file for mutant in drawn}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out what the tests reach and need, and try every mutant."""
        items = [item for item in session.items if not any(item.iter_markers("skip"))]
        for item in items:
            try_few(item, self.examples)
        for file in self.files.values():  # what tests would import late
            importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        gc.unfreeze()  # tests/conftest.py freezes what was there, and get_objects leaves that out
        caches = [candidate for candidate in gc.get_objects() if type(candidate) is functools._lru_cache_wrapper]
        functions = live_functions(set(self.files))
        gc.freeze()  # children share what is there
        tests = in_child(lambda: self.reach(items, caches))
        selected = {item: tests[item.nodeid] for item in items if item.nodeid in tests}
        steady = sorted(
            (item for item in selected if selected[item].seconds < self.longest), key=lambda i: selected[i].seconds
        )
        slow = sum(test.seconds >= self.longest for test in selected.values())
        print(f"# {len(items)} tests; {len(steady)} pass in any order and reach these files; {slow} slow", flush=True)
        original: dict[str, list[CodeType]] = {}
        for mutant in self.drawn:
            if mutant.file not in original:
                path = self.root / mutant.file
                original[mutant.file] = codes(compile(path.read_text("utf-8"), path, "exec", dont_inherit=True))
            old, new = original[mutant.file][mutant.place], codes(mutant.code)[mutant.place]
            needed = {(mutant.file, line) for line in mutant.lines}
            covering = [
                (item, selected[item].seconds) for item in steady if not needed.isdisjoint(selected[item].lines)
            ]
            reached = covering and old in functions
            self.tried(mutant, fate_of(functions[old], new, caches, covering) if reached else "unreached")
        return True

    def reach(self, items: Sequence[pytest.Item], caches: Sequence[Any]) -> dict[str, Test]:
        """What the tests that pass in a random order reach; none profits from what another left in a cache."""
        reached: dict[str, Test] = {}
        now: set[tuple[str, int]] = set()

        def enter(frame: FrameType, event: str, arg: Any) -> Any:
            return step if frame.f_code.co_filename in self.files else None

        def step(frame: FrameType, event: str, arg: Any) -> Any:
            now.add((self.files[frame.f_code.co_filename], frame.f_lineno))
            return step

        mixed = random.Random(0).sample(items, len(items))
        for item, following in zip(mixed, [*mixed[1:], None], strict=True):
            now.clear()
            clear(caches)
            start = process_time()
            sys.settrace(enter)
            passed = passes(item, following)
            sys.settrace(None)
            if passed and now:
                reached[item.nodeid] = Test(frozenset(now), process_time() - start)
        return reached


def try_few(item: pytest.Item, examples: int) -> None:
    """Have a property try few examples, always the same, and stop at the first that fails."""
    body: Any = getattr(item, "obj", None)
    if hasattr(body, "hypothesis"):
        current = getattr(body, "_hypothesis_internal_use_settings", None) or settings()
        body._hypothesis_internal_use_settings = settings(
            current, max_examples=min(current.max_examples, examples), derandomize=True, database=None, deadline=None,
            phases=[Phase.explicit, Phase.generate], print_blob=False,
        )  # fmt: skip  # one call


def live_functions(files: set[str]) -> dict[CodeType, list[FunctionType]]:
    """The functions of some files by their code, wherever they are kept: in classes, properties, tables, closures."""
    functions: dict[CodeType, list[FunctionType]] = {}
    for live in gc.get_objects():
        if isinstance(live, FunctionType) and live.__code__.co_filename in files:
            functions.setdefault(live.__code__, []).append(live)
    return functions


def clear(caches: Sequence[Any]) -> None:
    """Forget what hfdsl's cached functions found."""
    for cache in caches:
        if str(cache.__module__).startswith("hfdsl"):
            cache.cache_clear()


def passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Whether a test passes, with its fixtures."""
    return all(report.outcome != "failed" for report in runtestprotocol(item, log=False, nextitem=following))


def in_child(work: Callable[[], Any]) -> Any:
    """What a forked child finds."""
    with tempfile.TemporaryFile() as file:
        if (pid := os.fork()) == 0:
            silence()
            pickle.dump(work(), file)
            file.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        return pickle.load(file)


def fate_of(
    functions: Sequence[FunctionType], new: CodeType, caches: Sequence[Any], tests: Sequence[tuple[pytest.Item, float]]
) -> str:
    """What becomes of a mutant: the tests run in a child until one fails or takes far too long."""
    if (pid := os.fork()) == 0:
        silence()
        try:
            for function in functions:
                function.__code__ = new
            clear(caches)
            for (item, seconds), following in zip(tests, [*(item for item, _ in tests[1:]), None], strict=True):
                # Of CPU time, since other programs slow the machine; and of the clock, for what waits forever.
                signal.setitimer(signal.ITIMER_PROF, 2 + 10 * seconds)
                signal.setitimer(signal.ITIMER_REAL, 60 + 100 * seconds)
                if not passes(item, following):
                    os._exit(1)
        except BaseException:  # noqa: BLE001  # whatever a mutant raises, it is noticed
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "timeout" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "killed"
    return "killed" if os.WEXITSTATUS(status) else "survived"


def silence() -> None:
    """A child prints nothing, and dies of its timers."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
