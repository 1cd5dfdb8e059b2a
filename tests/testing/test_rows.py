"""``check_rows``: functions that keep their declarations pass, others are reported with the smallest example."""

from __future__ import annotations

import re
from itertools import count
from typing import Any, Literal, TypeVar

import pytest
import torch
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.testing import BrokenRows, check_rows

n = TypeVar("n")
w = TypeVar("w")


class B(hf.Dim): ...


class R(hf.Dim): ...


class Scores(hf.Batch):
    reward: hf.f32[B]


class Texts(hf.Batch):
    text: hf.Obj[str, B]
    tokens: hf.i64[B, hf.Ragged[R]]
    value: hf.f32[B] | None


class Mean(hf.Batch):
    mean: hf.Metric[float, Literal["mean"]]


@hf.function
def half(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor / 2)


@hf.function
def numbered(scores: Scores) -> Scores:
    return Scores(reward=torch.arange(len(scores)).float())


@hf.function(rows=hf.Grouped(3))
def middle(scores: Scores) -> Scores:
    groups = scores.reward.tensor.view(-1, 3)
    return Scores(reward=groups.median(1, keepdim=True).values.expand(-1, 3).flatten())


@hf.function(rows=hf.Grouped(2))
def of_four(scores: Scores) -> Scores:
    groups = scores.reward.tensor.view(-1, 4)
    return Scores(reward=(groups - groups.mean(1, keepdim=True)).flatten())


@hf.function(rows=hf.GroupedBy("group"))
def best(scores: Scores, *, group: int) -> hf.bool_[B]:
    groups = scores.reward.tensor.view(-1, group)
    return hf.bool_((groups == groups.max(1, keepdim=True).values).flatten())


@hf.function(rows=hf.Whole)
def mean(scores: Scores) -> Mean:
    return Mean(mean=float(scores.reward.tensor.mean()))


@hf.function(rows=hf.Whole)
def centered_by_all(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor - scores.reward.tensor.mean())


@hf.function(rows=hf.Whole)
def needlessly_whole(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor + 1)


@hf.function
def upper(texts: Texts) -> Texts:
    text = [text.upper() for text in texts.text.objects]
    return Texts(text=text, tokens=texts.tokens, value=texts.value)


@hf.function
def with_the_last(texts: Texts) -> hf.Obj[str, B]:
    return hf.Obj([text + texts.text.objects[-1] for text in texts.text.objects])


@hf.function
def twice(x: hf.f32[n, w], mask: hf.bool_[n, w], scale: float) -> hf.f32[n, w]:
    return hf.f32(x.tensor * mask.tensor * scale)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (half, {}),
        (middle, {}),
        (best, {"given": {"group": 4}}),
        (mean, {}),
        (upper, {}),
        (twice, {"given": {"scale": 0.5}}),
        (twice, {"given": {"scale": st.sampled_from([0.5, 2.0])}}),
        (half, {"given": {"scores": st.just(Scores(reward=torch.zeros(4)))}}),
        (needlessly_whole, {"needed": False}),
    ],
)
def test_functions_that_keep_what_they_declare(function: Any, options: dict[str, Any]) -> None:
    check_rows(function, max_examples=30, **options)


def test_a_function_that_looks_at_places_is_reported_with_the_smallest_example() -> None:
    with pytest.raises(BrokenRows) as raised:
        check_rows(numbered)
    assert str(raised.value) == (
        "'numbered' declares rows=Independent, and gives other rows on parts than on the whole\n"
        "  groups given in the order [1, 0]: column 'reward', row 0 is 0.0 (and 1 more of 2 values) instead of 1.0\n"
        "  scores = Scores(reward=torch.tensor([0.0, 0.0], dtype=torch.float32))"
    )


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (of_four, "on 2 rows it raises RuntimeError: shape"),
        (with_the_last, r"groups given in the order \[1, 0\]: row 0 is '0' instead of '00'"),
        (needlessly_whole, "declares rows=Whole, and in none of 100 examples a row depends on another: declare rows="),
    ],
)
def test_other_faults_are_reported(function: Any, text: str) -> None:
    with pytest.raises(BrokenRows, match=text):
        check_rows(function)


