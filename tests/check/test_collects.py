# mypy: disable-error-code="empty-body"
"""Collects: what a protocol takes of the ranks' values against where these lie, and how long lists are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.protocols.placement import AxisPlacement


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


FIRST_STAGE = hf.Protocol("FIRST_STAGE", split=("dp",), collect={"dp": "join", "pp": "first", "tp": "first"})
GENERATED = hf.Protocol(
    "GENERATED",
    split=("dp", "micro_dp"),
    collect={"dp": "join", "micro_dp": "join", "gen_pp": "last", "gen_tp": "first"},
)
MESH = hf.Mesh(pp=2, dp=2, tp=2, gen_tp=2)


def findings_of(
    collect: Dispatch | hf.Protocol, leaves: dict[str, AxisPlacement], mesh: hf.Mesh = MESH
) -> list[hf.Finding]:
    """The findings of a method that leaves its rows so."""

    class Role(hf.Worker):
        @register(collect, leaves=leaves)
        def score(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, role: Any) -> object:
        return role.score(rows)

    program.__annotations__ |= {"rows": Rows, "role": Role}
    pool = hf.ResourcePool([mesh.world_size])
    return list(hf.dataflow(program).check(hf.Deployment(role=hf.place(Role, pool=pool, mesh=mesh)), {B: 8}).findings)


def test_values_that_have_nothing_in_common_are_no_value() -> None:
    [finding] = findings_of(Dispatch.DP_PROTO, {"rank": hf.Varying()})
    assert finding.code == "HF403"
    assert finding.message.endswith("collects rank='join', but the values there have nothing to do with one another")
    assert (finding.help, finding.notes) == ((), ())


@pytest.mark.parametrize(
    ("collect", "axis", "left", "advice"),
    [
        (
            Dispatch.THREE_D_PROTO,
            "tp",
            hf.Partial("max"),
            "reduce it in the body: self.axis('tp').all_reduce(..., 'max')",
        ),
        (Dispatch.THREE_D_PROTO, "tp", hf.Sharded(1), "gather it in the body: self.axis('tp').all_gather(...)"),
        (Dispatch.DP_PROTO, "rank", hf.Partial(), "reduce it in the body: self.axis('world').all_reduce(..., 'sum')"),
        (GENERATED, "gen_tp", hf.Partial(), None),  # no axis of a body
    ],
)
def test_outputs_that_no_collect_keeps_are_combined_in_the_body(
    collect: Dispatch | hf.Protocol, axis: str, left: AxisPlacement, advice: str | None
) -> None:
    [finding] = findings_of(collect, {axis: left})
    assert (finding.code, finding.help) == ("HF403", ())
    assert finding.notes == ((advice,) if advice else ())


@pytest.mark.parametrize(
    ("index", "collects"), [(1, "collect pp=1"), (-2, "collect pp=2"), (-4, "collect pp=0"), (4, None), (-5, None)]
)
def test_a_coordinate_of_the_mesh_is_collected(index: int, collects: str | None) -> None:
    [finding] = findings_of(Dispatch.THREE_D_PROTO, {"pp": hf.At(index)}, hf.Mesh(pp=4))
    assert finding.code == "HF404"
    assert finding.help == ((collects,) if collects else ())


def test_entries_of_lists_are_values_too() -> None:
    stages = hf.Protocol("STAGES", collect={"pp": "join", "dp": "first", "tp": "first"}, gives="per_stage")
    assert findings_of(stages, {}) == []
    [finding] = findings_of(stages, {"tp": hf.Partial()})
    assert (finding.code, "returns one term of a sum instead of the whole" in finding.message) == ("HF403", True)


@hf.function
def seeds() -> hf.PerRank[int]: ...


class Role(hf.Worker):
    @register(FIRST_STAGE)
    def update(self, rows: Rows) -> None: ...

    @register(FIRST_STAGE)
    def score(self, rows: Rows) -> Rows: ...

    @register(Dispatch.ALL_TO_ALL)
    def seed(self, seed: int) -> int: ...

    @register(Dispatch.ALL_TO_ALL)
    def each(self, rows: Rows) -> None: ...

    @register(Dispatch.THREE_D_PP_ONLY)
    def stages(self) -> int: ...

    @register(hf.Protocol("NEAR", collect={"pp": 1, "dp": "join", "tp": "join"}, gives="per_rank"))
    def near(self) -> int: ...

    @register(hf.Protocol("FAR", collect={"pp": 3, "dp": "join", "tp": "join"}, gives="per_rank"))
    def far(self) -> int: ...


CALLS: dict[str, tuple[Callable[[Rows, Any], Any], str | None]] = {
    "nothing has no last stage": (lambda rows, role: role.update(rows), None),
    "rows have one": (lambda rows, role: role.score(rows), "HF404"),
    "a number a rank": (lambda rows, role: role.seed(role.seed(range_of(8))), None),
    "too few": (lambda rows, role: role.seed(range_of(7)), "HF411"),
    "none at all": (lambda rows, role: role.seed([]), "HF411"),
    "no list": (lambda rows, role: role.seed(8), "HF401"),
    "one value": (lambda rows, role: role.each(rows), "HF401"),
    "half of the ranks": (lambda rows, role: role.seed(role.near()), "HF402"),
    "one a stage": (lambda rows, role: role.seed(role.stages()), "HF401"),
    "of a stage that is not": (lambda rows, role: role.seed(role.far()), "HF404"),
    "of a method that is not": (lambda rows, role: role.seed(role.nope()), "HF202"),
    "as many as a function likes": (lambda rows, role: role.seed(seeds()), None),
}


def range_of(length: int) -> list[int]:
    return list(range(length))


def called(body: Callable[[Rows, Any], Any]) -> hf.Report:
    def program(rows: Rows, role: Any) -> object:
        return body(rows, role)

    program.__annotations__ |= {"rows": Rows, "role": Role}
    placed = hf.place(Role, pool=hf.ResourcePool([8]), mesh=MESH)
    return hf.dataflow(program).check(hf.Deployment(role=placed), {B: 8})


@pytest.mark.parametrize("name", CALLS)
def test_a_list_has_a_value_for_each_rank(name: str) -> None:
    body, code = CALLS[name]
    assert called(body).codes == ((code,) if code else ())


def test_the_call_that_makes_the_list_is_named() -> None:
    [finding] = called(CALLS["half of the ranks"][0]).findings
    assert "gets a list of 4, and needs one value for each of 8 ranks" in finding.message
    assert [label.text.partition(" on ")[0] for label in finding.related] == [
        "placed",
        "'role.near' returns one value for each rank of Mesh(pp=2 dp=2 tp=2 gen_tp=2)",
    ]


EACH = hf.Protocol("EACH", split=("rank",), takes="per_rank")


class Joiner(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def make(self, rows: Rows) -> Rows: ...

    @register(EACH)
    def join(self, rows: Rows) -> Rows: ...

    @register(replace(EACH, name="FIRST", collect={"rank": "first"}), leaves={"rank": hf.Replicated()})
    def first(self, rows: Rows) -> Rows: ...

    @register(replace(EACH, name="LISTED", gives="per_rank"))
    def listed(self, rows: Rows) -> Rows: ...

    @register(EACH)
    def keep(self, rows: Rows) -> None: ...


@pytest.mark.parametrize("method", ["join", "first", "listed", "keep"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_outputs_collected_as_a_list_are_not_joined(method: str, ranks: int) -> None:
    @hf.dataflow
    def program(rows: Rows, joiner: Joiner) -> object:
        outputs: Any = joiner.make(rows)
        return getattr(joiner, method)(outputs)

    place = hf.place(Joiner, pool=hf.ResourcePool([ranks]))
    findings = program.check(hf.Deployment(joiner=place), {B: 6}).findings
    messages = [(finding.code, finding.message, [label.text for label in finding.related]) for finding in findings]
    lost = "'joiner.join' takes a value for each rank, and EACH joins what 2 ranks return: "
    wrong = ("HF413", lost + "no dim says how many rows that is", ["placed on Mesh(pp=1 dp=2 tp=1)"])
    assert messages == ([wrong] if (method, ranks) == ("join", 2) else [])


def test_a_list_for_coordinates_that_the_mesh_lacks_is_one_mistake() -> None:
    class Late(hf.Worker):
        @register(Dispatch.ONE_TO_ALL)
        def make(self, rows: Rows) -> Rows: ...

        @register(hf.Protocol("LATE", collect={"dp": "join", "pp": 1, "tp": "first"}, takes="per_rank"))
        def learn(self, rows: Rows) -> Rows: ...

    def program(rows: Rows, late: Any) -> object:
        return late.learn(late.make(rows))

    program.__annotations__ |= {"rows": Rows, "late": Late}
    place = hf.place(Late, pool=hf.ResourcePool([2]))
    assert hf.dataflow(program).check(hf.Deployment(late=place), {B: 6}).codes == ("HF404",)
