"""Ragged columns: their bounds are sizes like any other, and they are not dense."""

from __future__ import annotations

from typing import TypeVar

import hfdsl as hf
from hfdsl import Add, Dispatch, Ragged, f32, i64, register


class B(hf.Dim): ...


class P(hf.Dim): ...


class R(hf.Dim): ...


b = TypeVar("b")
t = TypeVar("t")


class Tokens(hf.Batch):
    ids: i64[B, Ragged[R]]
    text: i64[B, Ragged[Add[P, R]]]


class Dense(hf.Batch):
    ids: i64[B, R]


class Critic(hf.Worker):
    @register(Dispatch.DP_PROTO)
    @hf.requires("R <= 512")
    def score(self, tokens: Tokens) -> Tokens:
        return tokens


@hf.function
def same(left: i64[b, Ragged[t]], right: i64[b, Ragged[t]]) -> f32[b]:
    return f32(left.tensor)


def test_bounds_are_sizes_of_the_program() -> None:
    @hf.dataflow
    def flow(tokens: Tokens, critic: Critic) -> f32[B]:
        scored = critic.score(tokens)
        return same(scored.ids, tokens.ids)

    places = hf.Deployment(critic=hf.place(Critic, pool=hf.ResourcePool([2])))
    assert flow.check(places, {B: 4, P: 8, R: 512}).findings == ()
    assert flow.check(places, {B: 4, P: 8, R: 513}).codes == ("HF322",)


def test_other_bounds_differ() -> None:
    @hf.dataflow
    def flow(tokens: Tokens) -> f32[B]:
        return same(tokens.ids, tokens.text)  # type: ignore[misc]  # a mistake on purpose

    [finding] = flow.check().findings
    assert finding.code == "HF210"
    assert "takes i64[b, ~t] but is wired to i64[B, ~P+R]: dim 1 is P+R where R is needed" in finding.message


def test_a_dense_result_is_not_ragged() -> None:
    @hf.dataflow
    def flow(tokens: Tokens) -> i64[B, R]:
        return tokens.ids  # type: ignore[return-value]  # a mistake on purpose

    [finding] = flow.check().findings
    assert (finding.code, finding.message) == (
        "HF603", "'flow' is annotated to return i64[B, R] and returns i64[B, ~R]"
    )  # fmt: skip  # one pair


def test_a_record_is_not_put_together_of_the_other_kind() -> None:
    @hf.dataflow
    def flow(tokens: Tokens, dense: Dense) -> tuple[Dense, Dense, Tokens]:
        merged = hf.merge(Dense, tokens)
        packed = Tokens(ids=dense.ids, text=tokens.text)  # type: ignore[arg-type]  # a mistake on purpose
        return merged, Dense(ids=tokens.ids), packed  # type: ignore[arg-type]  # the same

    report = flow.check()
    assert report.codes == ("HF214",) * 3
    assert [finding.message for finding in report.findings] == [
        "column 'ids' of 'Dense' takes i64[B, R] but is wired to i64[B, ~R]",
        "column 'ids' of 'Tokens' takes i64[B, ~R] but is wired to i64[B, R]",
        "column 'ids' of 'Dense' takes i64[B, R] but is wired to i64[B, ~R]",
    ]