@hf.function(rows=hf.Grouped(4))
def pairs_in_fours(scores: Scores) -> Scores:
    pairs = scores.reward.tensor.view(-1, 2)
    return Scores(reward=(pairs - pairs.mean(1, keepdim=True)).flatten())


@hf.function(rows=hf.GroupedBy("group"))
def pairs_in_any(scores: Scores, *, group: int) -> Scores:
    pairs = scores.reward.tensor.view(-1, 2)
    return Scores(reward=(pairs - pairs.mean(1, keepdim=True)).flatten() * min(group, 1))


@hf.function(rows=hf.Whole)
def pairs_of_all(scores: Scores) -> Scores:
    pairs = scores.reward.tensor.view(-1, 2)
    return Scores(reward=(pairs - pairs.mean(1, keepdim=True)).flatten())


@hf.function(rows=hf.Grouped(4))
def across_halves(scores: Scores) -> Scores:
    """Rows of a pair are alike, and the pairs of a group depend on each other."""
    pairs = scores.reward.tensor.view(-1, 2, 2)
    return Scores(reward=(pairs - pairs.mean(1, keepdim=True)).flatten())


@pytest.mark.parametrize(
    ("function", "options", "declared"),
    [
        (pairs_in_fours, {}, r"Grouped\(4\)"),
        (pairs_in_any, {"given": {"group": 6}}, r"GroupedBy\('group'\)"),
        (pairs_of_all, {"multiple": 4}, "Whole"),
    ],
)
def test_a_group_that_is_larger_than_needed_is_reported(function: Any, options: dict[str, Any], declared: str) -> None:
    text = (
        rf"rows={declared}, and in none of 100 examples a row depends on another outside of its 2: declare rows=hf\.G"
    )
    with pytest.raises(BrokenRows, match=text):
        check_rows(function, **options)
    check_rows(function, needed=False, **options)


@pytest.mark.parametrize(
    ("function", "options"), [(across_halves, {}), (best, {"given": {"group": 6}}), (centered_by_all, {"multiple": 4})]
)
def test_a_group_that_is_needed_passes(function: Any, options: dict[str, Any]) -> None:
    check_rows(function, **options)


class Dicts(hf.Batch):
    answer: hf.Obj[dict[str, int], B]


@hf.function
def clamps(scores: Scores) -> Scores:
    scores.reward.tensor.clamp_(max=1.0)
    return scores


@hf.function
def writes_the_same(scores: Scores) -> Scores:
    scores.reward.tensor.mul_(1.0)
    return Scores(reward=scores.reward.tensor.clone())


@hf.function
def writes_around_torch(scores: Scores) -> Scores:
    scores.reward.tensor.numpy()[:] += 1
    return Scores(reward=torch.zeros(len(scores)))


@hf.function(rows=hf.Whole)
def writes_the_whole(scores: Scores) -> Mean:
    scores.reward.tensor.sub_(scores.reward.tensor.mean())
    return Mean(mean=0.0)


@hf.function
def writes_into_objects(dicts: Dicts) -> Dicts:
    for answer in dicts.answer.objects:
        answer["seen"] = 1
    return Dicts(answer=[{} for _ in dicts.answer.objects])


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (clamps, {}, "'clamps' wrote into column 'reward' of its argument 'scores' in place"),
        (writes_the_same, {}, "wrote into column 'reward'"),
        (writes_around_torch, {}, "wrote into column 'reward' of its argument 'scores' in place"),
        (writes_the_whole, {"needed": False}, "wrote into column 'reward'"),
        (
            writes_into_objects,
            {"given": {"dicts": st.builds(lambda: Dicts(answer=[{"a": 1}]))}},
            "argument 'dicts': column 'answer', row 0 is keys .*'seen'",
        ),
    ],
)
def test_a_function_that_writes_into_its_arguments_is_found(function: Any, options: Any, text: str) -> None:
    with pytest.raises(BrokenRows, match=rf"(?s)writes into its arguments, which others read too\n  .*{text}"):
        check_rows(function, **options)


