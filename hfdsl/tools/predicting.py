"""``hfdsl plan --predict``: the step's timeline from the plan and what each node takes, beside the measured one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.edges import sizes_known
from hfdsl.plan.predict import BANDWIDTHS, Duration, Prediction, durations, predict
from hfdsl.plan.timeline import Timeline, read_trace
from hfdsl.tools.call_times import no_time, seconds, times_of
from hfdsl.tools.importing import UsageError
from hfdsl.tools.output import machine, say, show_json
from hfdsl.types.foreign_text import parse_toml


def show_prediction(plan: CompiledPlan, arguments: argparse.Namespace) -> None:
    """Predict a step and print it.

    Raises:
        UsageError: if the file has no time for a node or cannot be read, or if sizes of the plan are unknown.
    """
    takes, measured = _read(Path(arguments.predict), plan)
    if not sizes_known(plan):
        raise UsageError("--predict needs the size of every dim that rows depend on; give it with --set DIM=SIZE")
    if missing := [step.label for step in plan.steps if step.label not in takes]:
        raise UsageError(no_time(arguments.predict, missing))
    latency = {} if arguments.latency is None else {"latency": arguments.latency}
    prediction = predict(plan, takes, _bandwidths(arguments.bandwidth), **latency)
    if machine(arguments):
        show_json(_as_dict(prediction, measured))
    else:
        say(_table(prediction, measured))


def _read(file: Path, plan: CompiledPlan) -> tuple[Mapping[str, Duration], Timeline | None]:
    """The durations of nodes, and the step of median length where the file is a trace."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        steps, table = [], None
        if file.suffix == ".toml":
            table = parse_toml(text)["seconds"]
        else:
            steps = sorted(read_trace(text), key=lambda step: step.seconds)
    except OSError as error:
        raise UsageError(f"cannot read '{file}': {error.strerror}") from None
    except KeyError:
        raise UsageError(f"'{file}' has no table [seconds]") from None
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"'{file}' is not a trace of hfdsl, nor a TOML file with a table [seconds]: {error}") from None
    if table is not None:
        calls = [step.label for step in plan.steps]
        return times_of(plan, file, table, lambda name, entry: Duration(seconds(name, entry)), calls), None
    if not steps:
        raise UsageError(f"'{file}' has no steps")
    return durations(steps), steps[len(steps) // 2]


def _bandwidths(texts: Sequence[str]) -> dict[str, float]:
    """``network=12.5e9``, in bytes per second."""
    bandwidths = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            bandwidths[name] = float(number)
        except ValueError:
            bandwidths[name] = 0.0
        if name not in BANDWIDTHS or not bandwidths[name] > 0:
            *first, last = (f"{name}=BYTES" for name in BANDWIDTHS)
            raise UsageError(f"--bandwidth takes {', '.join(first)} or {last}, got '{text}'")
    return bandwidths


def _as_dict(prediction: Prediction, measured: Timeline | None) -> dict[str, Any]:
    real = measured.nodes if measured else {}
    return {
        "seconds": prediction.timeline.seconds,
        "measured": measured.seconds if measured else None,
        "nodes": {
            label: {"predicted": times, "measured": real.get(label)}
            for label, times in prediction.timeline.nodes.items()
        },
        "critical": prediction.critical,
        "unsized": prediction.unsized,
    }


def _table(prediction: Prediction, measured: Timeline | None) -> str:
    real = measured.nodes if measured else {}
    rows = [("milliseconds", "predicted", "measured" if measured else "")]
    rows += [(label, _span(times), _span(real.get(label))) for label, times in prediction.timeline.nodes.items()]
    rows += [("the step", _millis(prediction.timeline.seconds), _millis(measured.seconds) if measured else "")]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        f"{name:{widths[0]}}  {predicted:>{widths[1]}}  {actual:>{widths[2]}}".rstrip()
        for name, predicted, actual in rows
    ]
    lines += ["", f"critical path  {' -> '.join(prediction.critical)}"]
    if prediction.unsized:
        lines.append(f"not counted    {', '.join(prediction.unsized)}: of unknown size")
    return "\n".join(lines)


def _span(times: tuple[float, float] | None) -> str:
    return f"{_millis(times[0])} - {_millis(times[1]):>8}" if times else ""


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"
