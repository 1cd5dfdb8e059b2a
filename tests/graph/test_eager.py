"""Eager runs: a dataflow called with workers is its body, and says the same as the plan that is compiled from it."""

from __future__ import annotations

import random
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError, SizeError, WiringError


class B(hf.Dim): ...


class R(hf.Dim): ...


class Prompts(hf.Batch):
    x: hf.i64[B, R]
    name: hf.Obj[str, B]


class Values(hf.Batch):
    value: hf.i64[B]


class Named(Values):
    name: hf.Obj[str, B]


class Metrics(hf.Batch):
    total: hf.Metric[int, Literal["sum"]]


class Role(hf.Worker):
    def __init__(self, factor: int = 3) -> None:
        self.factor = factor
        self.calls: list[hf.Call] = []

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def score(self, prompts: Prompts, add: int = 0) -> Values:
        self.calls.append(hf.current_call())
        return Values(value=prompts.x.tensor.sum(1) * self.factor + add)

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def total(self, values: Values) -> Metrics:
        return Metrics(total=int(values.value.tensor.sum()))

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def everywhere(self, values: Values) -> Values:
        return Values(value=values.value.tensor + self.rank)

    @hf.register(hf.Dispatch.THREE_D_PP_ONLY)
    def stages(self) -> str:
        return f"stage {self.coordinates.pp}"

    @hf.register(hf.Dispatch.ALL_TO_ALL)
    def given(self, values: Values, factor: int) -> Values:
        return Values(value=values.value.tensor * factor)

    @hf.register(hf.Dispatch.ALL_TO_ALL, hf.Execute.RANK_ZERO)
    def on_zero(self, values: Values) -> Values:
        return values

    @hf.register(hf.Dispatch.DP_PROTO)
    def noise(self, prompts: Prompts) -> Values:
        draw = hf.current_call().uniforms(2).sum(1)
        return Values(value=(draw * 1000).long())

    @hf.register(hf.Dispatch.DP_PROTO)
    def global_noise(self, prompts: Prompts) -> Values:
        return Values(value=torch.randint(1000, (len(prompts),)) + random.randrange(1000))


def prompts(rows: int, r: int = 2) -> Prompts:
    return Prompts(x=torch.arange(rows * r).view(rows, r) % 7, name=[f"n{i}" for i in range(rows)])


@hf.function
def first(values: hf.PerRank[Values]) -> Values:
    return values[0]


@hf.function(rows=hf.Grouped(2))
def swap(values: Values) -> Values:
    return Values(value=values.value.tensor.view(-1, 2).flip(1).flatten())


@hf.dataflow
def everything(batch: Prompts, role: Role) -> tuple[Values, hf.PerRank[Values], hf.PerStage[str], Values]:
    values = role.score(batch, add=1)
    listed = role.everywhere(swap(values))
    again = role.given(listed, hf.PerRank([5]))
    return values, again, role.stages(), role.on_zero(first(again))


def test_a_role_looks_the_same_in_a_trace_and_in_an_eager_run(capsys: pytest.CaptureFixture[str]) -> None:
    @hf.dataflow
    def shown(batch: Prompts, role: Role) -> Values:
        print(role)
        return role.score(batch, add=1)

    shown.trace()
    shown(prompts(2), Role())
    assert capsys.readouterr().out.splitlines() == ["<role 'role' of class Role>"] * 2


def test_an_eager_run_is_the_body() -> None:
    role, batch = Role(), prompts(4)
    values, listed, stages, zero = everything(batch, role)
    expected = batch.x.tensor.sum(1) * 3 + 1
    swapped = expected.view(-1, 2).flip(1).flatten() * 5
    assert values.value.tensor.equal(expected)
    assert type(listed) is hf.PerRank
    assert listed[0].value.tensor.equal(swapped)
    assert stages == hf.PerStage(["stage 0"])
    assert zero.value.tensor.equal(swapped)


def test_an_eager_run_says_what_the_plan_of_one_rank_says() -> None:
    batch = prompts(4)
    deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([1])))
    with everything.compile(deployment, dims={B: 4}).launch() as running:
        values, listed, stages, zero = running.step(batch)
    eager = everything(batch, Role())
    assert values.value.tensor.equal(eager[0].value.tensor)
    assert [v.value.tensor.tolist() for v in listed] == [v.value.tensor.tolist() for v in eager[1]]
    assert (type(listed), stages) == (hf.PerRank, eager[2])
    assert zero.value.tensor.equal(eager[3].value.tensor)


