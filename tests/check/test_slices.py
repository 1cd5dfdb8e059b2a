# mypy: disable-error-code="empty-body"
"""Slices: sizes of models that ``tp`` does not divide, and the meshes that are offered."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Model(hf.Worker):
    def __init__(self, heads: int, width: int = 0) -> None: ...

    @staticmethod
    def sliced(heads: int, width: int = 0) -> dict[str, int]:
        return {"heads": heads, "width": width}

    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...


@hf.dataflow
def one(rows: Rows, a: Model) -> Rows:
    return a.score(rows)


@hf.dataflow
def two(rows: Rows, a: Model, b: Model) -> Rows:
    return b.score(a.score(rows))


def finding_of(rows: int, mesh: hf.Mesh, *sizes: int) -> hf.Finding:
    pool = hf.ResourcePool([mesh.world_size])
    [finding] = one.check(hf.Deployment(a=hf.place(Model, *sizes, pool=pool, mesh=mesh)), {B: rows}).findings
    assert finding.code == "HF813"
    return finding


def test_the_sizes_that_are_not_divided_and_all_that_divide() -> None:
    message = finding_of(8, hf.Mesh(dp=2, tp=4), 18, 12).message
    assert "tp = 4 does not divide heads = 18 (18 % 4 = 2) of the model" in message
    assert message.endswith("tp can be 1, 2, 3 or 6")
    assert finding_of(8, hf.Mesh(dp=4, tp=2), 9, 8).message.endswith("tp can be 1")


def test_a_model_that_is_not_cut_is_not_asked_for_its_sizes() -> None:
    class Counted(Model):
        asked = 0

        @staticmethod
        def sliced(heads: int, width: int = 0) -> dict[str, int]:
            Counted.asked += 1
            return {}

    def times_asked(mesh: hf.Mesh) -> int:
        Counted.asked = 0
        one.check(hf.Deployment(a=hf.place(Counted, 8, pool=hf.ResourcePool([8]), mesh=mesh)), {B: 8})
        return Counted.asked

    assert (times_asked(hf.Mesh(dp=8)), times_asked(hf.Mesh(dp=4, tp=2))) == (0, 1)


WORKS = ": tp then divides the model and the pool is filled"


def test_meshes_on_which_the_rows_work_out_are_offered() -> None:
    # 5 is nearer to 4, and 1 is nearer than 10: 20 rows are split evenly over neither 8 nor 40 replicas.
    assert finding_of(20, hf.Mesh(dp=10, tp=4), 10).help == (
        "use hf.Mesh(dp=20, tp=2) or hf.Mesh(dp=4, tp=10)" + WORKS,
    )


def test_the_size_of_generation_stays() -> None:
    # 3 and 6 are no multiples of 2, and 1 is none either.
    assert finding_of(24, hf.Mesh(dp=6, tp=4, gen_tp=2), 6).help == (
        "use hf.Mesh(dp=12, tp=2, gen_tp=2) or hf.Mesh(dp=4, tp=6, gen_tp=2)" + WORKS,
    )


def test_roles_of_like_models_are_offered_sizes_that_fill_the_pools_of_all() -> None:
    # 6 and 12 divide 24 ranks, and not 8.
    deployment = hf.Deployment(
        a=hf.place(Model, 12, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8)),
        b=hf.place(Model, 12, pool=hf.ResourcePool([24]), mesh=hf.Mesh(dp=3, tp=8)),
    )
    [finding] = two.check(deployment, {B: 24}).findings
    assert finding.message.startswith("roles 'a' and 'b': tp = 8 does not divide heads = 12 (12 % 8 = 4) of the model")
    assert finding.help == (
        "use hf.Mesh(dp=2, tp=4) for 'a', hf.Mesh(dp=6, tp=4) for 'b' or "
        "hf.Mesh(dp=4, tp=2) for 'a', hf.Mesh(dp=12, tp=2) for 'b' or hf.Mesh(dp=8) for 'a', hf.Mesh(dp=24) for 'b'"
        + WORKS,
    )