@hf.function
def named_as_options(scores: Scores, seed: int, given: float, max_examples: int = 1) -> Scores:
    return Scores(reward=scores.reward.tensor * given + seed)


def test_parameters_may_have_the_names_of_options() -> None:
    check_rows(named_as_options, given={"seed": 3, "given": 0.5}, seed=1, max_examples=10)


@hf.function
def noisy(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor + hf.current_call().uniforms(1)[:, 0])


@hf.function(rows=hf.Whole)
def shuffled(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor[torch.randperm(len(scores))])


def test_a_function_that_draws_from_the_streams_of_its_call_passes() -> None:
    check_rows(noisy, max_examples=30)
    check_rows(shuffled, max_examples=30)


@hf.function
def noisy_by_rank(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor + torch.rand(1))


def test_a_stream_that_follows_ranks_rather_than_rows_is_reported() -> None:
    with pytest.raises(BrokenRows, match=r"rows 0 to 0 and the others, given apart: column 'reward', row 1"):
        check_rows(noisy_by_rank)


@hf.function
def nothing(scores: Scores) -> Scores:
    return None  # type: ignore[return-value]  # the mistake


@hf.function
def loses_a_row(scores: Scores) -> Scores:
    return Scores(reward=scores.reward.tensor[:-1])


@hf.function(rows=hf.Whole)
def twice_as_many(scores: Scores) -> hf.f32[B]:
    return hf.f32(scores.reward.tensor.repeat(2))


@hf.function
def pairs(scores: Scores) -> hf.f32[hf.Mul[B, Literal[2]]]:
    return hf.f32(scores.reward.tensor.repeat_interleave(2))


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (nothing, "'nothing' declares Scores and returned NoneType on 1 row"),
        (loses_a_row, "'loses_a_row' returned column 'reward' with 0 rows on 1 row, where f32[B] has 1"),
        (twice_as_many, "'twice_as_many' returned 2 rows on 1 row, where f32[B] has 1"),
    ],
)
def test_a_function_that_returns_something_else_than_it_declares_is_reported(function: Any, text: str) -> None:
    with pytest.raises(BrokenRows, match=rf"does not return what it declares\n  {re.escape(text)}"):
        check_rows(function, needed=False)


def test_a_function_may_declare_another_number_of_rows() -> None:
    check_rows(pairs, max_examples=30)


def test_a_function_that_keeps_state_is_reported_even_if_it_declares_all_rows() -> None:
    calls = count()

    @hf.function(rows=hf.Whole)
    def numbers_calls(scores: Scores) -> Scores:
        return Scores(reward=scores.reward.tensor + next(calls))

    with pytest.raises(
        BrokenRows, match=r"is not deterministic: it keeps state.*\n  called again with equal arguments"
    ):
        check_rows(numbers_calls)


def test_a_mistake_that_is_seen_once_is_reported() -> None:
    calls = count()

    @hf.function
    def fails_once(scores: Scores) -> Scores:
        if next(calls) in (31, 32):
            raise OSError("disk full")
        return Scores(reward=scores.reward.tensor + 1)

    with pytest.raises(BrokenRows, match=r"(?s)raises OSError: disk full\n  this was not seen again"):
        check_rows(fails_once)


@hf.function(rows=hf.Whole)
def never_works(scores: Scores) -> Scores:
    raise OSError("disk full")


def test_a_function_on_all_rows_that_raises_is_reported() -> None:
    with pytest.raises(
        BrokenRows, match=r"declares rows=Whole, and raises\n  .* on 1 row it raises OSError: disk full"
    ):
        check_rows(never_works, needed=False)


@hf.function(rows=hf.GroupedBy("group"))
def over_all(scores: Scores, *, group: int) -> Scores:
    return Scores(reward=scores.reward.tensor - scores.reward.tensor.mean())


def test_a_report_shows_the_declaration_as_it_is_written() -> None:
    with pytest.raises(BrokenRows, match=r"declares rows=GroupedBy\('group'\), and gives other rows"):
        check_rows(over_all, given={"group": 2})