def test_a_breakpoint_sees_real_values() -> None:
    seen: list[int] = []

    @hf.dataflow
    def flow(batch: Prompts, role: Role) -> Values:
        values = role.score(batch)
        if len(seen) >= 0 and isinstance(values, Values):
            seen.append(int(values.value.tensor[0]))
        return values

    flow(prompts(2), Role())
    assert seen == [3]


def test_calls_are_numbered_as_in_the_trace() -> None:
    role = Role()

    @hf.dataflow
    def flow(batch: Prompts, role: Role) -> list[Values]:
        return [role.score(part, add=epoch) for epoch in range(2) for part in hf.minibatches(batch, 2)]

    flow(prompts(4), role)
    flow(prompts(4), role)
    assert [(call.step, call.node, call.rank, list(call.rows)) for call in role.calls] == [
        (step, node, 0, [0, 1]) for step in range(2) for node in range(4)
    ]


@pytest.mark.parametrize("method", ["noise", "global_noise"])
def test_random_streams_are_those_of_the_plan(method: str) -> None:
    @hf.dataflow
    def flow(batch: Prompts, role: Role) -> tuple[Values, Values]:
        draw: Any = getattr(role, method)
        return draw(batch), draw(batch)

    deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([1])))
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    with flow.compile(deployment, dims={B: 4}).launch() as running:
        steps = [running.step(prompts(4)) for _ in range(2)]
    eager = [flow(prompts(4), Role()) for _ in range(2)]
    values = [[v.value.tensor.tolist() for v in step] for step in eager]
    assert values == [[v.value.tensor.tolist() for v in step] for step in steps]
    assert len({str(values) for step in values for values in step}) == 4, "every call has numbers of its own"
    assert random.getstate() == before[0]
    assert torch.get_rng_state().equal(before[1])


def test_outside_of_a_dataflow_functions_and_methods_are_plain_python() -> None:
    assert swap(Values(value=torch.tensor([1, 2, 3, 4]))).value.tensor.tolist() == [2, 1, 4, 3]
    assert Role(2).total(Values(value=torch.tensor([1, 2]))).total.value == 3
    with pytest.raises(WiringError, match=r"HF208: current_call\(\) is for the body of a role or function that a"):
        Role().score(prompts(2))


def test_an_unknown_method_is_reported_by_name() -> None:
    @hf.dataflow
    def flow(batch: Prompts, role: Role) -> Values:
        values: Values = role.scor(batch)  # type: ignore[attr-defined]  # a mistake on purpose
        return values

    with pytest.raises(WiringError, match=r"HF202: role 'Role' has no method 'scor'; did you mean 'score'\?"):
        flow(prompts(2), Role())


