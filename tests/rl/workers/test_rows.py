"""Rows that a model would compute wrong numbers of are refused by name; no rows at all change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.errors import HfError, RoleError, SizeError
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl import workers as w
from hfdsl.rl.batches import (
    B,
    Experience,
    ImitationMetrics,
    P,
    Pairs,
    Preferences,
    Prompts,
    R,
    Rollout,
    Scores,
    Sequences,
    ValueExperience,
)
from hfdsl.rl.functions import better_of_two, informative, mixed
from hfdsl.rl.losses import DPO, BradleyTerry, Clip, ClippedValue
from hfdsl.rl.models.row_errors import check_prompts, check_sequences
from tests.rl.workers import tiny

SIZES: dict[type[hf.Dim], int] = {B: 4, P: tiny.PROMPT, R: tiny.RESPONSE}
MODEL = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=8)))
Masks = list[list[bool]]


def refused(check: Any, *columns: torch.Tensor) -> int | None:
    """The row that a check names; None if it passes."""
    try:
        check(*columns, MODEL)
    except HfError as error:
        return int(str(error).removeprefix("HF811: row ").partition(":")[0])
    return None


def masks(width: int) -> st.SearchStrategy[Masks]:
    return st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4)


def follows_padding(tokens: Sequence[bool], place: int) -> bool:
    """Whether the token at a place comes after padding that comes after tokens."""
    return any(tokens[:place]) and not tokens[place - 1]


@given(masks(4), st.integers(-2, 9), st.data())
def test_exactly_what_a_model_can_continue_passes(rows: Masks, token: int, data: st.DataObject) -> None:
    ids, mask = torch.zeros(len(rows), 4, dtype=torch.int64), torch.tensor(rows)
    place = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 3))
    ids[place] = token
    wrong = {row for row, prompt in enumerate(rows) if follows_padding(prompt, len(prompt)) or not any(prompt)}
    wrong |= {place[0]} if not 0 <= token < 8 else set()
    row = refused(check_prompts, ids, mask)
    assert (row in wrong) if wrong else row is None


@given(masks(6), st.data())
def test_exactly_what_a_model_reads_counts(rows: Masks, data: st.DataObject) -> None:
    """Three columns of a prompt and three of a response, which may have holes, such as the answers of a tool."""
    mask = torch.tensor(rows)
    counts = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3),
                                             min_size=len(rows), max_size=len(rows))))  # fmt: skip
    wrong = {
        row
        for row, tokens in enumerate(rows)
        if any(counts[row, i] and (not tokens[3 + i] or follows_padding(tokens, 3 + i)) for i in range(3))
    }
    row = refused(check_sequences, torch.zeros_like(mask, dtype=torch.int64), mask, counts)
    assert (row in wrong) if wrong else row is None


def padded_on_the_right(prompts: Prompts) -> Prompts:
    lengths = prompts.mask.tensor.sum(1, keepdim=True)
    mask = torch.arange(prompts.mask.tensor.shape[1]) < lengths
    ids = torch.zeros_like(prompts.ids.tensor).masked_scatter(mask, prompts.ids.tensor[prompts.mask.tensor])
    return Prompts(ids=ids, mask=mask, task=prompts.task)


@hf.dataflow
def sampled(prompts: Prompts, actor: w.Actor) -> Rollout:
    return actor.generate(prompts)


@hf.dataflow
def imitated(sequences: Sequences, actor: w.Actor) -> ImitationMetrics:
    return actor.imitate(sequences)


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_a_tokenizer_that_pads_on_the_right_is_named(engine: Any) -> None:
    """Else the first token would be sampled from the state of a pad token, and have its log-prob."""
    actor = replace(tiny.ACTOR, generation=replace(tiny.GENERATION, engine=engine))
    prompts = tiny.prompts(4)
    short = int((prompts.mask.tensor.sum(1) < tiny.PROMPT).nonzero()[0])
    with sampled.compile(tiny.deployment(1, actor=actor), SIZES).launch("local") as running:
        running.step(prompts)
        with pytest.raises(RoleError, match=rf"HF811.*actor.generate.*row {short}: its prompt ends with padding"):
            running.step(padded_on_the_right(prompts))


@pytest.mark.parametrize("engine", ["plain", "captured"])
@pytest.mark.parametrize("packing", [False, True])
def test_padding_between_turns_changes_nothing(engine: Any, packing: bool) -> None:
    generation, batching = replace(tiny.GENERATION, engine=engine), w.BatchingConfig(tokens=64, packing=packing)
    actor = w.Actor(replace(tiny.ACTOR, generation=generation, batching=batching))
    rollouts = []
    for tokens in ([0, 0, 5, 6, 7], [0, 5, 0, 6, 7], [5, 6, 0, 0, 7]):
        ids = torch.tensor([tokens])
        with in_call(Call(0, 0, 0, rank=0, row_count=1)):
            rollouts.append(actor.generate(Prompts(ids=ids, mask=ids > 0, task=[{}])))
    first, *others = rollouts
    for other in others:
        assert torch.equal(other.ids.tensor[:, tiny.PROMPT :], first.ids.tensor[:, tiny.PROMPT :])
        torch.testing.assert_close(other.log_probs.tensor, first.log_probs.tensor)


def test_a_score_is_that_of_the_last_token_wherever_padding_is() -> None:
    """As of pairs that a tokenizer has padded on the right, and of rows without a prompt of their own."""
    model = w.RewardModel(w.RewardConfig(tiny.MODEL))
    scores = []
    for ids, responses in (([0, 4, 5, 6, 7], 2), ([4, 5, 0, 6, 7], 2), ([4, 5, 6, 7, 0], 2), ([4, 5, 6, 7, 0], 5)):
        tokens = torch.tensor([ids])
        mask = tokens > 0
        sequences = Sequences(ids=tokens, mask=mask, response_mask=mask[:, -responses:])
        scores.append(model.score(tiny.prompts(1), sequences).score.tensor)
    for score in scores[1:]:
        torch.testing.assert_close(score, scores[0])


def test_tokens_that_nobody_reads_are_not_learned() -> None:
    rows = tiny.demonstrations(4)
    short = int((rows.response_mask.tensor.sum(1) < tiny.RESPONSE).nonzero()[0])
    longer = rows.response_mask.tensor.clone()
    longer[short] = True
    with (
        imitated.compile(tiny.deployment(1, actor=tiny.ACTOR), SIZES).launch("local") as running,
        pytest.raises(RoleError, match=rf"HF811.*row {short}: token \d of its response counts in response_mask"),
    ):
        running.step(Sequences(ids=rows.ids.tensor, mask=rows.mask.tensor, response_mask=longer))


@pytest.mark.parametrize("token", [-100, tiny.VOCABULARY])
def test_a_token_without_an_embedding_is_named(token: int) -> None:
    rows = tiny.demonstrations(4)
    ids = rows.ids.tensor.clone()
    ids[2, 0] = token
    with (
        imitated.compile(tiny.deployment(1, actor=tiny.ACTOR), SIZES).launch("local") as running,
        pytest.raises(RoleError, match=rf"HF811.*row 2: its token in column 0 is {token}, and the model has 0 to 15"),
    ):
        running.step(Sequences(ids=ids, mask=rows.mask.tensor, response_mask=rows.response_mask.tensor))


@pytest.mark.parametrize("learns", ["actor", "learner"])
def test_a_score_that_is_no_number_is_no_tie(learns: str) -> None:
    """Else the first response of the pair would count as the better one."""
    scores = torch.tensor([1.0, 0.0, 0.0, 2.0, 3.0, 3.0, float("nan"), 0.0])
    chosen = better_of_two(Scores(score=scores)).preference.tensor
    assert chosen[:6].tolist() == [1, -1, -1, 1, 0, 0]
    assert chosen[6:].isnan().all()
    pairs = tiny.pairs(8)
    columns = {name: getattr(pairs, name).tensor for name in ("ids", "mask", "response_mask")}
    ones = torch.ones_like(columns["response_mask"], dtype=torch.float32)
    update: Any = {
        "actor": lambda: w.Actor(tiny.ACTOR).prefer(
            Preferences(**columns, preference=chosen, ref_log_probs=ones), loss=DPO()
        ),
        "learner": lambda: w.RewardLearner(tiny.CRITIC).prefer(
            Pairs(**columns, preference=chosen), loss=BradleyTerry()
        ),
    }[learns]
    with pytest.raises(HfError, match="HF811: row 6: its preference is nan"), in_call(Call(0, 0, 0, rank=0)):
        update()


@pytest.mark.parametrize("compared", [mixed, informative])
def test_groups_are_whole(compared: Any) -> None:
    scores = Scores(score=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    with pytest.raises(SizeError, match="HF313: rewards have 4 rows, which do not make whole groups of 3"):
        compared(scores, group=3)


# -- no rows


def record(kind: type[hf.Batch], rows: hf.Batch, *names: str) -> Any:
    """Rows of another record, with a one for each token in the columns that it adds."""
    columns = {name: getattr(rows, name).tensor for name in ("ids", "mask", "response_mask")}
    return kind(**columns, **dict.fromkeys(names, columns["response_mask"].float()))


def state(worker: Any) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in worker.state()["weights"].items()}


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_nothing_comes_of_no_rows(engine: Any) -> None:
    """As where a filter keeps none."""
    actor = w.Actor(replace(tiny.ACTOR, generation=replace(tiny.GENERATION, engine=engine)))
    critic, reference = w.Critic(tiny.CRITIC), w.Reference(tiny.REFERENCE)
    learner, model = w.RewardLearner(tiny.CRITIC), w.RewardModel(w.RewardConfig(tiny.MODEL))
    before = [state(worker) for worker in (actor, critic, learner)]
    prompts, pairs = tiny.prompts(4)[0:0], tiny.pairs(4)[0:0]
    with in_call(Call(0, 0, 0, rank=0)):
        rollout = actor.generate(prompts)
        assert {
            name: tuple(getattr(rollout, name).tensor.shape) for name in ("ids", "mask", "response_mask", "log_probs")
        } == {
            "ids": (0, tiny.PROMPT + tiny.RESPONSE),
            "mask": (0, tiny.PROMPT + tiny.RESPONSE),
            "response_mask": (0, tiny.RESPONSE),
            "log_probs": (0, tiny.RESPONSE),
        }
        assert rollout.ids.tensor.dtype == torch.int64
        assert (rollout.mask.tensor.dtype, rollout.response_mask.tensor.dtype) == (torch.bool, torch.bool)
        for column in (
            reference.log_probs(rollout).ref_log_probs,
            critic.values(rollout).values,
            model.score(prompts, rollout).score,
            learner.score(prompts, rollout).score,
        ):
            assert len(column.tensor) == 0
        metrics = (
            actor.update(record(Experience, rollout, "log_probs", "advantage"), loss=Clip()),
            actor.imitate(rollout),
            actor.prefer(
                Preferences(
                    **{name: getattr(pairs, name).tensor for name in ("ids", "mask", "response_mask", "preference")},
                    ref_log_probs=pairs.response_mask.tensor.float(),
                ),
                loss=DPO(),
            ),
            critic.update(record(ValueExperience, rollout, "values", "returns"), loss=ClippedValue()),
            learner.prefer(pairs, loss=BradleyTerry()),
        )
    assert all(value == 0 for each in metrics for value in each.__hf_columns__.values())
    workers: tuple[Any, ...] = (actor, critic, learner)
    for weights, worker in zip(before, workers, strict=True):
        assert all(torch.equal(weights[name], weight) for name, weight in state(worker).items())
        assert worker.learner.steps == 0
