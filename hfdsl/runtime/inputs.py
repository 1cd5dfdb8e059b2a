"""The caller's batches for a step, or a loader's for a stream, as inputs of the dataflow by node; other arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.program import Input
from hfdsl.plan.plan import Plan
from hfdsl.types.batches import Batch, upcast
from hfdsl.types.numbers import brief
from hfdsl.types.similar_names import closest


def loaded_inputs(plan: Plan, batch: Any) -> dict[int, Batch]:
    """The batch of a loader, or several in a sequence or by name; errors as for ``step_inputs``."""
    if isinstance(batch, Batch):
        return step_inputs(plan, (batch,), {})
    if isinstance(batch, Mapping):
        return step_inputs(plan, (), batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return step_inputs(plan, tuple(batch), {})
    text = f"the loader of '{plan.name}' yielded {type(batch).__name__} instead of one or several batches"
    raise WiringError("HF206", text)


def check_is_plan(value: object, subject: str) -> None:
    """Raise ``WiringError`` (HF206) for anything that is no compiled plan; ``subject`` begins the message."""
    if isinstance(value, Plan):
        return
    kind = f"a {type(value).__name__}"
    if hasattr(value, "compile") and hasattr(value, "check"):  # a dataflow, whose class imports this room
        name = getattr(value, "__name__", "flow")
        kind = f"the dataflow '{name}': compile it, {name}.compile(deployment, dims)"
    raise WiringError("HF206", f"{subject} takes a compiled plan, got {kind}")


def path_of(value: object, subject: str) -> Path:
    """The path that a caller gives; ``WiringError`` (HF206) for anything else, which ``subject`` begins."""
    if isinstance(value, (str, PathLike)):
        return Path(value)
    raise WiringError("HF206", f"{subject} takes the path of a folder, got {brief(value)}")


def step_inputs(plan: Plan, batches: tuple[Batch, ...], named: Mapping[str, Batch]) -> dict[int, Batch]:
    """The batches in the order of the dataflow's parameters, and by name.

    Raises:
        WiringError: HF202, HF203, HF206 if they are not those of the dataflow.
    """
    nodes = {node.op.name: node for node in plan.graph.inputs if isinstance(node.op, Input)}
    by_name = dict(zip(nodes, batches, strict=False)) | dict(named)
    takes = ", ".join(
        f"{name}: {node.op.record.__name__}" for name, node in nodes.items() if isinstance(node.op, Input)
    )
    if len(batches) > len(nodes):
        count = f"{len(nodes)} batch{'es' * (len(nodes) != 1)}"
        raise WiringError("HF202", f"'{plan.name}' takes {count} ({takes}), got {len(batches)}")
    for name in named:
        if name in list(nodes)[: len(batches)]:
            raise WiringError("HF202", f"'{plan.name}' got its input '{name}' twice")
    for name in by_name:
        if name not in nodes:
            raise WiringError("HF202", f"'{plan.name}' has no input '{name}'; {closest(name, list(nodes))}")
    inputs: dict[int, Batch] = {}
    for name, node in nodes.items():
        if name not in by_name:
            raise WiringError("HF203", f"'{plan.name}' is missing its input '{name}' (it takes {takes})")
        record = node.op.record if isinstance(node.op, Input) else Batch
        if not isinstance(by_name[name], record):
            kind = type(by_name[name]).__name__
            raise WiringError("HF206", f"input '{name}' of '{plan.name}' takes {record.__name__}, got {kind}")
        inputs[node.id] = upcast(by_name[name], record)
    return inputs