def test_a_custom_pair_of_functions_runs_eagerly_too() -> None:
    def spread(group: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple([a] * group.world_size for a in args), {n: [a] * group.world_size for n, a in kwargs.items()}

    class Custom(hf.Worker):
        @hf.register(dispatch_mode={"dispatch_fn": spread, "collect_fn": lambda group, outputs: outputs[-1]})
        def score(self, batch: Prompts, *, add: int) -> Values:
            return Values(value=batch.x.tensor.sum(1) + add)

    @hf.dataflow
    def flow(batch: Prompts, role: Custom) -> Values:
        return role.score(batch, add=2)

    assert flow(prompts(2), Custom()).value.tensor.tolist() == [3, 7]


# -- operations: what is done to real records is what a plan reads


@hf.dataflow
def reshaped(batch: Prompts, role: Role) -> Any:
    repeated = hf.repeat(batch, 3)
    parts = hf.minibatches(hf.repeat(repeated, 2), 4)
    merged = hf.merge(Named, role.score(parts[1]), parts[1])
    return repeated, list(parts), merged, hf.minibatches(merged, 3)[2], parts[3].name


@settings(max_examples=15)
@given(st.integers(1, 3).map(lambda n: 2 * n), st.sampled_from([1, 3]))
def test_operations_mean_the_same_eagerly_and_in_a_plan(rows: int, ranks: int) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, hf.Batch):
            return {n: v.tolist() if hasattr(v, "tolist") else v for n, v in value.__hf_columns__.items()}
        if isinstance(value, hf.Obj):
            return value.objects
        return [plain(inner) for inner in value]

    batch = prompts(rows)
    deployment = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([ranks])))
    with reshaped.compile(deployment, dims={B: rows}).launch() as running:
        assert plain(running.step(batch)) == plain(reshaped(batch, Role()))
    names = [name for name in batch.name.objects for _ in range(6)]
    assert plain(reshaped(batch, Role()))[2]["name"] == names[len(names) // 4 : len(names) // 2]


def test_repeat_makes_runs_of_equal_rows() -> None:
    again = hf.repeat(prompts(2), 2)
    assert again.name.objects == ["n0", "n0", "n1", "n1"]
    assert again.x.tensor.tolist() == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert hf.repeat(Metrics(total=3), 2).total.value == 3


def test_operations_refuse_what_has_no_meaning() -> None:
    mistakes: list[tuple[type[HfError], str, Any]] = [
        (SizeError, "HF304: repeat takes a whole number of at least 1, got 0", lambda: hf.repeat(prompts(2), 0)),
        (SizeError, "HF310: 5 rows of 'Prompts' do not split into 2 equal", lambda: hf.minibatches(prompts(5), 2)),
        (
            SizeError,
            "HF304: minibatches takes a whole number of at least 1, got 0",
            lambda: hf.minibatches(prompts(4), 0),
        ),
        (
            WiringError,
            "HF204: merge into 'Named': no part has column 'value' ('Prompts')",
            lambda: hf.merge(Named, prompts(2)),
        ),
        (
            WiringError,
            "HF205: merge into 'Named': two parts have column 'name' ('Prompts', 'Prompts')",
            lambda: hf.merge(Named, Values(value=torch.zeros(2).long()), prompts(2), prompts(2)),
        ),
        (WiringError, "HF210: ", lambda: hf.merge(Named, Values(value=torch.zeros(3).long()), prompts(2))),
    ]
    for family, text, make in mistakes:
        with pytest.raises(family) as error:
            make()
        assert str(error.value).startswith(text)


KEPT: hf.bool_[B] = hf.bool_(torch.ones(2, dtype=torch.bool))
COUNTED: dict[str, Any] = {
    "repeat": hf.repeat,
    "minibatches": hf.minibatches,
    "take": hf.take,
    "fill": hf.fill,
    "filter": lambda batch, group: hf.filter(batch, KEPT, group=group),
}


@pytest.mark.parametrize("operation", COUNTED)
def test_operations_check_arguments_as_tracing_does(operation: str) -> None:
    for count in (0, -1, 1.5, "2", None, True, [2]):
        with pytest.raises(SizeError, match=rf"HF304: {operation} takes a whole number of at least 1, got "):
            COUNTED[operation](prompts(2), count)
    for batch in (None, 3, "rows", [prompts(2)]):
        with pytest.raises(WiringError, match=rf"HF206: {operation} takes a record, got "):
            COUNTED[operation](batch, 2)
    with pytest.raises(WiringError, match="HF206: merge takes a record, got None"):
        hf.merge(Named, prompts(2), None)  # type: ignore[arg-type]


# -- the numbering, the columns and the results are those of a plan


@hf.function
def echo(values: Values) -> Values:
    return values


@hf.function
def drawn(values: Values) -> Values:
    assert type(values) is Values
    return Values(value=(hf.current_call().uniforms(1)[:, 0] * 1000).long())


@hf.function
def drawn_loose(value: hf.i64[B]) -> hf.i64[B]:
    return hf.i64((hf.current_call().uniforms(1)[:, 0] * 1000).long())


class Caller(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def call(self, values: Values) -> Values:
        assert type(values) is Values
        return echo(Values(value=values.value.tensor + 1))

    @hf.register(hf.Dispatch.DP_PROTO)
    def loose(self, value: hf.i64[B]) -> hf.i64[B]:
        return hf.i64((hf.current_call().uniforms(1)[:, 0] * 1000).long())

    @hf.register(hf.Dispatch.DP_PROTO)
    def more(self, values: Values) -> Values:
        return Named(value=values.value.tensor, name=["x"] * len(values))

    @hf.register(hf.Dispatch.DP_PROTO)
    def lies(self, values: Values) -> Values:
        lie: Values = None  # type: ignore[assignment]  # a mistake on purpose
        return lie


@hf.function
def lying(values: Values) -> Values:
    lie: Values = values.value.tensor  # type: ignore[assignment]  # a mistake on purpose
    return lie


@hf.dataflow
def inner(batch: Named, role: Caller) -> Values:
    return drawn(role.call(batch))


@hf.dataflow
def outer(batch: Named, role: Caller) -> tuple[Values, Values, hf.i64[B], hf.i64[B]]:
    return inner(batch, role), drawn(batch), role.loose(batch.value), drawn_loose(batch.value)


def named(rows: int = 4) -> Named:
    return Named(value=torch.arange(rows), name=[str(i) for i in range(rows)])


def test_functions_in_bodies_inner_dataflows_and_loose_columns_are_numbered_as_in_a_plan() -> None:
    deployment = hf.Deployment(role=hf.place(Caller, pool=hf.ResourcePool([1])))
    with outer.compile(deployment, dims={B: 4}).launch() as running:
        planned = running.step(named())
    eager = outer(named(), Caller())
    assert [planned[i].value.tensor.tolist() for i in (0, 1)] == [v.value.tensor.tolist() for v in eager[:2]]
    assert [planned[i].tensor.tolist() for i in (2, 3)] == [eager[2].tensor.tolist(), eager[3].tensor.tolist()]


def test_a_dataflow_within_the_body_of_a_call_is_a_run_of_its_own() -> None:
    class Nesting(hf.Worker):
        @hf.register(hf.Dispatch.DP_PROTO)
        def run(self, batch: Named) -> Values:
            before = hf.current_call()
            rollout = inner(batch, Caller())
            assert hf.current_call() is before
            return rollout

    @hf.dataflow
    def flow(batch: Named, role: Nesting) -> Values:
        return role.run(batch)

    assert flow(named(), Nesting()).value.tensor.shape == (4,)


def test_a_result_is_held_against_its_declaration() -> None:
    @hf.dataflow
    def more(batch: Values, role: Caller) -> Values:
        return role.more(batch)

    @hf.dataflow
    def lies(batch: Values, role: Caller) -> Values:
        return role.lies(batch)

    @hf.dataflow
    def false(batch: Values) -> Values:
        return lying(batch)

    assert type(more(named(), Caller())) is Values
    with pytest.raises(WiringError, match=r"HF805: 'role\.lies' declares Values and returned NoneType on rank 0"):
        lies(named(), Caller())
    with pytest.raises(WiringError, match="HF805: 'lying' declares Values and returned Tensor on rank 0"):
        false(named())


def test_wrong_arguments_are_reported_by_dataflow_and_parameter() -> None:
    flow: Any = inner

    @hf.dataflow
    def calls(batch: Values, role: Caller) -> Values:
        misspelled: Any = role.call
        values: Values = misspelled(value=batch)
        return values

    mistakes: list[tuple[str, Any]] = [
        ("HF203: 'inner' is called without its argument 'role'", lambda: flow(named())),
        ("HF202: 'inner' has no parameter 'rol'; did you mean 'role'?", lambda: flow(named(), rol=Caller())),
        ("HF202: 'inner' takes 2 positional arguments, got 3", lambda: flow(named(), Caller(), 1)),
        ("HF202: 'inner' is given 'batch' twice: by position and by name", lambda: flow(named(), batch=named())),
        (
            "HF206: role 'role' of 'inner' takes an instance of Caller, got the class Caller: call it",
            lambda: flow(named(), Caller),
        ),
        ("HF206: role 'role' of 'inner' takes an instance of Caller, got Role", lambda: flow(named(), Role())),
        ("HF206: input 'batch' of 'inner' takes Named, got Prompts", lambda: flow(prompts(2), Caller())),
        ("HF202: 'role.call' has no parameter 'value'; did you mean 'values'?", lambda: calls(named(), Caller())),
    ]
    for text, make in mistakes:
        with pytest.raises(WiringError) as error:
            make()
        assert str(error.value).startswith(text)
