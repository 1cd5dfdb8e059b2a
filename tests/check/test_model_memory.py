# mypy: disable-error-code="empty-body"
"""The exact bytes of the models on a GPU: which of them count, in which call, and what the help says."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.findings import Finding
from hfdsl.plan.gpu_memory import CONTEXT, gpu_peaks

GIB = 2**30


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Model(hf.Worker):
    """A model whose weights are ``weights`` GiB over all slices."""

    def __init__(self, weights: int) -> None: ...

    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, weights: int) -> dict[str, dict[str, int]]:
        return {"": {"weights": weights * GIB // mesh.tp}}

    @staticmethod
    def sliced(weights: int) -> dict[str, int]:
        return {"heads": 4}

    @register(Dispatch.THREE_D_PROTO)
    @hf.reads("weights")
    def score(self, rows: Rows) -> Rows: ...

    def offload(self, part: str) -> None: ...

    def onload(self, part: str) -> None: ...


class Estimating(Model):
    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, weights: int) -> dict[str, dict[str, int]]:
        return {"": {"weights": weights * GIB, "activations": 100 * GIB}}


class Quantized(Model):
    def __init__(self, weights: int) -> None: ...


class Learner(Model):
    @staticmethod
    def gpu_bytes(mesh: hf.Mesh, weights: int) -> dict[str, dict[str, int]]:
        size = weights * GIB // mesh.tp
        return {"": {"weights": size, "master weights": 2 * size, "gradients": 3 * size, "moments": 4 * size}}

    @staticmethod
    def parameter_count(weights: int) -> int:
        return weights * GIB // 2

    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("weights")
    def update(self, rows: Rows) -> Rows: ...


@hf.dataflow
def step(rows: Rows, learner: Learner, model: Model) -> Rows:
    return learner.update(model.score(learner.score(rows)))


@hf.dataflow
def scoring(rows: Rows, learner: Learner, model: Model) -> Rows:
    return model.score(learner.score(rows))


def deployed(
    model: dict[str, Any], learner: dict[str, Any], tp: int = 1, *, role: type[Model] = Model, weights: int = 20
) -> hf.Deployment:
    pool = hf.ResourcePool([4], name="train")
    mesh = hf.Mesh(dp=4 // tp, tp=tp)
    return hf.Deployment(
        learner=hf.place(Learner, 4, **{"pool": pool, "mesh": mesh, **learner}),
        model=hf.place(role, weights, **{"pool": pool, "mesh": mesh, **model}),
    )


def findings(deployment: hf.Deployment, gib: float, flow: Any = step, nodes: int = 1) -> tuple[Finding, ...]:
    cluster = hf.Cluster(hf.Nodes(nodes, gpus=4, gpu_memory_gib=gib, cpus=64))
    return tuple(flow.check(deployment, {B: 8}, cluster).without("HF709"))


def test_a_gpu_that_has_room_for_exactly_this_is_large_enough() -> None:
    assert findings(deployed({}, {}), 60) == ()
    [finding] = findings(deployed({}, {}), 59.99)
    assert finding.code == "HF504"
    assert finding.message == "'learner' and 'model' hold 60.0 GiB of each GPU of pool 'train', which has 59.99 GiB"
    parts = "weights 4.0 GiB, master weights 8.0 GiB, gradients 12.0 GiB, moments 16.0 GiB"
    assert finding.notes[:2] == (
        f"'learner', 2,147,483,648 parameters on hf.Mesh(dp=4): {parts}",
        "'model' on hf.Mesh(dp=4): weights 20.0 GiB",
    )


def test_a_gpu_of_unknown_size_is_large_enough() -> None:
    assert step.check(deployed({}, {}), {B: 8}).without("HF709").findings == ()


def test_a_role_that_nothing_trains_has_no_gradients_and_moments() -> None:
    assert findings(deployed({}, {}), 32, scoring) == ()
    assert len(findings(deployed({}, {}), 31, scoring)) == 1


def test_estimates_do_not_count() -> None:
    assert findings(deployed({}, {}, role=Estimating), 60) == ()


def test_what_another_constructor_loads_is_unknown() -> None:
    assert findings(deployed({}, {}, role=Quantized), 40) == ()


def test_what_a_role_without_exact_bytes_declares_counts_beside_those_of_others() -> None:
    declared = {"gpu_memory": "30GiB", "offload": False}
    assert findings(deployed(declared, {}, role=Quantized), 70) == ()
    [finding] = findings(deployed(declared, {}, role=Quantized), 69.99)
    assert finding.message == "'learner' and 'model' hold 70.0 GiB of each GPU of pool 'train', which has 69.99 GiB"
    assert finding.notes[1] == "'model' on hf.Mesh(dp=4): gpu_memory 30.0 GiB"
    half = {"gpu_memory": "50%", "offload": False}
    assert findings(deployed(half, {}, role=Quantized), 80) == ()
    assert len(findings(deployed(half, {}, role=Quantized), 79)) == 1  # 40 + 39.5 GiB
    assert findings(deployed({**declared, "gpu_memory": "50GiB"}, {}), 60) == ()  # 20 GiB are exact


def test_what_a_role_declares_does_not_count_while_it_is_in_host_memory() -> None:
    """The learner's 40 GiB are alone in its own calls, and the declared 30 GiB in those of the other role."""
    declared = {"gpu_memory": "30GiB", "offload": True}
    assert findings(deployed(declared, {"offload": True}, role=Quantized), 40) == ()
    [finding] = findings(deployed(declared, {"offload": False}, role=Quantized), 40)
    assert finding.message.startswith("while 'model.score' runs, 'learner' and 'model' hold 70.0 GiB")


