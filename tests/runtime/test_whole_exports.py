"""Weights that travel as one value: what loads them keeps them while the trainer updates its own in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import SyncError
from hfdsl.protocols.layouts import Layout, Parameter, Replicas
from hfdsl.runtime.weights.resharding import whole_weights
from tests.runtime import whole_export_programs as p


def kept(dataflow: Any, trainer: Any, *, shared: bool, backend: Any = "local") -> list[list[list[float]]]:
    """What the ranks of an engine say, in two steps."""
    pools = [hf.ResourcePool([2], use_gpu=False, name=name) for name in ("train", "engines")]
    deployment = hf.Deployment(
        trainer=hf.place(*trainer, pool=pools[0]), engine=hf.place(p.Engine, pool=pools[not shared])
    )
    with dataflow.compile(deployment).launch(backend) as running:
        return [list(running.step()) for _ in range(2)]


EXPECTED = [[[float(step), step - 100.0 * rank, step - 100.0 * rank] for rank in (1, 2)] for step in (0, 1)]


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("layout", [None, Replicas()], ids=["unknown", "replicas"])
def test_whole_weights_are_those_of_the_engine(layout: Layout | None, stated: bool) -> None:
    assert kept(p.joined, (p.Trainer, layout, stated), shared=False) == EXPECTED


def test_whole_weights_without_a_layout_are_those_of_the_engine() -> None:
    assert kept(p.alone, (p.Alone,), shared=False) == EXPECTED


@pytest.mark.parametrize("trainer", [p.Trainer, p.Holder])
@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("layout", [None, Replicas()], ids=["unknown", "replicas"])
def test_in_the_trainers_processes_they_do_not_learn_with_it(layout: Layout | None, stated: bool, trainer: Any) -> None:
    found = kept(p.joined, (trainer, layout, stated), shared=True)
    assert [[values[0] for values in ranks[:1]] for ranks in found] == [[0.0], [1.0]]


def test_a_parameter_without_elements_is_not_missing() -> None:
    weights = {"up": torch.ones(4), "none": torch.zeros(0, 4)}
    parameters = [Parameter("up", (4,), "float32"), Parameter("none", (0, 4), "float32")]
    assert whole_weights(parameters, 0, weights, "trainer.weights") is weights
    with pytest.raises(SyncError, match=r"'trainer\.weights' returned no 'up' on rank 0"):
        whole_weights(parameters, 0, {"none": weights["none"]}, "trainer.weights")


def test_ray_gives_each_engine_weights_of_its_own(ray_cluster: Any) -> None:
    assert kept(p.joined, (p.Trainer, Replicas(), True), shared=False, backend="ray") == EXPECTED
