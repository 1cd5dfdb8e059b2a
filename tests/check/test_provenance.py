# mypy: disable-error-code="empty-body"
"""Provenance: which rows meet, in which groups, and whose tokens they carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import hfdsl as hf
from hfdsl import f32
from hfdsl.check.run import build_context
from tests.check.provenance_roles import (
    Actor,
    Advantages,
    B,
    Best,
    Chosen,
    Experience,
    Judged,
    Pairs,
    Prompts,
    R,
    Rollout,
    best_of_four,
    divergence,
    gae,
    gained,
    grouped,
    joined,
    keeping,
    keeping_two_questions,
    over,
    paired,
    pieces,
    shuffled,
    spread,
    spread_steps,
    won,
)

BAD: dict[str, tuple[str, Callable[[Prompts, Actor], Any]]] = {}
VALID: dict[str, Callable[[Prompts, Actor], Any]] = {}
Body = TypeVar("Body", bound=Callable[..., Any])


def bad(code: str) -> Callable[[Body], Body]:
    def note(body: Body) -> Body:
        BAD[body.__name__] = code, body
        return body

    return note


def valid(body: Body) -> Body:
    VALID[body.__name__] = body
    return body


# -- groups


@bad("HF330")
def group_of_two_questions(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    return grouped(rollout, scores, group=8)


@bad("HF330")
def group_of_questions_that_are_repeated_once(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor, times=1)
    return grouped(rollout, scores, group=4)


@bad("HF330")
def group_across_questions(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    return grouped(rollout, scores, group=3)


@bad("HF330")
def tiled_instead_of_repeated(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.fill(prompts, 96))
    return grouped(rollout, actor.score(rollout), group=4)


@bad("HF330")
def groups_after_a_take_of_other_rows(prompts: Prompts, actor: Actor) -> Advantages:
    part = hf.minibatches(hf.take(hf.repeat(prompts, 4), 36), 2)[1]  # starts in the middle of a question
    rollout = actor.generate(part)
    return grouped(rollout, actor.score(rollout), group=3)


@bad("HF330")
def pairs_of_unrepeated_halves(prompts: Prompts, actor: Actor) -> None:
    rollout = actor.generate(hf.repeat(prompts, 3))
    actor.prefer(rollout)


@bad("HF330")
def groups_of_the_data_and_then_of_what_is_repeated_once(prompts: Prompts, actor: Actor) -> list[Advantages]:
    rollout = actor.generate(prompts)
    of_data = grouped(rollout, actor.score(rollout), group=4)
    once, scores, _ = pieces(prompts, actor, times=1)
    return [of_data, grouped(once, scores, group=4)]


@bad("HF332")
def regrouped_after_another_repeat(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, _, _ = pieces(prompts, actor)
    twice = hf.repeat(rollout, 2)
    return grouped(twice, actor.score(twice), group=4)


@bad("HF332")
def half_of_a_group(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor, 8)
    return grouped(rollout, scores, group=4)


@bad("HF332")
def a_third_of_a_group(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor, 12)
    return grouped(rollout, scores, group=4)


@valid
def groups_that_repeat_made(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    return grouped(rollout, scores, group=4)


@valid
def groups_of_what_is_repeated_once_and_then_again(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(hf.repeat(prompts, 1), actor)
    return grouped(rollout, scores, group=4)


@valid
def groups_that_a_filter_knows_and_repeat_does_not_change(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor, times=1)
    kept = hf.filter(rollout, keeping(scores).keep, group=4)
    return grouped(kept, actor.score(kept), group=4)


@valid
def groups_in_mini_batches(prompts: Prompts, actor: Actor) -> list[Advantages]:
    rollout, scores, _ = pieces(prompts, actor)
    parts = zip(hf.minibatches(rollout, 3), hf.minibatches(scores, 3), strict=True)
    return [grouped(part, score) for part, score in parts]


@valid
def pairs_of_four(prompts: Prompts, actor: Actor) -> None:
    actor.prefer(actor.generate(hf.repeat(prompts, 4)))


@valid
def all_judgments_of_a_question(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, _, _ = pieces(prompts, actor)
    twice = hf.repeat(rollout, 2)
    return grouped(twice, actor.score(twice), group=8)


@valid
def groups_of_the_callers(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(prompts)  # the data set has the paraphrases of a question one after the other
    return grouped(rollout, actor.score(rollout), group=4)


@valid
def groups_of_shuffled_prompts(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.repeat(shuffled(prompts), 4))
    return grouped(rollout, actor.score(rollout), group=8)


@valid
def groups_of_the_best(prompts: Prompts, actor: Actor) -> Best:
    rollout, _, _ = pieces(prompts, actor)
    return best_of_four(rollout)


@valid
def filtered_prompts_are_repeated(prompts: Prompts, actor: Actor) -> Advantages:
    easy = actor.score(actor.generate(prompts))
    rollout = actor.generate(hf.repeat(hf.fill(hf.filter(prompts, keeping(easy).keep), 24), 4))
    return grouped(rollout, actor.score(rollout), group=4)


# -- groups after a filter


@bad("HF331")
def thinned_and_filled(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.fill(hf.filter(rollout, keeping(scores).keep), 96)
    return grouped(kept, actor.score(kept))


@bad("HF331")
def thinned_and_taken(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.take(hf.filter(rollout, keeping(scores).keep), 32)
    return grouped(kept, actor.score(kept))


@bad("HF331")
def thinned_in_pairs(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.fill(hf.filter(rollout, keeping(scores).keep, group=2), 32)
    return grouped(kept, actor.score(kept))


@bad("HF331")
def pairs_of_the_callers_thinned(prompts: Prompts, actor: Actor) -> None:
    rollout = actor.generate(prompts)
    actor.prefer(hf.fill(hf.filter(rollout, keeping(actor.score(rollout)).keep), 24))


@bad("HF331")
def thinned_then_mini_batches(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, _ = pieces(prompts, actor, 2)
    for part in hf.minibatches(hf.fill(hf.filter(rollout, keeping(scores).keep), 48), 2):
        actor.prefer(part)


@valid
def whole_groups_filtered(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.fill(hf.filter(rollout, spread(scores, group=4).keep, group=4), 96)
    return grouped(kept, actor.score(kept))


@bad("HF330")
def two_groups_at_a_time_filtered(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.take(hf.filter(rollout, spread(scores, group=4).keep, group=8), 32)
    return grouped(kept, actor.score(kept))


@bad("HF330")
def filtered_in_groups_across_questions(prompts: Prompts, actor: Actor) -> Rollout:
    rollout, scores, _ = pieces(prompts, actor)
    return hf.filter(rollout, keeping(scores).keep, group=6)


@bad("HF331")
def filtered_in_groups_of_what_is_left(prompts: Prompts, actor: Actor) -> Rollout:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.fill(hf.filter(rollout, keeping(scores).keep), 32)
    return hf.filter(kept, keeping(actor.score(kept)).keep, group=4)


@valid
def two_groups_at_a_time_on_purpose(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    kept = hf.take(hf.filter(rollout, keeping_two_questions(scores).keep, group=8), 32)
    return grouped(kept, actor.score(kept))


@valid
def halves_of_groups_filtered(prompts: Prompts, actor: Actor) -> Rollout:
    rollout, scores, _ = pieces(prompts, actor)
    return hf.filter(rollout, keeping(scores).keep, group=2)


@valid
def all_judgments_filtered(prompts: Prompts, actor: Actor) -> Rollout:
    twice = hf.repeat(pieces(prompts, actor)[0], 2)
    return hf.filter(twice, keeping(actor.score(twice)).keep, group=8)


@valid
def filtered_by_groups_of_the_data(prompts: Chosen, actor: Actor) -> Chosen:
    return hf.filter(hf.repeat(prompts, 4), hf.repeat(prompts, 4).keep, group=8)


@valid
def pairs_of_whole_groups(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, _ = pieces(prompts, actor)
    actor.prefer(hf.fill(hf.filter(rollout, spread(scores, group=4).keep, group=4), 32))


@valid
def compared_then_thinned(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, _ = pieces(prompts, actor)
    batch = hf.merge(Experience, rollout, grouped(rollout, scores))
    for part in hf.minibatches(hf.fill(hf.filter(batch, keeping(scores).keep), 64), 2):
        actor.learn(part)


# -- rows that meet


@bad("HF333")
def crossed_mini_batches(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(prompts, actor)
    parts, gains = hf.minibatches(rollout, 2), hf.minibatches(advantages, 2)
    actor.update(parts[0], gains[1])


@bad("HF333")
def mini_batches_of_scores(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, _, _ = pieces(prompts, actor)
    first, second = hf.minibatches(rollout, 2)
    return gained(actor.score(second), first)


@bad("HF333")
def mini_batch_beside_what_is_taken(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = actor.score(rollout)
    return gained(hf.take(scores, 48), hf.minibatches(rollout, 2)[1])


@bad("HF333")
def merged_mini_batches(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(prompts, actor)
    actor.learn(hf.merge(Experience, hf.minibatches(rollout, 4)[2], hf.minibatches(advantages, 4)[3]))


@bad("HF333")
def filtered_beside_unfiltered(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, advantages = pieces(prompts, actor)
    actor.update(hf.fill(hf.filter(rollout, keeping(scores).keep), 96), advantages)


@bad("HF333")
def two_filters(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, advantages = pieces(prompts, actor)
    choice = keeping(scores)
    actor.update(hf.fill(hf.filter(rollout, choice.keep), 32), hf.fill(hf.filter(advantages, choice.good), 32))


@bad("HF333")
def one_filter_in_groups_of_another_size(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, advantages = pieces(prompts, actor)
    choice = spread(scores, group=4)
    actor.update(hf.fill(hf.filter(rollout, choice.keep, group=4), 32), hf.fill(hf.filter(advantages, choice.keep), 32))


@bad("HF333")
def tiled_beside_repeated(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.repeat(prompts, 4))
    scores = actor.score(rollout)
    return over(rollout, scores, hf.fill(actor.score(actor.generate(prompts, greedy=True)), 96))


@bad("HF333")
def filtered_by_another_part(prompts: Prompts, actor: Actor) -> Rollout:
    rollout, scores, _ = pieces(prompts, actor)
    keep = keeping(scores)
    return hf.filter(hf.minibatches(rollout, 2)[0], hf.minibatches(keep, 2)[1].keep)


@bad("HF333")
def repeated_in_another_order(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.repeat(hf.minibatches(prompts, 2)[0], 4))
    scores = actor.score(actor.generate(hf.minibatches(hf.repeat(prompts, 4), 2)[1]))
    return gained(scores, rollout)


@valid
def same_mini_batches(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(prompts, actor)
    for part, gains in zip(hf.minibatches(rollout, 2), hf.minibatches(advantages, 2), strict=True):
        actor.update(part, gains)


@valid
def a_half_of_a_half(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(prompts, actor)
    halves = hf.minibatches(hf.minibatches(rollout, 2)[1], 2)
    actor.update(halves[0], hf.minibatches(advantages, 4)[2])


@valid
def parts_of_prompts_beside_parts_of_the_repeated(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(hf.repeat(hf.minibatches(prompts, 2)[1], 4))
    return gained(actor.score(hf.minibatches(actor.generate(hf.repeat(prompts, 4)), 2)[1]), rollout)


@valid
def filtered_by_the_same_column(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, advantages = pieces(prompts, actor)
    choice = keeping(scores)
    judged = hf.merge(Experience, rollout, advantages)
    kept = hf.fill(hf.filter(judged, choice.keep), 32)
    actor.update(kept, Advantages(advantages=hf.fill(hf.filter(advantages, choice.keep), 32).advantages))


@valid
def fill_that_cuts_beside_a_take(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(prompts, actor)
    actor.update(hf.fill(rollout, 48), hf.take(advantages, 48))


@valid
def take_of_all_that_a_filter_keeps(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, advantages = pieces(prompts, actor)
    actor.update(hf.take(hf.filter(rollout, keeping(scores).keep), 96), advantages)


@valid
def baseline_of_the_same_question(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, scores, _ = pieces(prompts, actor)
    baseline = hf.repeat(actor.score(actor.generate(prompts, greedy=True)), 4)
    return over(rollout, scores, baseline)


@valid
def what_a_whole_function_pairs(prompts: Prompts, actor: Actor) -> None:
    rollout, scores, _ = pieces(prompts, actor)
    choice = keeping(scores)
    good, bad = hf.fill(hf.filter(rollout, choice.good), 32), hf.fill(hf.filter(rollout, choice.keep), 32)
    actor.contrast(good, bad)
    paired(good, actor.score(bad))


@valid
def mini_batches_joined(prompts: Prompts, actor: Actor) -> Any:
    first, second = hf.minibatches(actor.generate(prompts), 2)
    return joined(first, second)


# -- samples


@bad("HF334")
def reference_of_another_rollout(prompts: Prompts, actor: Actor) -> f32[B, R]:
    first, second = actor.generate(prompts), actor.generate(prompts)
    return divergence(first.log_probs, actor.log_probs(second).ref_log_probs)


@bad("HF334")
def values_of_the_greedy_rollout(prompts: Prompts, actor: Actor) -> Advantages:
    rollout, greedy = actor.generate(prompts), actor.generate(prompts, greedy=True)
    return gae(rollout, actor.values(greedy), actor.score(rollout))


@bad("HF334")
def advantages_of_another_rollout(prompts: Prompts, actor: Actor) -> None:
    first, second = actor.generate(prompts), actor.generate(prompts)
    actor.update(first, gained(actor.score(second), second))


@bad("HF334")
def log_probs_of_another_rollout_in_a_record(prompts: Prompts, actor: Actor) -> Rollout:
    first, second = actor.generate(prompts), actor.generate(prompts)
    return Rollout(ids=first.ids, mask=first.mask, log_probs=second.log_probs)


@bad("HF334")
def merged_with_advantages_of_another(prompts: Prompts, actor: Actor) -> None:
    first, second = actor.generate(prompts), actor.generate(prompts)
    actor.learn(hf.merge(Experience, first, gained(actor.score(second), second)))


@bad("HF334")
def other_samples_of_one_question(prompts: Prompts, actor: Actor) -> None:
    rollout, _, advantages = pieces(hf.take(prompts, 1), actor, 8)  # one question: only the samples differ
    actor.update(hf.minibatches(rollout, 2)[0], hf.minibatches(advantages, 2)[1])


@valid
def remax(prompts: Prompts, actor: Actor) -> None:
    rollout = actor.generate(prompts)
    baseline = actor.score(actor.generate(prompts, greedy=True))
    actor.update(rollout, over(rollout, actor.score(rollout), baseline))


@valid
def pairs_of_two_rollouts(prompts: Prompts, actor: Actor) -> None:
    first, second = actor.generate(prompts), actor.generate(prompts)
    actor.dpo(first, second)
    actor.train(Pairs(chosen=first.ids, rejected=second.ids))


@valid
def log_probs_of_two_rollouts(prompts: Prompts, actor: Actor) -> f32[B, R]:
    first, second = actor.generate(prompts), actor.generate(prompts)
    return divergence(first.log_probs, second.log_probs)  # the gap between two samples


@valid
def self_play(prompts: Prompts, actor: Actor) -> None:
    first, second = actor.generate(prompts), actor.generate(prompts)
    mine, theirs = actor.score(first), actor.score(second)
    actor.update(first, won(mine, theirs, first))
    actor.update(second, won(theirs, mine, second))


@valid
def teacher_of_the_same_sample(prompts: Prompts, actor: Actor) -> f32[B, R]:
    rollout = actor.generate(prompts)
    return divergence(rollout.log_probs, actor.log_probs(rollout).ref_log_probs)


@valid
def steps_found_twice(prompts: Prompts, actor: Actor) -> Advantages:
    rollout = actor.generate(prompts)
    return spread_steps(actor.grade(rollout), actor.segment(rollout), rollout)


@valid
def scores_of_another_rollout(prompts: Prompts, actor: Actor) -> Judged:
    first, second = actor.generate(prompts), actor.generate(prompts)
    return hf.merge(Judged, first, actor.score(second))


DECIDED_BY_SIZES = ("tiled_instead_of_repeated",)


def check(body: Callable[[Prompts, Actor], Any], sizes: dict[type[hf.Dim], Any]) -> hf.Report:
    def program(prompts: Prompts, actor: Actor) -> Any:
        return body(prompts, actor)

    return hf.dataflow(program).check(dims=sizes)


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_found(name: str) -> None:
    code, body = BAD[name]
    report = check(body, {B: 24})
    assert set(report.codes) - {"HF602"} == {code}, str(report)


@pytest.mark.parametrize("name", BAD)
def test_without_sizes_nothing_else_is_found(name: str) -> None:
    code, body = BAD[name]
    codes = check(body, {}).codes
    assert {found_code for found_code in codes if found_code.startswith("HF33")} <= {code}
    assert code in codes or "HF319" in codes or name in DECIDED_BY_SIZES


@pytest.mark.parametrize("sizes", [{B: 24}, {}, {B: (24, 48)}], ids=["sized", "unsized", "two sizes"])
@pytest.mark.parametrize("name", VALID)
def test_a_valid_program_is_not_blamed(name: str, sizes: dict[type[hf.Dim], Any]) -> None:
    codes = [code for code in check(VALID[name], sizes).codes if code.startswith("HF33")]
    assert codes == []


def test_filters_that_follow_one_another_take_no_time_to_compare() -> None:
    """The key of a filter has the origin of its column, which has the keys of the filters before."""

    def filtered(prompts: Prompts, actor: Actor) -> Rollout:
        rollout = actor.generate(prompts)
        for _ in range(60):
            rollout = hf.filter(rollout, keeping(actor.score(rollout)).keep)
        return rollout

    origins = build_context(filtered, None, {B: 24}).program.origins
    assert len(set(origins.filters.values())) == 60