def test_roles_that_declare_too_much_are_reported_for_that() -> None:
    declared = {"gpu_memory": "80%", "offload": False}
    [finding] = findings(deployed(declared, declared), 40)
    assert "'learner' (80%) and 'model' (80%) keep 160%" in finding.message


def test_the_help_slices_or_offloads_or_gives_a_pool_of_its_own() -> None:
    [finding] = findings(deployed({}, {}), 50, nodes=2)
    assert finding.help == (
        "slice models over more GPUs: hf.Mesh(dp=2, tp=2)",
        "place 'learner' and 'model' with offload=True, to have what is idle in host memory",
    )
    [finding] = findings(deployed({"offload": False}, {"offload": False}), 50, nodes=2)
    assert finding.help == (
        "slice models over more GPUs: hf.Mesh(dp=2, tp=2)",
        "give 'model' a pool of its own: the cluster has room for hf.ResourcePool([4])",
    )
    [finding] = findings(deployed({}, {}), 2)
    assert finding.help == ()
    assert finding.notes[-1] == (
        "that is 30.0 times a GPU: slice models by tp, shard those that learn, or take larger GPUs"
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("weights", "model", "learner", "most"),
    [
        (20, {}, {}, 60),
        (20, {"offload": True}, {}, 60),  # both are there while the model scores
        (20, {}, {"offload": True}, 60),  # both are there while the learner learns
        (20, {"offload": True}, {"offload": True}, 40),
        (60, {"offload": True}, {"offload": True}, 60),  # what the learner has is all on the host
        (20, {"pool": hf.ResourcePool([4], name="other")}, {}, 40),
    ],
)
def test_roles_count_as_in_a_plan(
    weights: int, model: dict[str, Any], learner: dict[str, Any], most: int, tp: int
) -> None:
    deployment = deployed(model, learner, tp, weights=weights)
    peaks = [peak.bytes - peak.processes * CONTEXT for peak in gpu_peaks(step.compile(deployment, {B: 8}), ())]
    assert max(peaks) == most * GIB // tp
    assert findings(deployment, most / tp, nodes=2) == ()
    assert len(findings(deployment, most / tp - 1, nodes=2)) == 1


def test_a_plan_adds_up_roles_whose_pools_share_slots() -> None:
    pool = hf.ResourcePool([4], name="train")
    half, rest = pool.split([2, 2])
    swapped = rest.merge(half, name="swapped")

    def peaks(pools: tuple[hf.ResourcePool, hf.ResourcePool]) -> dict[str, tuple[int, int]]:
        places = [
            hf.place(role, weights, pool=own, mesh=hf.Mesh(dp=own.world_size))
            for role, weights, own in zip((Learner, Model), (4, 20), pools, strict=True)
        ]
        plan = step.compile(hf.Deployment(learner=places[0], model=places[1]), {B: 8})
        return {
            peak.gpus: ((peak.bytes - peak.processes * CONTEXT) // GIB, peak.processes) for peak in gpu_peaks(plan, ())
        }

    assert peaks((pool, pool)) == {"train": (60, 1)}
    assert peaks((pool, half)) == {"train[0:2]": (60, 2), "train[2:4]": (40, 1)}
    assert peaks((half, rest)) == {"train[0:2]": (40, 1), "train[2:4]": (20, 1)}
    assert peaks((swapped, swapped)) == {"swapped": (60, 1)}
    assert peaks((pool, swapped)) == {"train": (60, 2)}
    assert peaks((pool, hf.ResourcePool([1], name="other"))) == {"train": (40, 1), "other": (20, 1)}
