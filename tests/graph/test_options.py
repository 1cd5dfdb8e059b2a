"""Options of a dataflow, and functions whose groups are as large as a parameter says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.graph.program import FunctionCall, Repeat
from hfdsl.types.rows import Grouped


class B(hf.Dim): ...


class Scores(hf.Batch):
    score: f32[B]


@dataclass(frozen=True)
class Scale:
    factor: float = 1.0


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, scores: Scores, *, scale: Scale) -> Scores:
        return Scores(score=scores.score.tensor * scale.factor)


@hf.function(rows=hf.GroupedBy("group"))
def centered(scores: Scores, *, group: int = 2) -> Scores:
    groups = scores.score.tensor.view(-1, group)
    return Scores(score=(groups - groups.mean(1, keepdim=True)).flatten())


@hf.dataflow
def compare(scores: Scores, judge: Judge, *, group: int = 4, scale: Scale = Scale(2.0)) -> Scores:
    return centered(judge.score(hf.repeat(scores, group), scale=scale), group=group)


@hf.dataflow
def compare_twice(scores: Scores, judge: Judge, *, group: int = 2) -> tuple[Scores, Scores]:
    return compare(scores, judge, group=group), compare(scores, judge)


@hf.dataflow
def in_pairs(scores: Scores, judge: Judge) -> Scores:
    return centered(judge.score(scores, scale=Scale()))


@hf.dataflow
def in_groups_of_0(scores: Scores) -> Scores:
    return centered(scores, group=0)


@hf.dataflow
def in_groups_of_scores(scores: Scores) -> Scores:
    return centered(scores, group=scores)  # type: ignore[arg-type]  # the mistake


@hf.function(rows=hf.GroupedBy("size"))
def without_the_parameter(scores: Scores, *, group: int = 2) -> Scores:
    return scores


@hf.dataflow
def undefined(scores: Scores) -> Scores:
    return without_the_parameter(scores)


@hf.dataflow
def an_option_without_a_default(scores: Scores, *, group: int) -> Scores:
    return hf.repeat(scores, group)


def deployment(ranks: int) -> hf.Deployment:
    return hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([ranks], use_gpu=False)))


def shape(flow: hf.Dataflow[..., Any]) -> list[int]:
    """How often rows are repeated, and how large groups are."""
    sizes = []
    for node in flow.trace().nodes:
        if isinstance(node.op, Repeat):
            sizes.append(node.op.times)
        elif isinstance(node.op, FunctionCall):
            assert isinstance(node.op.signature.rows, Grouped)
            sizes.append(node.op.signature.rows.n)
    return sizes


def test_options_decide_what_is_traced() -> None:
    assert shape(compare) == [4, 4]
    assert shape(compare.given(group=8)) == [8, 8]
    assert shape(compare_twice) == [2, 2, 4, 4]
    assert shape(in_pairs) == [2]
    assert compare.options == {"group": 4, "scale": Scale(2.0)}
    assert compare.given(scale=Scale(3.0)).options == {"group": 4, "scale": Scale(3.0)}
    assert compare.options["group"] == 4  # the first is as it was


def test_a_dataflow_with_options_is_checked_and_run_with_them() -> None:
    eight = compare.given(group=8)
    assert compare.check(deployment(2), {B: 3}).codes == ()
    assert repr(eight) == repr(compare)
    scores = Scores(score=torch.tensor([1.0, 2.0]))
    for flow in (compare, eight, compare.given(group=2, scale=Scale(0.5))):
        with flow.compile(deployment(2), {B: 2}).launch("local") as running:
            planned = running.step(scores)
        eager = flow(scores, Judge())
        assert torch.equal(planned.score.tensor, eager.score.tensor)
        assert len(planned) == 2 * flow.options["group"]


def test_rows_are_split_between_groups_of_the_call() -> None:
    assert in_pairs.check(deployment(2), {B: 4}).codes == ()
    assert in_pairs.check(deployment(1), {B: 3}).codes == ("HF313",)


def test_options_that_are_none() -> None:
    with pytest.raises(hf.WiringError, match=r"^HF202: 'compare' has no option 'groop'; did you mean 'group'\?"):
        compare.given(groop=3)
    with pytest.raises(hf.WiringError, match=r"^HF206: option 'group' of 'compare' takes int, got 'eight'$"):
        compare.given(group="eight")
    assert an_option_without_a_default.check().codes == ("HF119",)
    with pytest.raises(hf.WiringError, match=r"^HF202: .* has no option 'group'; this parameter would be one behind"):
        an_option_without_a_default.given(group=2)


def test_groups_that_are_none() -> None:
    [finding] = in_groups_of_0.check().findings
    assert (finding.code, finding.message) == (
        "HF304",
        "'group' of 'centered' takes a whole number of at least 1, got 0",
    )
    assert in_groups_of_scores.check().codes == ("HF304",)
    [finding] = undefined.check().findings
    assert (finding.code, finding.message) == (
        "HF113",
        "rows=hf.GroupedBy('size') needs a parameter 'size: int', which 'without_the_parameter' does not have",
    )
    with pytest.raises(hf.DefinitionError, match=r"^HF113: GroupedBy takes the name of a parameter, got 8$"):
        hf.GroupedBy(8)  # type: ignore[arg-type]  # the mistake
