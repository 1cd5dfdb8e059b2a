"""``hfdsl replay``: repeat one call of a recorded step in this process, under a debugger if asked to."""

from __future__ import annotations

import argparse
import bdb
import pdb
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.runtime.recording import CALLS, RESULT, read_header
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
        raise UsageError(error.message) from None


def _replayed(arguments: argparse.Namespace) -> int:
    steps = recordings(Path(arguments.run))
    if arguments.step is None and len(steps) > 1:
        raise UsageError(f"'{arguments.run}' has recorded steps {', '.join(map(str, steps))}; choose one with --step N")
    step = next(iter(steps)) if arguments.step is None else arguments.step
    if step not in steps:
        raise UsageError(f"'{arguments.run}' has not recorded step {step}; it has {', '.join(map(str, steps))}")
    if arguments.node is None:
        return _list(steps[step], arguments)
    if arguments.node in [call["label"] for call in read_header(steps[step])["calls"]]:
        say(
            f"hfdsl replay: this runs what the pickles in '{steps[step]}' say, and the code of the run; do it for "
            "recordings that you trust",
            file=sys.stderr,
        )
    done = replay(steps[step], arguments.node, arguments.rank, _debugged if arguments.pdb else lambda body: body)
    if machine(arguments):
        show_json({"node": done.label, "rank": done.rank, "same": done.same, "text": str(done)})
    else:
        say(str(done))
    if arguments.pdb and done.error is not None:
        pdb.post_mortem(done.error.__traceback__)
    return OK if done.same else FINDINGS


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
    calls: dict[str, dict[str, list[int]]] = {}
    for call in read_header(folder)["calls"]:
        place = folder / CALLS / call["label"]
        ranks = [rank for rank in call["ranks"] if (place / f"rank-{rank}").exists()]
        failed = [rank for rank in ranks if not (place / f"rank-{rank}" / RESULT).exists()]
        calls[call["label"]] = {"ranks": ranks, "failed": failed}
    if machine(arguments):
        show_json(calls)
        return OK
    width = max(map(len, calls), default=0)
    for label, outcome in calls.items():
        shown = ", ".join(map(str, outcome["ranks"]))
        lost = f"  (no result on {', '.join(map(str, outcome['failed']))})" if outcome["failed"] else ""
        say(f"{label:{width}}  ranks {shown}{lost}" if outcome["ranks"] else f"{label:{width}}  not reached")
    return OK
