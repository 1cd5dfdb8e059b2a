# mypy: disable-error-code="empty-body"
"""Requirements over nested configs: fields are named by the end of their path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    values: hf.f32[B]


@dataclass(frozen=True)
class Optimizer:
    warmup: int = 3
    scale: float = 2.0


@dataclass(frozen=True)
class Training:
    micro: int = 6
    optimizer: Optimizer = Optimizer()
    other: Optimizer = Optimizer(5)


@dataclass(frozen=True)
class Config:
    training: Training = Training()
    table: Any = None


def codes(requirement: str, *arguments: Any, size: int = 60) -> tuple[str, ...]:
    class Role(hf.Worker):
        def __init__(self, config: Config, warm: int = 4) -> None: ...

        @register(Dispatch.DP_PROTO)
        @hf.requires(requirement)
        def score(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, role: Role) -> Rows:
        return role.score(rows)

    program.__annotations__ = {"rows": Rows, "role": Role, "return": Rows}
    deployment = hf.Deployment(role=hf.place(Role, *arguments, pool=hf.ResourcePool([2])))
    return hf.dataflow(program).check(deployment, {B: size}).codes


@pytest.mark.parametrize(
    "name",
    ["config.training.optimizer.warmup", "training.optimizer.warmup", "optimizer.warmup", "micro", "scale", "warm"],
)
def test_a_field_is_named_by_the_end_of_its_path(name: str) -> None:
    assert codes(f"B % {name} == 0", Config()) == ()
    assert codes(f"B % ({name} * 7) == 0", Config()) == ("HF322",)


@pytest.mark.parametrize(
    "name", ["warmup", "optimizer.micro", "training.warmup", "optimizer", "config.training.optimizer"]
)
def test_names_with_no_path_or_several_values_are_unknown(name: str) -> None:
    assert codes(f"B % {name} == 0", Config()) == ("HF323",)


def test_the_least_nested_field_of_a_name_is_meant() -> None:
    assert codes("B % micro == 0", Config(table={"micro": 7})) == ("HF323",)  # as nested as that of `training`
    assert codes("B % micro == 0", Config(table={"deep": {"micro": 7}})) == ()
    assert codes("B % table.deep.micro == 0", Config(table={"deep": {"micro": 7}})) == ("HF322",)


def test_a_call_is_no_name() -> None:
    assert codes("B % max(micro, 2).real == 0", Config()) == ("HF114",)
