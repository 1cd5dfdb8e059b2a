# mypy: disable-error-code="empty-body, no-untyped-def"
"""One mistake, one finding of a few lines: however many roles, sizes, uses or calls it shows in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, bool_, f32, register


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B, R]


class Kept(hf.Batch):
    keep: bool_[B]


class Wide(Rows):
    y: f32[B, R]


class Both(Wide, Kept): ...


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def apply(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def choose(self, rows: Rows) -> Kept: ...


class Lists(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def apply(self, rows: Rows) -> Rows: ...

    @staticmethod
    @register(Dispatch.DP_PROTO)
    def choose(rows: Rows) -> Kept: ...


@hf.function
def join(left: Rows, right: Rows) -> Rows: ...


@hf.dataflow
def three(rows: Rows, first: Role, second: Role, third: Role) -> Rows:
    return third.apply(second.apply(first.apply(rows)))


@hf.dataflow
def one(rows: Rows, role: Role) -> Rows:
    return role.apply(rows)


@hf.dataflow
def two_values(rows: Rows, role: Role):
    return role.apply(rows), role.apply(rows)


def placed(pool: hf.ResourcePool, mesh: hf.Mesh) -> Any:
    return hf.place(Role, pool=pool, mesh=mesh)


def test_roles_with_one_mesh_that_does_not_fill_their_pool() -> None:
    pool, mesh = hf.ResourcePool([8], name="pool"), hf.Mesh(dp=4)
    shared = hf.Deployment(
        first=hf.place(Role, pool=pool, mesh=mesh),
        second=hf.place(Role, pool=pool, mesh=mesh),
        third=hf.place(Role, pool=pool),
    )
    [finding] = three.check(shared, {B: 64, R: 4}).findings
    assert finding.code == "HF501"
    assert "roles 'first' and 'second'" in finding.message
    assert [label.text for label in finding.related] == ["placed so too"]
    assert finding.help[0].startswith("set dp to 8")

    by_function = hf.Deployment(**{name: placed(pool, hf.Mesh(dp=4)) for name in ("first", "second", "third")})
    [finding] = three.check(by_function, {B: 64, R: 4}).findings
    assert "roles 'first', 'second' and 'third'" in finding.message
    assert not finding.related


def test_roles_with_meshes_of_their_own_are_mistakes_of_their_own() -> None:
    pool, second_pool = hf.ResourcePool([8], name="pool"), hf.ResourcePool([16], name="other")
    mesh = hf.Mesh(dp=4)
    deployment = hf.Deployment(
        first=hf.place(Role, pool=pool, mesh=hf.Mesh(dp=4)),
        second=hf.place(Role, pool=pool, mesh=mesh),
        third=hf.place(Role, pool=second_pool, mesh=mesh),
    )
    assert three.check(deployment, {B: 64, R: 4}).codes == ("HF501",) * 3


@pytest.mark.parametrize("count", [3, 12, 13, 1000, 20_000])
def test_sizes_are_listed_in_short(count: int) -> None:
    pool = hf.ResourcePool([2], name="pool")
    sizes = tuple(range(1, count + 1))
    report = one.check(hf.Deployment(role=hf.place(Role, pool=pool)), {B: sizes, R: 4})
    assert report.codes == ("HF310",)
    assert ("more)" in str(report)) is (count > 12)
    assert f"{count}" in str(report)
    assert len(str(report)) < 2000
    assert len(json.dumps(report.json())) < 4000


USES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "ports": lambda role, values, rows: [role.apply(values) for _ in range(5)],
    "operations": lambda role, values, rows: [hf.repeat(values, 2), hf.take(values, 4), hf.minibatches(values, 2)],
    "inner dataflows": lambda role, values, rows: [one(values, role), one(values, role)],
    "all": lambda role, values, rows: [role.apply(values), hf.repeat(values, 2), one(values, role), join(rows, values)],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_an_inner_dataflow_returns_is_used_as_one_record(use: Callable[[Any, Any, Any], Any]) -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> Rows:
        use(role, two_values(rows, role), rows)
        return rows

    assert len([code for code in program.check().codes if code != "HF602"]) == 1


def test_two_tuples_are_two_mistakes() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> Rows:
        role.apply((rows, rows))  # type: ignore[arg-type]
        role.apply((rows, rows))  # type: ignore[arg-type]
        return rows

    assert program.check().codes == ("HF206", "HF206")


def test_a_number_of_kept_rows_is_explained_at_its_filter() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> Rows:
        repeated = hf.repeat(rows, 8)
        kept = hf.filter(repeated, role.choose(repeated).keep, group=8)
        return join(kept, repeated)

    [finding] = program.check(dims={B: 64, R: 4}).findings
    assert "kept1*8" in finding.message
    [label] = [label for label in finding.related if label.text.startswith("kept1: ")]
    assert label.text == "kept1: the number of groups of 8 rows that this keeps"
    assert "hf.filter(" in str(program.check(dims={B: 64, R: 4}))


def nested(depth: int) -> Any:
    inner: Any = one
    for _ in range(depth):
        inner = wrapped(inner)
    return inner


def wrapped(inner: Any) -> Any:
    @hf.dataflow
    def outer(rows: Rows, role: Role) -> Rows:
        return inner(rows, role)  # type: ignore[no-any-return]

    return outer


@pytest.fixture
def usual_recursion_limit() -> Iterator[None]:
    """Python's own, which libraries raise."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("usual_recursion_limit")
