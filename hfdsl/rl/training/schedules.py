"""The length of falling learning-rate schedules, from the steps of a run and the updates in a step.

GRPO with ``updates = 2`` calls ``actor.update`` twice in a step. So in 100 steps the actor takes 200 updates, and a
cosine without ``total_steps`` reaches its minimum in the 200th.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from hfdsl.errors import ConfigError
from hfdsl.graph.program import Graph, RoleCall
from hfdsl.protocols.state import effects_of
from hfdsl.rl.training.ready import READY_ROLES
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.typed import joined
from hfdsl.rl.workers.config import OptimizerConfig


def with_total_steps(config: RunConfig, roles: Sequence[str], sampling: Graph, update: Graph | None) -> RunConfig:
    """The configuration with ``total_steps`` in each falling schedule that leaves it out.

    Raises:
        ConfigError: HF901 for a role that learns in rounds, whose number only the run determines.
    """
    learned = {role: updates_in_step(update or sampling, role) for role in roles}
    in_rounds = {role for role in roles if update is not None and updates_in_step(sampling, role)}

    def filled(optimizer: OptimizerConfig, path: str) -> OptimizerConfig:
        role = path.partition(".")[0]
        if optimizer.schedule == "constant" or optimizer.total_steps is not None or not learned[role]:
            return optimizer
        if role in in_rounds:
            problem = f"'{path}.total_steps' is missing: only the run knows how many rounds a step takes"
            raise ConfigError("HF901", problem, f"{path}.schedule")
        return replace(optimizer, total_steps=config.steps * learned[role])

    return replace(config, **{role: _mapped(getattr(config, role), role, filled) for role in roles})


def updates_in_step(graph: Graph, role: str) -> int:
    """The optimizer steps of a ready-made role in a step of a dataflow: the calls that write its state."""
    calls = [node.op for node in graph.nodes if isinstance(node.op, RoleCall) and node.op.role == role]
    bodies = [call.signature.body for call in calls if str(call.signature.body.__module__).startswith(READY_ROLES)]
    return sum(any(effect.kind == "writes" for effect in effects_of(body)) for body in bodies)


def _mapped(value: Any, path: str, change: Callable[[OptimizerConfig, str], OptimizerConfig]) -> Any:
    """A tree of dataclasses with a change applied to every optimizer in it."""
    if isinstance(value, OptimizerConfig):
        return change(value, path)
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: _mapped(inner, joined(path, name), change) for name, inner in old.items()}
        return value if all(new[name] is old[name] for name in old) else replace(value, **new)
    return value
