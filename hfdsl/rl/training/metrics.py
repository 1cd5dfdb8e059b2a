"""The metrics of a step's result, and the files that they are written to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hfdsl.errors import ConfigError, HfError
from hfdsl.graph.program import Output, Ref
from hfdsl.plan.plan import Plan
from hfdsl.types.batches import Batch, schema
from hfdsl.types.columns import Metric, MetricSpec
from hfdsl.types.foreign_text import parse_object


@dataclass(frozen=True, slots=True)
class Record:
    """A step: its metrics by name, and the seconds that it and each of its nodes took."""

    step: int
    values: Mapping[str, float]
    seconds: float = 0.0
    nodes: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None


def values_of(plan: Plan, result: Any, step: int) -> dict[str, float]:
    """The metrics in a dataflow's result: ``actor/loss`` of ``actor.update``, ``outcome/score`` of a function.

    If two methods of a role return metrics of one name, the key has the method's name too; several values from one
    method, as for mini-batches, are averaged.

    Raises:
        HfError: HF907 for a number that is not finite, naming the step and the call.

    >>> import torch
    >>> import hfdsl as hf
    >>> from typing import Literal
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Loss(hf.Batch):
    ...     loss: hf.Metric[float, Literal["mean"]]
    >>> class Actor(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def update(self, rows: Rows) -> Loss:
    ...         return Loss(loss=rows.x.tensor.mean())
    >>> @hf.dataflow
    ... def flow(rows: Rows, actor: Actor) -> list[Loss]:
    ...     return [actor.update(part) for part in hf.minibatches(rows, 2)]
    >>> plan = flow.compile(hf.Deployment(actor=hf.place(Actor, pool=hf.ResourcePool([1]))), dims={B: 4})
    >>> with plan.launch("local") as running:
    ...     result = running.step(Rows(x=torch.tensor([1.0, 1.0, 2.0, 4.0])))
    >>> values_of(plan, result, step=1)
    {'actor/loss': 2.0}
    """
    values_by_name: dict[tuple[str, str], list[float]] = {}
    for label, name, value in _numbers(plan, plan.graph.output, result):
        if not math.isfinite(value):
            raise HfError("HF907", f"in step {step} of '{plan.name}' '{label}' gives {name} = {value}")
        values_by_name.setdefault((label, name), []).append(value)
    calls: dict[tuple[str, str], set[str]] = {}
    for label, name in values_by_name:
        calls.setdefault((_short(label), name), set()).add(label)
    return {
        f"{_short(label) if len(calls[_short(label), name]) == 1 else label}/{name}": sum(values) / len(values)
        for (label, name), values in values_by_name.items()
    }


def _short(label: str) -> str:
    return label.partition(".")[0]


def _numbers(plan: Plan, output: Output, result: Any) -> Iterator[tuple[str, str, float]]:
    """The numbers of a result, each with the label of its call and its name."""
    if isinstance(output.value, dict):
        for key, inner in output.value.items():
            yield from _numbers(plan, inner, result[key])
    elif isinstance(output.value, tuple):
        for inner, value in zip(output.value, result, strict=True):
            yield from _numbers(plan, inner, value)
    elif isinstance(output.value, Ref):
        label = plan.node(output.value.node).label
        for record in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(record, Batch):
                for name, spec in schema(type(record)).fields.items():
                    if isinstance(spec, MetricSpec):
                        yield label, name, float(getattr(record, name).value)
            elif isinstance(record, Metric):
                yield label, output.value.column or "value", float(record.value)


SHOWN_METRICS = ("score", "solved", "reward", "accuracy", "loss", "kl", "reference_kl")
"""The metrics in a line of the terminal, if the record has them."""

MIN_SHOWN_S = 0.005
"""The seconds below which a line leaves out a node."""


def shown_metrics(record: Record) -> list[str]:
    """The metrics of a step that people look at first, each with its name.

    >>> shown_metrics(Record(1, {"actor/loss": 0.25, "outcome/score": 0.5, "actor/entropy": 1.0}))
    ['score 0.5', 'loss 0.25']
    """
    keys_of_run = [key for key in record.values if not key.startswith("held_out/")]
    named = {name: [key for key in keys_of_run if key.endswith(f"/{name}")] for name in SHOWN_METRICS}
    return [
        f"{name if len(keys) == 1 else key} {record.values[key]:.4g}" for name, keys in named.items() for key in keys
    ]


def line(record: Record) -> str:
    """A step for people: what it achieved, how fast, and where its time went.

    Of an evaluation it has the metrics that a step's line has, or if there are none, the first three.

    >>> line(Record(3, {"outcome/score": 0.25}, seconds=2.0, nodes={"actor.generate": 1.5}, tokens_per_second=900.0))
    'step     3  score 0.25  900 tokens/s  2.00 s (actor.generate 1.50)'
    >>> line(Record(4, {"held_out/correct": 0.875}))
    'step     4  held-out correct 0.875'
    """
    values = {key.partition("/")[2]: value for key, value in record.values.items() if key.startswith("held_out/")}
    names = [name for name in SHOWN_METRICS if name in values] or list(values)[:3]
    held_out = [f"held-out {name} {values[name]:.4g}" for name in names]
    took = "  ".join(f"{name} {seconds:.2f}" for name, seconds in record.nodes.items() if seconds >= MIN_SHOWN_S)
    time = [f"{record.seconds:.2f} s ({took})" if took else f"{record.seconds:.2f} s"] if record.seconds else []
    speed = [f"{record.tokens_per_second:,.0f} tokens/s"] if record.tokens_per_second else []
    return "  ".join([f"step {record.step:5d}", *shown_metrics(record), *held_out, *speed, *time])


class Writer(Protocol):
    """A destination of records."""

    def write(self, record: Record) -> None:
        """Write a record, which is stored when this returns."""

    def close(self) -> None:
        """Finish: no more records follow."""


METRICS_FILE = "metrics.jsonl"
"""The file in a run's folder with every record."""


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn errors of writing a run's file, such as a full disk, into HF901 with its name."""
    try:
        yield
    except OSError as error:
        problem = f"'output': '{file}' cannot be written: {error.strerror or error}"
        raise ConfigError(
            "HF901", f"{problem}; with --resume the run continues from its last checkpoint", "output"
        ) from None


class JsonLinesWriter:
    """A file with an object per line; a resumed run drops those of steps after ``step``.

    Raises:
        ConfigError: HF901 if it cannot be written.
    """

    def __init__(self, path: Path, step: int | None = None) -> None:
        self._path = path
        with writing(path):
            drop_after(path, -1 if step is None else step)
            self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Write a line: the step, the metrics, and under ``time`` the values that differ from run to run."""
        time: dict[str, Any] = {"seconds": record.seconds, "nodes": dict(record.nodes)}
        if record.tokens_per_second is not None:
            time["tokens_per_second"] = record.tokens_per_second
        with writing(self._path):
            self._file.write(json.dumps({"step": record.step, **record.values, "time": time}) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # the last line may not be written
            self._file.close()


def records_between(path: Path, after: int, last: int) -> list[Record]:
    """The records of a file of ``JsonLinesWriter`` for the steps after ``after``, up to ``last``.

    >>> records_between(Path("no such file"), 0, 10)
    []
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        objects = [parse_object(line) for line in file if _is_up_to(line, last) and not _is_up_to(line, after)]
    return [
        Record(
            step=values.pop("step"),
            seconds=time.get("seconds", 0.0),
            nodes=time.get("nodes", {}),
            tokens_per_second=time.get("tokens_per_second"),
            values=values,
        )
        for values in objects
        for time in [values.pop("time", {})]
    ]


def drop_after(path: Path, step: int) -> None:
    """Keep the lines of a file up to a step; drop those after it, and any that is not a record, as a kill may leave."""
    if not path.exists():
        return
    new = path.with_suffix(".new")
    with path.open("rb") as old, new.open("wb") as remaining:
        remaining.writelines(line.rstrip(b"\r\n") + b"\n" for line in old if _is_up_to(line, step))
    new.replace(path)


def _is_up_to(line: bytes, step: int) -> bool:
    """Whether a line is a record of a step up to ``step``."""
    try:
        recorded_step = parse_object(line).get("step")
    except ValueError:
        return False
    return type(recorded_step) is int and recorded_step <= step


def scalars_of(record: Record) -> dict[str, float]:
    """All numbers of a step by name: the metrics, and below ``time/`` the speed and the seconds of every node."""
    scalars = {**record.values, "time/seconds": record.seconds}
    scalars |= {f"time/{name}": seconds for name, seconds in record.nodes.items()}
    if record.tokens_per_second is not None:
        scalars["time/tokens_per_second"] = record.tokens_per_second
    return scalars


class TensorBoardWriter:
    """Event files for TensorBoard, by the package tensorboardX.

    Raises:
        ConfigError: HF901 if the package is missing.
    """

    def __init__(self, folder: Path, step: int | None = None) -> None:
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]  # optional
        except ImportError:
            raise ConfigError(
                "HF901", "'tensorboard' needs the package tensorboardX: pip install 'hfdsl[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=None if step is None else step + 1)

    def write(self, record: Record) -> None:
        """Write a scalar for each metric, for the speed, and for the seconds of every node."""
        for name, value in scalars_of(record).items():
            self._writer.add_scalar(name, value, record.step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
