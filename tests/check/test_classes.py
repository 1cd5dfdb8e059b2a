# mypy: disable-error-code="empty-body"
"""What role classes require of their config and mesh: the findings, and the meshes that are suggested."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.findings import Finding
from hfdsl.check.rules.placement.classes import spelled


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Model(hf.Worker):
    def __init__(self, layers: int = 6) -> None: ...

    @register(Dispatch.THREE_D_PROTO)
    def score(self, rows: Rows) -> Rows: ...


def findings_of(text: str, mesh: hf.Mesh, **options: Any) -> list[Finding]:
    """The findings of a model that requires this, on 8 GPUs."""

    @hf.requires(text)
    class Strict(Model): ...

    def program(rows: Rows, model: Any) -> Rows:
        scores: Rows = model.score(rows)
        return scores

    program.__annotations__["model"] = Strict
    place = hf.place(Strict, pool=hf.ResourcePool([8]), mesh=mesh, **options)
    return list(hf.dataflow(program).check(hf.Deployment(model=place), {B: 64}).findings)


OFFERED = [
    # 6 % (2 * 2) = 2; one axis is enough, and another tp comes first
    ("layers % (pp * tp) == 0", hf.Mesh(pp=2, dp=2, tp=2), "hf.Mesh(pp=2, dp=4)"),
    # no tp makes up for this pp
    ("layers % pp == 0 and tp >= 1", hf.Mesh(pp=4, dp=2), "hf.Mesh(pp=2, dp=4) or hf.Mesh(dp=8)"),
    ("tp >= 8", hf.Mesh(dp=8), "hf.Mesh(tp=8)"),
    ("tp < 2", hf.Mesh(dp=4, tp=2), "hf.Mesh(dp=8)"),
    # without gen_tp generation is on groups of tp = 8, and 2 is nearer to it than 1
    ("layers % gen_tp == 0", hf.Mesh(tp=8), "hf.Mesh(tp=8, gen_tp=2) or hf.Mesh(tp=8, gen_tp=1)"),
]


@pytest.mark.parametrize(("text", "mesh", "meshes"), OFFERED)
def test_the_nearest_meshes_of_the_first_axis_that_mends_are_offered(text: str, mesh: hf.Mesh, meshes: str) -> None:
    [finding] = findings_of(text, mesh)
    assert (finding.code, finding.help) == ("HF512", (f"use {meshes}: {text} then holds and the pool is filled",))


def test_only_a_division_has_a_rest() -> None:
    assert [f.message for f in findings_of("tp >= 8", hf.Mesh(dp=8))] == ["role 'model' requires tp >= 8, but tp = 1"]
    [finding] = findings_of("layers % tp == 0", hf.Mesh(dp=2, tp=4))
    assert finding.message.endswith("but layers = 6 and tp = 4: 6 % 4 = 2")


@pytest.mark.parametrize(
    ("text", "name", "near"),
    [
        ("layers % tpp == 0", "tpp", "did you mean 'tp'?"),
        ("lyers % tp == 0", "lyers", "did you mean 'layers'?"),
        ("tp * layers % q == 0", "q", "there are: layers, pp, dp, tp, gen_pp, gen_tp, micro_dp, world_size"),
    ],
)
def test_an_unknown_name_is_reported_with_a_near_one(text: str, name: str, near: str) -> None:
    [finding] = findings_of(text, hf.Mesh(dp=8))
    problem = "neither a number of the role's config nor a size of its mesh"
    assert (finding.code, finding.message) == ("HF323", f"'Strict' requires {text}: '{name}' is {problem}; {near}")


def test_requirements_of_a_role_that_cannot_be_built_are_reported_as_far_as_known() -> None:
    def codes(text: str) -> list[str]:
        return sorted(finding.code for finding in findings_of(text, hf.Mesh(tp=8), depth=3))

    assert codes("layers % tp == 0") == ["HF516"], "nobody knows its layers"
    assert codes("tp < 8") == ["HF512", "HF516"]
    assert codes("tp ** 2 < layers") == ["HF114", "HF516"]
    [finding] = findings_of("tp ** 2 < layers", hf.Mesh(tp=8))
    assert finding.message.endswith(": 'tp ** 2' is not arithmetic over dims and config fields")
    assert "requires tp ** 2 < layers" in finding.message


def test_a_class_of_several_bases_requires_what_each_of_them_does() -> None:
    @hf.requires("tp < 8")
    class Trained(Model): ...

    @hf.requires("layers > 8")
    class Sampled(Model): ...

    @hf.requires("pp == 1", "tp < 8")
    class Both(Trained, Sampled): ...

    def program(rows: Rows, model: Any) -> Rows:
        scores: Rows = model.score(rows)
        return scores

    program.__annotations__["model"] = Both
    place = hf.place(Both, pool=hf.ResourcePool([8]), mesh=hf.Mesh(tp=8))
    findings = hf.dataflow(program).check(hf.Deployment(model=place), {B: 64}).findings
    assert sorted(finding.message for finding in findings) == [
        "role 'model' requires layers > 8, but layers = 6",
        "role 'model' requires tp < 8, but tp = 8",
    ]


def test_a_mesh_is_spelled_as_it_is_written() -> None:
    for text in ("hf.Mesh()", "hf.Mesh(pp=2, dp=3, gen_pp=1)", "hf.Mesh(dp=2, tp=4, order=('tp', 'dp', 'pp'))"):
        assert spelled(eval(text, {"hf": hf})) == text