def test_dataflows_within_dataflows_end_at_the_recursion_limit() -> None:
    assert nested(50).check().codes == ()
    [finding] = nested(400).check().findings
    assert finding.code == "HF610"
    assert "recursion limit" in finding.message
    assert len(finding.chain) == 12
    assert "calls follow that are left out" in str(nested(400).check())


def test_roles_are_given_by_name() -> None:
    place = hf.place(Role, pool=hf.ResourcePool([1]))
    for arguments, names in ((("x",), {"role": place}), ((place,), {}), ((place, place), {})):
        with pytest.raises(hf.HfError, match=rf"HF507: hf.Deployment takes its roles by name.*got {len(arguments)} "):
            hf.Deployment(*arguments, **names)


class Learner(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.writes("policy")
    def learn(self, rows: Rows) -> Rows: ...

    @register(Dispatch.DP_PROTO)
    def look(self, rows: Rows) -> Rows: ...


@hf.dataflow
def unread(rows: Rows, learner: Learner) -> None:
    learner.learn(rows)
    learner.look(rows)


def test_no_advice_removes_a_call_that_trains() -> None:
    notes = {finding.message.split("'")[1]: finding.notes for finding in unread.check()}
    assert notes == {"learner.learn": ("return it",), "learner.look": ("return it or remove the call",)}


def test_a_helper_that_lacks_its_decorator() -> None:
    def centered(rows: Rows, others: Rows) -> Rows:
        return Rows(x=rows.x.tensor - others.x.tensor)

    @hf.dataflow
    def program(rows: Rows, role: Role) -> Rows:
        return role.apply(centered(rows, role.apply(rows)))

    [finding] = program.check().findings
    assert (finding.code, finding.message.startswith("'.tensor' on 'rows.x' in 'centered': ")) == ("HF208", True)
    assert finding.notes == ("decorate 'centered' with @hf.function, or move what computes into a function that is",)


def test_an_inner_dataflow_that_computes() -> None:
    @hf.dataflow
    def inner(rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor)  # the mistake

    @hf.dataflow
    def program(rows: Rows, role: Role) -> Rows:
        return role.apply(inner(rows))

    [finding] = program.check().findings
    assert finding.message == "'.tensor' on 'rows.x': a dataflow passes values on and does not compute with them"


def test_a_record_that_is_merged_twice() -> None:
    @hf.dataflow
    def program(wide: Wide, role: Role) -> Both:
        return hf.merge(Both, wide, wide, role.choose(wide))

    [finding] = program.check().findings
    message = "columns 'x', 'y' of 'Both' come from 'wide', which is merged twice"
    assert (finding.code, finding.message, finding.notes) == ("HF205", message, ("pass it once",))


def test_pools_of_one_name_with_several_roles() -> None:
    small, large = (hf.ResourcePool([size], use_gpu=False, name="pool") for size in (2, 4))
    roles = {"first": hf.place(Role, pool=small), **dict.fromkeys(("second", "third"), hf.place(Role, pool=large))}
    [finding] = three.check(hf.Deployment(**roles), {B: 64, R: 4}).findings
    assert (finding.code, "of role 'second'" in finding.message) == ("HF514", True)


def test_rows_that_were_repeated_for_one_argument_alone() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role) -> Both:
        repeated = role.apply(hf.repeat(rows, 4))
        joined = join(rows, repeated)  # the mistake
        return Both(x=joined.x, y=repeated.x, keep=role.choose(repeated).keep)

    [finding] = program.check(dims={B: 8}).findings
    assert finding.code == "HF212"


def test_a_parameter_that_is_no_option() -> None:
    @hf.dataflow
    def program(rows: Rows, role: Role, n: int = 4) -> Rows:
        return role.apply(hf.repeat(hf.take(rows, n), n))

    [finding] = program.check().findings
    assert (finding.code, "'n' of 'program'" in finding.message) == ("HF119", True)


def test_a_list_of_ranks_where_rows_are_taken() -> None:
    @hf.dataflow
    def lists(rows: Rows, role: Lists) -> Rows:
        return hf.repeat(role.apply(rows), 2)  # type: ignore[return-value, type-var]  # the mistake

    @hf.dataflow
    def chosen(rows: Rows, role: Lists) -> Kept:
        return role.choose(rows)

    [finding] = lists.check().findings
    assert finding.notes[0].startswith("register its method with a protocol that joins the rows of the ranks")
    assert finding.related[0].text == "'role.apply' returns PerRank[Rows of B rows]"
    [finding] = chosen.check().findings
    assert finding.notes == ("a registered method takes self: write 'choose' without @staticmethod",)
