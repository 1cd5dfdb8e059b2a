"""Weights that a sync would round to a dtype that nobody wrote: the run says so, once."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.protocols.layouts import Parameter, Slices

UNSTATED, FLOAT32, BFLOAT16 = (
    Parameter("up", (4, 2)),
    Parameter("up", (4, 2), "float32"),
    Parameter("up", (4, 2), "bfloat16"),
)
OTHER = Parameter("down", (4, 2))


class Side(hf.Worker):
    def __init__(self, parameters: list[Parameter], dtype: str) -> None:
        self.held = torch.full((2, 2), 1 / 3, dtype=getattr(torch, dtype))

    @staticmethod
    def state_parameters(parameters: list[Parameter], dtype: str) -> dict[str, list[Parameter]]:
        return {"policy": parameters} if parameters else {}


class Trainer(Side):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.exports("policy", layout=Slices(0))
    def weights(self) -> dict[str, Any]:
        return {"up": self.held, "down": self.held}


class Engine(Side):
    @hf.register(hf.Dispatch.ONE_TO_ALL)
    @hf.loads("policy", layout=Slices(0))
    def load(self, weights: dict[str, Any]) -> None:
        self.held.copy_(weights["up"])


@hf.dataflow
def synced(trainer: Trainer, engine: Engine) -> None:
    hf.sync(trainer, engine)


@pytest.mark.parametrize(
    ("exported", "loaded", "dtype", "problem"),
    [
        ([UNSTATED], [UNSTATED], "float32", "returned 'up' in float32, and the sync rounds to bfloat16"),
        ([UNSTATED], [], "float32", "returned 'up' in float32, "),
        ([], [UNSTATED, OTHER], "float32", "returned 'up' and 1 more in float32, "),
        ([FLOAT32], [UNSTATED], "float32", "returned 'up' in float32, "),
        ([UNSTATED], [UNSTATED], "float64", "returned 'up' in float64, "),
        ([UNSTATED], [UNSTATED], "bfloat16", None),
        ([UNSTATED], [UNSTATED], "float16", None),
        ([BFLOAT16], [UNSTATED], "float32", None),
        ([UNSTATED], [BFLOAT16], "float32", None),
        ([UNSTATED], [FLOAT32], "float32", None),
        ([FLOAT32], [BFLOAT16], "float32", None),
    ],
)
def test_rounding_that_nobody_wrote(
    exported: list[Parameter], loaded: list[Parameter], dtype: str, problem: str | None
) -> None:
    pools = [hf.ResourcePool([2], name=name, use_gpu=False) for name in ("train", "engines")]
    trainer = hf.place(Trainer, exported, dtype, pool=pools[0], mesh=hf.Mesh(tp=2))
    engine = hf.place(Engine, loaded, dtype, pool=pools[1], mesh=hf.Mesh(tp=2))
    plan = synced.compile(hf.Deployment(trainer=trainer, engine=engine))
    with plan.launch("local") as running, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        running.step()
        running.step()
    found = [str(each.message) for each in caught if getattr(each.message, "code", None) == "HF733"]
    assert len(found) == (problem is not None)
    assert all(message.startswith(f"HF733: 'trainer.weights' {problem}") for message in found)
    assert all(f'dtype="{dtype}") to keep all bits' in message for message in found)


def test_a_copy_of_a_parameter_knows_that_its_dtype_is_the_default() -> None:
    assert UNSTATED == BFLOAT16
    for parameter in (UNSTATED, replace(UNSTATED, name="down"), pickle.loads(pickle.dumps(UNSTATED))):
        assert parameter.has_default_dtype
    assert not replace(UNSTATED, dtype="bfloat16").has_default_dtype
    assert not BFLOAT16.has_default_dtype
