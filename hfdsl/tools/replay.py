"""``hfdsl replay``: repeat one call of a recorded step in this process, under a debugger if asked to."""

from __future__ import annotations

import argparse
import bdb
import pdb
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.runtime.saving.recording import CALLS, RESULT, ROLES, read_header
from hfdsl.runtime.saving.value_files import is_written
from hfdsl.testing.replaying import recordings, replay
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import FINDINGS, OK, machine, say, show_json


def show_replay(arguments: argparse.Namespace) -> int:
    """Repeat a call and report whether the outcome is the same; without ``--node``, list the calls.

    Raises:
        UsageError: where there is no such recording, step, call or rank.
    """
    try:
        return _replayed(arguments)
    except CheckpointError as error:
        raise UsageError(str(error) if error.code == "HF915" else error.message) from None


def _replayed(arguments: argparse.Namespace) -> int:
    steps = recordings(Path(arguments.run))
    if arguments.step is None and len(steps) > 1:
        raise UsageError(f"'{arguments.run}' has recorded steps {', '.join(map(str, steps))}; choose one with --step N")
    step = next(iter(steps)) if arguments.step is None else arguments.step
    if step not in steps:
        raise UsageError(f"'{arguments.run}' has not recorded step {step}; it has {', '.join(map(str, steps))}")
    if arguments.node is None:
        return _list(steps[step], arguments)
    header = read_header(steps[step])
    for call in header["calls"]:
        if call["label"] == arguments.node:
            say(f"hfdsl replay: this runs {_code(header, call)}{_trusted(steps[step], arguments)}", file=sys.stderr)
    around = _debugged if arguments.pdb else _as_it_is
    replayed = replay(steps[step], arguments.node, arguments.rank, around, trust=arguments.trust)
    if machine(arguments):
        show_json({"node": replayed.label, "rank": replayed.rank, "same": replayed.same, "text": str(replayed)})
    else:
        say(str(replayed))
    if arguments.pdb and replayed.error is not None:
        pdb.post_mortem(replayed.error.__traceback__)
    return OK if replayed.same else FINDINGS


def _code(header: Mapping[str, Any], call: Mapping[str, Any]) -> str:
    """The code that repeats a call."""
    module, _, name = call["definition"].partition(":")
    if module != "__main__" or header["main"] is None:
        return f"'{name}' of the module '{module}'"
    return f"'{name}' of '{header['main']['file']}', which is loaded up to its first launch"


def _trusted(folder: Path, arguments: argparse.Namespace) -> str:
    return f", and what the pickles in '{folder}' say" if arguments.trust else ""


def _as_it_is(body: Callable[..., Any]) -> Callable[..., Any]:
    return body


def _debugged(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body under the debugger, which stops at its first line."""

    def run(**arguments: Any) -> Any:
        try:
            return pdb.Pdb().runcall(body, **arguments)
        except bdb.BdbQuit:
            raise KeyboardInterrupt from None

    return run


def _list(folder: Path, arguments: argparse.Namespace) -> int:
    """The calls of a recording, in program order, with the ranks that received input and those that failed."""
    calls: dict[str, dict[str, Any]] = {}
    for call in read_header(folder)["calls"]:
        place = folder / CALLS / call["label"]
        ranks = [rank for rank in call["ranks"] if (place / f"rank-{rank}").exists()]
        failed = [rank for rank in ranks if not is_written(place / f"rank-{rank}" / RESULT)]
        pickles = any(place.rglob("*.pkl")) or (folder / ROLES / f"{call['role']}.pkl").exists()
        calls[call["label"]] = {"ranks": ranks, "failed": failed, "pickles": pickles}
    if machine(arguments):
        show_json(calls)
        return OK
    width = max(map(len, calls), default=0)
    for label, outcome in calls.items():
        shown = ", ".join(map(str, outcome["ranks"]))
        notes = [f"no result on {', '.join(map(str, outcome['failed']))}"] if outcome["failed"] else []
        notes += ["with pickles: needs --trust"] if outcome["pickles"] else []
        note = f"  ({'; '.join(notes)})" if notes else ""
        say(f"{label:{width}}  ranks {shown}{note}" if outcome["ranks"] else f"{label:{width}}  not reached")
    return OK
