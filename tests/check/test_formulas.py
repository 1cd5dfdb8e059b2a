"""Numbers that bodies pass on, and groups of one: reported where a call certainly meets them, silent elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl import advantages
from hfdsl.rl.advantages import group_centered

if TYPE_CHECKING:
    import torch

Share = Annotated[float, hf.Within(at_least=0, at_most=1)]
ONE = 1


class B(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, scores: Scores, *, strictness: Share = 0.5, limit: Share | None = None) -> Scores: ...  # type: ignore[empty-body]


@dataclass
class Optimizer:
    rate: Annotated[float, hf.Within(above=0)]


@dataclass
class Config:
    optimizer: Optimizer
    share: Share | None = None


class Built(Judge):
    def __init__(self, config: Config, strictness: Share = 0.5) -> None: ...


def scaled(scores: torch.Tensor, factor: Share) -> torch.Tensor:
    return scores * factor


def codes(function: Any, **numbers: Any) -> tuple[str, ...]:
    @hf.dataflow
    def program(scores: Scores) -> Scores:
        return function(scores, **numbers)  # type: ignore[no-any-return]  # any of those below

    return program.check(dims={B: 8}).codes


# -- numbers and bounds


@hf.function
def bounded(scores: Scores, *, weight: Share = 1.0) -> Scores: ...  # type: ignore[empty-body]


@hf.function
def bounded_badly(scores: Scores, *, weight: Share = 1.5) -> Scores: ...  # type: ignore[empty-body]


@hf.function
def passing(scores: Scores, *, weight: float) -> Scores:
    return Scores(reward=scaled(scores.reward.tensor, factor=weight))


@hf.function
def passing_sometimes(scores: Scores, *, weight: float) -> Scores:
    if weight > 1:
        return scores
    return Scores(reward=scaled(scores.reward.tensor, weight))


@hf.function
def passing_in_one_branch(scores: Scores, *, weight: float) -> Scores:
    return Scores(reward=scores.reward.tensor if weight > 1 else scaled(scores.reward.tensor, weight))


@hf.function
def passing_another(scores: Scores, *, weight: float) -> Scores:
    weight = min(weight, 1.0)
    return Scores(reward=scaled(scores.reward.tensor, weight))


@hf.function
def hiding(scores: Scores, *, weight: float) -> Scores:
    def scaled(values: torch.Tensor, factor: float) -> torch.Tensor:
        return values / factor

    return Scores(reward=scaled(scores.reward.tensor, weight))


@pytest.mark.parametrize("weight", [1.5, -0.1, 2, float("nan")])
@pytest.mark.parametrize("function", [bounded, passing])
def test_a_number_out_of_bounds_is_reported(function: Any, weight: float) -> None:
    assert codes(function, weight=weight) == ("HF940",)


@pytest.mark.parametrize("weight", [0, 0.5, 1])
@pytest.mark.parametrize("function", [bounded, passing])
def test_a_number_within_bounds_is_not(function: Any, weight: float) -> None:
    assert codes(function, weight=weight) == ()


@pytest.mark.parametrize("function", [passing_sometimes, passing_in_one_branch, passing_another])
def test_a_number_that_may_not_reach_the_formula_is_not(function: Any) -> None:
    assert codes(function, weight=1.5) == ()


def test_a_formula_of_the_same_name_is_not_meant() -> None:
    assert codes(hiding, weight=1.5) == ()


def test_a_default_out_of_bounds_is_reported_where_it_is_used() -> None:
    assert codes(bounded_badly) == ("HF940",)
    assert codes(bounded_badly, weight=0.5) == ()


def test_a_wrong_type_is_a_wrong_type_alone() -> None:
    assert codes(bounded, weight="high") == ("HF206",)


def test_role_methods_inner_dataflows_and_options_have_bounds_too() -> None:
    @hf.dataflow
    def inner(scores: Scores, judge: Judge, *, share: Share = 0.5) -> Scores:
        return judge.score(scores, strictness=share)

    @hf.dataflow
    def calling(scores: Scores, judge: Judge) -> Scores:
        return inner(judge.score(scores, strictness=2.0, limit=3), judge, share=-1.0)

    @hf.dataflow
    def shaped(scores: Scores, *, share: Share = 1.5) -> Scores:
        return bounded(scores)

    report = calling.check()
    assert report.codes == ("HF940",) * 4  # of the inner dataflow's parameter, and of the port that it wires
    assert shaped.check().codes == ("HF940",)


def test_fields_of_configs_have_bounds() -> None:
    @hf.dataflow
    def program(scores: Scores, judge: Judge) -> Scores:
        return judge.score(scores)

    def places(*args: Any, **kwargs: Any) -> list[str]:
        deployment = hf.Deployment(judge=hf.place(Built, *args, pool=hf.ResourcePool([1]), **kwargs))
        return [finding.message for finding in program.check(deployment, {B: 4}).findings]

    assert places(Config(Optimizer(1.0)), strictness=1) == []
    assert places(Config(Optimizer(0.0), share=2.0), strictness=-1) == [
        "role 'judge': 'config.optimizer.rate' of Built must be above 0, and is 0.0",
        "role 'judge': 'config.share' of Built must be at least 0 and at most 1, and is 2.0",
        "role 'judge': 'strictness' of Built must be at least 0 and at most 1, and is -1",
    ]


# -- groups of one


@hf.function(rows=hf.GroupedBy("n"))
def by_formula(scores: Scores, *, n: int) -> Scores:
    return Scores(reward=group_centered(scores.reward.tensor, n))


@hf.function(rows=hf.GroupedBy("n"))
def by_module(scores: Scores, *, n: int) -> Scores:
    gains = advantages.leave_one_out(scores.reward.tensor, group=n)
    return Scores(reward=gains)


@hf.function(rows=hf.GroupedBy("n"))
def by_late_import(scores: Scores, *, n: int) -> Scores:
    from hfdsl.rl.advantages import group_normalized as normalized

    return Scores(reward=normalized(scores.reward.tensor, n))


@hf.function(rows=hf.GroupedBy("n"))
def by_deviation(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.reshape(-1, n)
    return Scores(reward=(groups / (groups.std(dim=-1, keepdim=True) + 1e-6)).flatten())


@hf.function(rows=hf.GroupedBy("n"))
def by_mean(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    gains = (groups - groups.mean(1, keepdim=True)) * 2.0
    return Scores(reward=gains.flatten())


@hf.function(rows=hf.GroupedBy("n"))
def by_named_mean(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    mean = groups.mean(1, keepdim=True)
    gains = groups.sub(mean)
    return Scores(reward=gains.flatten())


@hf.function(rows=hf.Grouped(ONE))
def by_constant(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor.view(-1, ONE).std(1))


@hf.function(rows=hf.GroupedBy("n"))
def by_population(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    return Scores(reward=(groups / (groups.std(1, keepdim=True, correction=0) + 1)).flatten())


@hf.function(rows=hf.GroupedBy("n"))
def without_nan(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    return Scores(reward=(groups / groups.std(1, keepdim=True).nan_to_num(1.0)).flatten())


@hf.function(rows=hf.GroupedBy("n"))
def in_a_branch(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    gains = groups - groups.mean(1, keepdim=True)
    if n == 1:
        gains = groups
    return Scores(reward=gains.flatten())


@hf.function(rows=hf.GroupedBy("n"))
def beside_others(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    return Scores(reward=(groups + (groups - groups.mean(1, keepdim=True))).flatten())


@hf.function(rows=hf.GroupedBy("n"))
def beside_others_in_place(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    gains = groups - groups.mean(1, keepdim=True)
    gains += groups
    return Scores(reward=gains.flatten())


@hf.function(rows=hf.GroupedBy("n"))
def of_the_batch(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    return Scores(reward=(groups - groups.mean(0, keepdim=True)).flatten())


@hf.function(rows=hf.GroupedBy("n"))
def best_of(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.view(-1, n)
    return Scores(reward=(groups == groups.max(1, keepdim=True).values).float().flatten())


@hf.function(rows=hf.GroupedBy("n"))
def by_others(scores: Scores, *, n: int) -> Scores:
    groups = scores.reward.tensor.reshape((-1, n))
    return Scores(reward=(groups - (groups.sum(1, keepdim=True) - groups) / (n - 1)).flatten())


COMPARING = (by_formula, by_module, by_late_import, by_deviation, by_mean, by_named_mean, by_others)


@pytest.mark.parametrize("function", COMPARING)
def test_a_comparison_within_a_group_of_one_is_reported(function: Any) -> None:
    assert codes(function, n=1) == ("HF314",)
    assert codes(function, n=2) == ()


def test_a_size_that_is_left_out_is_one_mistake() -> None:
    @hf.dataflow
    def program(scores: Scores) -> Scores:
        return by_others(scores)  # type: ignore[call-arg]

    assert program.check().codes == ("HF203",)


def test_a_constant_may_say_how_large_groups_are() -> None:
    assert codes(by_constant) == ("HF314",)


@pytest.mark.parametrize(
    "function", [by_population, without_nan, in_a_branch, beside_others, beside_others_in_place, best_of]
)
def test_a_group_of_one_that_means_something_is_not(function: Any) -> None:
    assert codes(function, n=1) == ()


def test_a_mean_over_all_groups_compares_other_rows_than_it_declares() -> None:
    assert codes(of_the_batch, n=1) == codes(of_the_batch, n=2) == ("HF338",)


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("function", COMPARING)
def test_reports_agree_with_the_body(function: Any) -> None:
    torch = pytest.importorskip("torch")
    scores = Scores(reward=torch.tensor([1.0, 2.0]))
    if function in (by_deviation, by_mean, by_named_mean, by_others):
        reward = function(scores, n=1).reward.tensor
        assert bool(reward.isnan().all()) or not bool(reward.any())
    else:
        with pytest.raises(hf.SizeError, match="HF314"):
            function(scores, n=1)
