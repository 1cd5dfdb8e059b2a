# mypy: disable-error-code="empty-body"
"""Requirements: what their names mean, what they say of numbers, and the numbers that are shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.check.sizes.requirements import Scope, config_fields, holds, remainder
from hfdsl.types.dims import Answer, atom_size, constant


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B, R]


def known(**fields: Any) -> Scope:
    """B is 6, nobody knows R, and the config has these fields."""
    return Scope({"B": constant(6), "R": atom_size(R)}, None, fields=fields)


@pytest.mark.parametrize(
    ("text", "answer", "shown"),
    [
        ("B <= most", Answer.REFUTED, "B = 6 and most = 4"),
        ("most < B < 8", Answer.PROVED, "most = 4 and B = 6"),
        ("2 * B == 12", Answer.PROVED, "2 * B = 12, with B = 6"),
        ("B + most >= B * most", Answer.REFUTED, "B + most = 10 and B * most = 24, with B = 6 and most = 4"),
        ("B % most == B", Answer.REFUTED, "B = 6 and most = 4"),
        ("-B > most - 10", Answer.REFUTED, "-B = -6 and most - 10 = -6, with B = 6 and most = 4"),
        ("-R < most", Answer.UNKNOWN, "-R = ? and most = 4, with R = ?"),
        ("not R < 3", Answer.UNKNOWN, "R = ?"),
        ("not B < 3", Answer.PROVED, "B = 6"),
        ("R == 3 or B == 6", Answer.PROVED, "R = ? and B = 6"),
        ("R == 3 and B == 5", Answer.REFUTED, "R = ? and B = 6"),
        ("R == 3 and B == 6", Answer.UNKNOWN, "R = ? and B = 6"),
        ("B == 6 and most == 4", Answer.PROVED, "B = 6 and most = 4"),
        ("R == 3 or B == 5", Answer.UNKNOWN, "R = ? and B = 6"),
        ("R + B > 8", Answer.UNKNOWN, "R + B = ?, with R = ? and B = 6"),
        ("B <= other", Answer.UNKNOWN, "B = 6 and other = ?"),
        ("B // none == 2", Answer.REFUTED, "B = 6 and none = 0"),
        ("B / most == 1.5", Answer.PROVED, "B / most = 3/2, with B = 6 and most = 4"),
    ],
)
def test_a_requirement_and_its_numbers(text: str, answer: Answer, shown: str) -> None:
    assert holds(text, known(most=4, none=0)) == (answer, shown)


def test_a_number_may_have_any_size() -> None:
    assert holds(f"most < 1{'0' * 400} - 1", known(most=10**400))[0] is Answer.REFUTED


@pytest.mark.parametrize("text", ["B == 'x'", "B < 1e999", "B is None", "B ** 2 > 3", "max(B, 8) == B", "+B > 1"])
def test_a_requirement_that_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(hf.HfError, match="is not arithmetic over dims and config fields") as error:
        holds(text, known())
    assert error.value.code == "HF114"


@dataclass
class Settings:
    micro: int = 2
    _hidden: int = 3


@dataclass
class Config:
    given: dict[str, Any] = field(default_factory=lambda: {"heads": 8, "layers": 4})


class Role(hf.Worker):
    def __init__(self, settings: Any, width: int, model: str = "small") -> None: ...


def fields(*config: Any) -> dict[str, Any]:
    return config_fields(hf.place(Role, *config, pool=hf.ResourcePool([1], use_gpu=False))) or {}


@pytest.mark.parametrize(
    ("settings", "inner"),
    [
        (Settings(), {"micro": 2}),
        (SimpleNamespace(micro=5, _hidden=3), {"micro": 5}),
        ({"heads": 8, 1: 2}, {"heads": 8, "1": 2}),
        (Config(), {"given": {"heads": 8, "layers": 4}, "heads": 8, "layers": 4, "given.heads": 8, "given.layers": 4}),
    ],
)
def test_a_config_object_lends_its_fields(settings: Any, inner: dict[str, Any]) -> None:
    paths = {f"settings.{name}" for name in inner if "." in name or f"given.{name}" not in inner}
    names = fields(settings, 16)
    assert {name for name in names if name.startswith("settings.")} == paths
    others = {name: value for name, value in names.items() if name not in paths}
    assert others == {**inner, "settings": settings, "width": 16, "model": "small"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("B % most == 0", "6 % 4 = 2"),
        ("(B + 3) % 2 == 0", "9 % 2 = 1"),
        ("B % none == 0", None),
        ("B % (B // none) == 0", None),
        ("B % most == 1", None),
        ("B <= most", None),
    ],
)
def test_the_rest_of_a_division_is_shown_where_there_is_one(text: str, shown: str | None) -> None:
    assert remainder(text, known(most=4, none=0)) == shown


class N(hf.Dim): ...


class Names(hf.Batch):
    text: hf.Obj[str, N]


class Wide(hf.Batch):
    x: hf.f32[B, N]


class Learner(hf.Worker):
    def __init__(self, micro: int, name: str, rate: float) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B != N")
    def compare(self, rows: Rows) -> None: ...

    @register(Dispatch.DP_PROTO)
    def widen(self, rows: Rows) -> Wide: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % name == 0")
    def learn(self, rows: Rows) -> None: ...


@hf.function
@hf.requires("tpp == 2")
def two(rows: Rows) -> Rows: ...


@hf.dataflow
def learning(rows: Rows, learner: Learner) -> None:
    learner.learn(rows)


@hf.dataflow
def comparing(names: Names, rows: Rows, learner: Learner) -> Names:
    learner.compare(rows)
    return names


@hf.dataflow
def widening(rows: Rows, learner: Learner) -> Wide:
    learner.compare(rows)
    return learner.widen(rows)


@hf.dataflow
def doubling(rows: Rows) -> Rows:
    return two(rows)


PLACED = hf.Deployment(learner=hf.place(Learner, 2, "small", float("inf"), pool=hf.ResourcePool([1])))


@pytest.mark.parametrize("program", [comparing, widening])
def test_a_dim_of_the_program_is_known_with_and_without_a_size(program: hf.Dataflow[..., Any]) -> None:
    [finding] = program.check(PLACED).findings
    assert finding.message == (
        "cannot decide before launch whether B != N holds for 'learner.compare' (B = ? and N = ?)"
    )
    assert program.check(PLACED, {B: 4, N: 5}).findings == ()
    assert program.check(PLACED, {B: 4, N: 4}).codes == ("HF322",)


def test_an_unknown_name_is_reported_with_those_that_would_do() -> None:
    [finding] = learning.check(PLACED, {B: 4}).findings
    assert finding.code == "HF323"
    assert finding.message.partition(": ")[2] == (
        "'name' is neither a dim, a number of the role's config nor a size of its mesh; "
        "there are: B, R, micro, pp, dp, tp, gen_pp, gen_tp, micro_dp, world_size"
    )
    [finding] = doubling.check().findings
    assert finding.message == "'two' requires tpp == 2: 'tpp' is no dim of the program; there are: B, R"


def test_a_part_that_is_not_evaluated_may_name_what_is_not_there() -> None:
    class Careful(hf.Worker):
        def __init__(self, micro: int) -> None: ...

        @register(Dispatch.ONE_TO_ALL)
        @hf.requires("B % micro == 0 and nothing > 1")
        def learn(self, rows: Rows) -> None: ...

    def program(rows: Rows, learner: Any) -> None:
        learner.learn(rows)

    program.__annotations__["learner"] = Careful
    placed = hf.Deployment(learner=hf.place(Careful, 4, pool=hf.ResourcePool([1])))
    flow = hf.dataflow(program)
    [finding] = flow.check(placed, {B: 6}).findings
    assert finding.message == "'learner.learn' requires B % micro == 0 and nothing > 1, but B = 6 and micro = 4"
    assert [label.text for label in finding.related][1:] == ["placed with micro = 4"]
    assert flow.check(placed, {B: 8}).codes == ("HF323",)


class micro(hf.Dim): ...  # noqa: N801  # named as a number of the config is


class dp(hf.Dim): ...  # noqa: N801  # as a size of the mesh is


class Weights(hf.Batch):
    x: hf.f32[micro, dp]


class Owner(hf.Worker):
    def __init__(self, micro: int) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % micro == 0", "dp < 3")
    def learn(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("micro == dp")
    def look(self, weights: Weights) -> None: ...


@hf.dataflow
def owning(rows: Rows, weights: Weights, owner: Owner) -> None:
    owner.learn(rows)
    owner.look(weights)


def test_a_dim_of_another_call_does_not_stand_for_a_number_of_the_config_or_the_mesh() -> None:
    placed = hf.Deployment(owner=hf.place(Owner, 4, pool=hf.ResourcePool([3])))
    findings = sorted(owning.check(placed, {B: 9, micro: 3, dp: 2}), key=lambda finding: finding.message)
    assert [(finding.message, [label.text for label in finding.related][1:]) for finding in findings] == [
        ("'owner.learn' requires B % micro == 0, but 9 % 4 = 1", ["placed with micro = 4"]),
        ("'owner.learn' requires dp < 3, but dp = 3", ["placed with dp = 3"]),
        ("'owner.look' requires micro == dp, but micro = 3 and dp = 2", []),
    ]


@hf.function
@hf.requires("dp % 2 == 0")
def even(rows: Rows) -> Rows: ...


def test_a_function_has_no_mesh_whose_sizes_stand_before_the_dims_of_the_program() -> None:
    def program(rows: Rows, weights: Weights) -> tuple[Rows, Weights]:
        return even(rows), weights

    [finding] = hf.dataflow(program).check(dims={B: 1, R: 1, micro: 1, dp: 3}).findings
    assert finding.message == "'even' requires dp % 2 == 0, but 3 % 2 = 1"


@hf.requires("group >= least", "limit <= 1")
@hf.function
def grouped(rows: Rows, *, group: int, least: int = 2, limit: float | None = None) -> Rows: ...


def test_numbers_of_a_call_are_what_it_is_given_or_its_default() -> None:
    @hf.dataflow
    def program(rows: Rows) -> list[Rows]:
        return [grouped(rows, group=2), grouped(rows, group=3, least=4), grouped(rows, group=8, least=4)]

    [finding] = program.check().findings
    assert finding.message == "'grouped' requires group >= least, but group = 3 and least = 4"


def test_a_number_that_is_left_out_is_no_mistake() -> None:
    @hf.dataflow
    def program(rows: Rows) -> list[Rows]:
        return [grouped(rows, group=2, limit=None), grouped(rows, group=2, limit=2.0)]

    [finding] = program.check().findings
    assert finding.message == "'grouped' requires limit <= 1, but limit = 2"


class Student(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("B >= 2")
    def learn(self, rows: Rows, *, epochs: int = 1) -> Rows: ...


class CarefulStudent(Student):
    def __init__(self, most: int = 4) -> None: ...

    @register(Dispatch.DP_PROTO)
    @hf.requires("epochs <= most", "B % 8 == 0")
    def learn(self, rows: Rows, *, epochs: int = 1) -> Rows: ...


def test_a_placed_class_requires_more() -> None:
    @hf.dataflow
    def program(rows: Rows, student: Student) -> list[Rows]:
        return [student.learn(rows), student.learn(rows, epochs=4), student.learn(rows, epochs=5)]

    def messages(role: type[Student], rows: int) -> list[str]:
        placed = hf.Deployment(student=hf.place(role, pool=hf.ResourcePool([1])))
        return [finding.message for finding in program.check(placed, dims={B: rows}).findings]

    too_many = "'student.learn' requires epochs <= most, but epochs = 5 and most = 4"
    assert messages(Student, 4) == []
    assert messages(Student, 1)[0] == "'student.learn' requires B >= 2, but B = 1"
    assert messages(CarefulStudent, 8) == [too_many]
    assert messages(CarefulStudent, 4) == ["'student.learn' requires B % 8 == 0, but 4 % 8 = 4", too_many]
