"""Values that live in one process are as apart as if they did not; arguments with unlike rows are cut alike."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, Execute, Mul, f32, register
from hfdsl.errors import HfError, SizeError, WiringError
from hfdsl.plan.compiled import CompiledPlan


class B(hf.Dim):
    """Rows."""


class C(hf.Dim):
    """Other rows."""


class X(hf.Batch):
    x: f32[B]


class Wider(X):
    extra: f32[B]


class Twice(hf.Batch):
    pair: f32[Mul[B, Literal[2]]]


class Other(hf.Batch):
    c: f32[C]


class Counted(hf.Batch):
    x: f32[B]
    count: hf.Metric[float, Literal["sum"]]


class Role(hf.Worker):
    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.state = torch.zeros(4 // self.world_size)
        self.dp = self.axis("dp")

    @register(Dispatch.DP_PROTO)
    def add_pairs(self, a: X, b: Twice) -> X:
        return X(x=a.x.tensor + b.pair.tensor.view(-1, 2).sum(1))

    @register(Dispatch.DP_PROTO)
    def add_others(self, a: X, b: Other) -> X:
        return X(x=a.x.tensor)

    @register(Dispatch.DP_PROTO)
    def doubled(self, a: X) -> Twice:
        return Twice(pair=a.x.tensor.repeat_interleave(2))

    @register(Dispatch.DP_PROTO)
    def get(self, a: X) -> X:
        return X(x=self.state)

    @register(Dispatch.DP_PROTO)
    def bump(self, a: X) -> X:
        self.state += 1
        return X(x=self.state.clone())

    @register(Dispatch.DP_PROTO)
    def weigh(self, a: X) -> X:
        return X(x=a.x.tensor * self.weight)

    @register(Dispatch.ONE_TO_ALL)
    def gradient(self, a: X) -> bool:
        return a.x.tensor.requires_grad

    @register(Dispatch.DP_PROTO)
    def wider(self, a: X) -> X:
        return Wider(x=a.x.tensor, extra=a.x.tensor)

    @register(Dispatch.DP_PROTO)
    def counted(self, a: X) -> Counted:
        return Counted(x=a.x.tensor, count=float(len(a)))

    @register(Dispatch.DP_PROTO)
    def recount(self, a: Counted) -> X:
        return X(x=a.x.tensor + a.count.value)

    @register(Dispatch.ONE_TO_ALL)
    def two_groups(self) -> float:
        """A group made in the constructor and one made here count the same calls."""
        mine = float(self.rank + 1)
        return 1000 * self.dp.all_reduce(mine) + self.axis("dp").all_reduce(mine * 10)

    @register(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)
    def lonely(self) -> float:
        return self.dp.all_reduce(1.0)


@hf.function
def pairs(a: X, b: Twice) -> X:
    return X(x=a.x.tensor + b.pair.tensor.view(-1, 2).sum(1))


def launch(dataflow: Any, ranks: int = 2, dims: dict[type[hf.Dim], int] | None = None) -> CompiledPlan:
    pool = hf.ResourcePool([ranks], use_gpu=False)
    return dataflow.compile(hf.Deployment(role=hf.place(Role, pool=pool)), {B: 4} if dims is None else dims)  # type: ignore[no-any-return]  # Any in


def step(dataflow: Any, *batches: hf.Batch, ranks: int = 2) -> Any:
    with launch(dataflow, ranks).launch() as running:
        return running.step(*batches)


def xs() -> X:
    return X(x=torch.arange(4.0))


@hf.dataflow
def role_pairs(a: X, role: Role) -> X:
    return role.add_pairs(a, role.doubled(a))


@hf.dataflow
def function_pairs(a: X, role: Role) -> X:
    return pairs(role.weigh(a), role.doubled(a))


@pytest.mark.parametrize("dataflow", [role_pairs, function_pairs])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_an_argument_with_twice_the_rows_is_cut_alike(dataflow: Any, ranks: int) -> None:
    assert step(dataflow, xs(), ranks=ranks).x.tensor.tolist() == [0.0, 3.0, 6.0, 9.0]


@hf.dataflow
def unrelated(a: X, c: Other, role: Role) -> X:
    return role.add_others(a, c)


def test_unrelated_rows_are_not_split_together() -> None:
    report = unrelated.check(
        hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2], use_gpu=False))), dims={B: 4, C: 8}
    )
    assert "HF420" in report.codes
    assert launch(unrelated, 1, {B: 4, C: 8}).report.ok  # one rank gets all rows of both


def test_rows_that_turn_out_alike_are_split_together() -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(role=hf.place(Role, pool=pool))
    assert unrelated.check(deployment, dims={B: 4, C: 4}).findings == ()
    report = unrelated.check(deployment)
    assert set(report.codes) == {"HF319"}
    assert "'role.add_others' can split its arguments alike: port 'b' has C rows" in str(report)
    with unrelated.compile(deployment).launch() as running:
        x = running.step(xs(), Other(c=torch.ones(4)))
        assert x.x.tensor.tolist() == xs().x.tensor.tolist()
        with pytest.raises(
            hf.SizeError, match=r"HF319: .*HF420, .*'role.add_others' splits its arguments over 2 chunks"
        ):
            running.step(xs(), Other(c=torch.ones(8)))


@hf.dataflow
def state(a: X, role: Role) -> tuple[X, X]:
    before = role.get(a)
    return before, role.bump(a)


class Policy(hf.Worker):
    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))

    @register(Dispatch.DP_PROTO)
    @torch.inference_mode()
    def generate(self, a: X) -> X:
        return X(x=a.x.tensor * 2)

    @register(Dispatch.DP_PROTO)
    def train(self, a: X) -> hf.Metric[float, Literal["sum"]]:
        (self.weight * a.x.tensor).sum().backward()
        return hf.Metric(float(self.weight.grad.sum()) if self.weight.grad is not None else 0.0)

    @register(Dispatch.DP_PROTO)
    def overwrite(self, a: X) -> X:
        return X(x=a.x.tensor.zero_())


@hf.dataflow
def trained(a: X, policy: Policy) -> hf.Metric[float, Literal["sum"]]:
    return policy.train(policy.generate(a))


@hf.dataflow
def overwritten(a: X, policy: Policy) -> X:
    return policy.overwrite(policy.generate(a))


def of_policy(dataflow: Any) -> Any:
    deployment = hf.Deployment(policy=hf.place(Policy, pool=hf.ResourcePool([2], use_gpu=False)))
    with dataflow.compile(deployment, {B: 4}).launch() as running:
        return running.step(xs())


def test_tensors_of_inference_mode_can_be_trained_on() -> None:
    assert of_policy(trained).value == 2.0 * (0 + 1 + 2 + 3)


def test_writes_into_what_was_made_in_inference_mode_are_reported() -> None:
    with pytest.raises(WiringError, match=r"HF703: 'policy.overwrite' wrote into column 'x'"):
        of_policy(overwritten)


def test_a_result_that_changes_after_it_was_returned_is_reported() -> None:
    with pytest.raises(WiringError, match=r"HF703: column 'x' of its result was changed after 'role.get'"):
        step(state, xs())


@hf.dataflow
def history(a: X, role: Role) -> hf.PerRank[bool]:
    return role.gradient(role.weigh(a))


def test_gradients_do_not_cross_from_call_to_call() -> None:
    assert step(history, xs(), ranks=1) == [False]


@hf.dataflow
def subclass(a: X, role: Role) -> X:
    return role.wider(role.wider(a))


def test_a_result_of_a_subclass_is_the_declared_record() -> None:
    assert type(step(subclass, xs())) is X


@hf.dataflow
def repeated(a: X, role: Role) -> X:
    return role.recount(hf.minibatches(hf.repeat(role.counted(a), 2), 2)[0])


def test_a_metric_is_not_repeated_with_its_rows() -> None:
    assert step(repeated, xs()).x.tensor.tolist() == [4.0, 4.0, 5.0, 5.0]


@hf.dataflow
def talk(role: Role) -> hf.PerRank[float]:
    return role.two_groups()


def test_groups_made_at_different_times_meet() -> None:
    with launch(talk).launch() as running:
        assert [running.step() for _ in range(2)] == [[3030.0, 3030.0]] * 2


@hf.dataflow
def alone(role: Role) -> float:
    return role.lonely()


def test_rank_zero_alone_has_no_peers() -> None:
    with launch(alone).launch() as running, pytest.raises(HfError, match="HF410"):
        running.step()


def test_a_step_needs_rows() -> None:
    plan = launch(subclass, dims={})
    with plan.launch() as running, pytest.raises(SizeError, match="HF302: input 'a' has no rows"):
        running.step(X(x=torch.zeros(0)))


def test_an_input_is_given_once() -> None:
    with launch(subclass).launch() as running, pytest.raises(WiringError, match="HF202: 'subclass' got its input"):
        running.step(xs(), a=xs())


class Pair(NamedTuple):
    first: X
    second: X


@hf.dataflow
def shapes(a: X, role: Role) -> tuple[list[X], Pair, dict[int, X]]:
    x = role.wider(a)
    return [x, a], Pair(x, x), {3: a}


def test_a_result_comes_back_in_the_shape_that_the_dataflow_gave_it() -> None:
    listed, pair, keyed = step(shapes, xs())
    assert (type(listed), type(pair), list(keyed)) == (list, Pair, [3])
    assert torch.equal(listed[1].x.tensor, pair.second.x.tensor)
