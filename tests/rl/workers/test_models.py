"""Models of several families, from configurations and from folders; what they lack is reported."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import hfdsl as hf
from hfdsl.errors import HfError, ResourceError, RoleError
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ActorMetrics, Advantages, Experience, Prompts, Rollout, Scores, Sequences
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.losses import Clip
from hfdsl.rl.models.loading import load
from hfdsl.rl.models.row_errors import bad_row
from tests.rl.workers import tiny
from tests.rl.workers.programs import SIZES, tensors

SMALL = {"vocab_size": 16, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "llama": tiny.LLAMA,
    "qwen3": {**tiny.LLAMA, "head_dim": 8},
    "gemma2": {**tiny.LLAMA, "head_dim": 8, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "granite": {**tiny.LLAMA, "logits_scaling": 4.0},
    "cohere": {**tiny.LLAMA, "logit_scale": 0.25},
}


@hf.dataflow
def sampling(prompts: Prompts, actor: w.Actor) -> Rollout:
    return actor.generate(prompts)


def family(name: str) -> w.ModelConfig:
    return w.ModelConfig(config={**SMALL, **FAMILIES[name], "model_type": name})


@pytest.mark.parametrize("name", FAMILIES)
def test_log_probs_are_those_of_the_model_itself(name: str) -> None:
    sequences = tiny.demonstrations(4)
    scored = w.Reference(w.ReferenceConfig(family(name), batching=w.BatchingConfig(tokens=25))).log_probs(sequences)
    model = load(family(name))
    for ids, mask, response, log_probs in zip(*tensors(sequences).values(), scored.ref_log_probs.tensor, strict=True):
        tokens, count = ids[mask], int(response.sum())
        expected = model(tokens[None]).logits[0].log_softmax(-1)[:-1].gather(1, tokens[1:, None])[-count:, 0]
        torch.testing.assert_close(log_probs[:count], expected, rtol=1e-4, atol=1e-5)
        assert (log_probs[count:] == 0).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_learns_and_generates(name: str) -> None:
    roles = tiny.deployment(1, actor=replace(tiny.ACTOR, model=family(name)))
    with supervised.compile(roles, SIZES).launch("local") as running:
        losses = [running.step(tiny.demonstrations(8)).loss.value for _ in range(6)]
    assert losses[-1] < losses[0]


@pytest.mark.nightly_besides("llama-False-False")  # each traces a model
@pytest.mark.parametrize(("packing", "checkpointing"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_compiled_passes_are_those_of_the_model(
    name: str, packing: bool, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as on a GPU, but run as it stands: making kernels takes a minute."""
    traced = list[Any]()

    def backend(graph: Any, inputs: list[Any]) -> Any:
        traced.append(graph)
        return graph.forward

    def ran(model: w.ModelConfig) -> tuple[list[float], Rollout]:
        batching = w.BatchingConfig(tokens=32, packing=packing)
        training = replace(tiny.TRAINING, checkpointing=checkpointing)
        roles = tiny.deployment(1, actor=replace(tiny.ACTOR, model=model, batching=batching, training=training))
        with supervised.compile(roles, SIZES).launch("local") as running:
            losses = [running.step(tiny.demonstrations(8, seed)).loss.value for seed in range(3)]
            sampled: Rollout = running.also(sampling.compile(roles, SIZES)).step(tiny.prompts(8))
        return losses, sampled

    torch._dynamo.reset()  # else it runs what an earlier test has traced
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    plain = ran(family(name))
    assert not traced
    fast = ran(replace(family(name), compile=True))
    assert traced
    assert fast[0] == pytest.approx(plain[0], rel=1e-5)
    assert torch.equal(fast[1].ids.tensor, plain[1].ids.tensor)
    torch.testing.assert_close(fast[1].log_probs.tensor, plain[1].log_probs.tensor)


def test_logits_in_parts_are_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran() -> list[torch.Tensor]:
        actor = w.Actor(tiny.ACTOR)
        for _ in range(2):
            actor.imitate(tiny.demonstrations(4))
        return [p.detach() for p in actor.policy.parameters()]

    whole = ran()
    monkeypatch.setattr("hfdsl.rl.models.forward.MAX_LOGITS", 5 * tiny.VOCABULARY)
    for at_once, in_parts in zip(whole, ran(), strict=True):
        torch.testing.assert_close(at_once, in_parts, rtol=1e-4, atol=1e-6)


def test_a_saved_model_is_the_model(tmp_path: Path) -> None:
    load(replace(tiny.MODEL, seed=4)).save_pretrained(tmp_path)
    sequences = tiny.demonstrations(4)
    fresh, saved = (
        w.Reference(w.ReferenceConfig(model)).log_probs(sequences).ref_log_probs.tensor
        for model in (replace(tiny.MODEL, seed=4), w.ModelConfig(path=str(tmp_path)))
    )
    assert torch.equal(fresh, saved)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_model_in_bfloat16_has_its_weights_rounded_once(name: str, tmp_path: Path) -> None:
    whole = load(family(name))
    whole.save_pretrained(tmp_path)
    rounded = load(w.ModelConfig(path=str(tmp_path), dtype="bfloat16"))
    for (weight_name, weight), (_, expected) in zip(rounded.named_parameters(), whole.named_parameters(), strict=True):
        assert torch.equal(weight, expected.bfloat16()), weight_name
    for buffer_name, buffer in rounded.named_buffers():
        if "inv_freq" in buffer_name:  # in bfloat16 they are off by up to 1 part in 256
            assert torch.equal(buffer, whole.get_buffer(buffer_name)), buffer_name


def test_a_saved_reward_model_scores_as_transformers_does(tmp_path: Path) -> None:
    config = load(tiny.MODEL).config
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(tmp_path)
    sequences = tiny.demonstrations(4)
    scored = w.RewardModel(w.RewardConfig(w.ModelConfig(path=str(tmp_path)))).score(tiny.prompts(4), sequences)
    for ids, mask, score in zip(sequences.ids.tensor, sequences.mask.tensor, scored.score.tensor, strict=True):
        backbone = model.model(ids[mask][None]).last_hidden_state[0, -1]
        torch.testing.assert_close(score, model.score(backbone)[0], rtol=1e-4, atol=1e-5)
    assert scored.score.tensor.abs().max() > 0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (w.ModelConfig(), "the model has neither a path nor a configuration with model_type"),
        (w.ModelConfig(path="nowhere"), "there is no model at 'nowhere': no config.json in it"),
        (w.ModelConfig(config={**tiny.LLAMA, "pad_token_id": None}), "the model 'llama' has no pad token"),
    ],
    ids=["nothing", "no folder", "no pad token"],
)
def test_what_a_model_lacks_is_reported(config: w.ModelConfig, text: str) -> None:
    with pytest.raises(ResourceError) as error:
        w.Actor(replace(tiny.ACTOR, model=config))
    assert error.value.code == "HF812"
    assert text in error.value.message


def saved(folder: Path, **changes: Any) -> Any:
    """A model that was saved, by its configuration with changes."""
    load(tiny.MODEL).save_pretrained(folder)
    return w.ModelConfig(path=str(folder), config={"model_type": "llama", **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_hidden_layers": 3}, r"no 'model\.layers\.2\.self_attn\.q_proj\.weight', and 8 more weights differ"),
        ({"vocab_size": 99}, r"'model\.embed_tokens\.weight' of shape \(\d+, \d+\), but .* has \(99, \d+\)"),
    ],
)
def test_weights_of_another_configuration_are_refused(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    model = saved(tmp_path, **changes)
    for role in (lambda: w.Actor(replace(tiny.ACTOR, model=model)), lambda: w.RewardModel(w.RewardConfig(model))):
        with pytest.raises(ResourceError, match=rf"HF964: .*{text}"):
            role()


def test_a_model_without_an_output_layer_has_scores_and_is_no_policy(tmp_path: Path) -> None:
    load(tiny.MODEL).model.save_pretrained(tmp_path)
    model = w.ModelConfig(path=str(tmp_path))
    w.RewardModel(w.RewardConfig(model))
    with pytest.raises(ResourceError, match=r"HF964: .*its files have no 'lm_head\.weight'$"):
        w.Actor(replace(tiny.ACTOR, model=model))


def test_a_tied_output_layer_needs_no_weight_of_its_own(tmp_path: Path) -> None:
    load(replace(tiny.MODEL, config={**tiny.LLAMA, "tie_word_embeddings": True})).save_pretrained(tmp_path)
    w.Actor(replace(tiny.ACTOR, model=w.ModelConfig(path=str(tmp_path))))


@hf.function
def spoilt(rollout: Rollout) -> Advantages:
    advantage = rollout.response_mask.tensor.float()
    advantage[-1, 0] = float("nan")
    return Advantages(advantage=advantage)


@hf.dataflow
def learn_nothing(prompts: Prompts, actor: w.Actor) -> ActorMetrics:
    rollout = actor.generate(prompts)
    return actor.update(hf.merge(Experience, rollout, spoilt(rollout)), loss=Clip())


def test_a_loss_that_is_no_number_is_reported_with_its_row() -> None:
    with (
        learn_nothing.compile(tiny.deployment(2, actor=tiny.ACTOR), SIZES).launch("local") as running,
        pytest.raises(RoleError) as error,
    ):
        running.step(tiny.prompts(8))
    assert str(error.value) == "HF811: 'actor.update' on rank 1 in step 0: row 7: the loss of its token 0 is nan"


def test_a_row_has_its_number_in_the_batch_where_rows_are_balanced() -> None:
    with in_call(Call(0, 0, 0, rank=1, row_count=2, balanced_rows=(3, 5))):
        assert str(bad_row(1, "is bad")) == "HF811: row 5: is bad"
    assert str(bad_row(1, "is bad")) == "HF811: row 1: is bad"


@hf.dataflow
def judge(prompts: Prompts, sequences: Sequences, reward: w.Reward) -> Scores:
    return reward.score(prompts, sequences)


def no_number(response: list[int], task: dict[str, Any]) -> float:
    return float("nan") if task["row"] == 6 else 0.0


def test_a_reward_that_is_no_number_is_reported_with_its_row() -> None:
    roles = tiny.deployment(2, reward=w.VerifierConfig(function=no_number))
    with judge.compile(roles, SIZES).launch("local") as running, pytest.raises(RoleError) as error:
        running.step(tiny.prompts(8), tiny.demonstrations(8))
    assert "'reward.score' on rank 1 in step 0: row 6: its reward is nan, expected a finite number" in str(error.value)


def test_a_dataset_of_reasoning_gym_verifies_text() -> None:
    verifier = w.Verifier(w.VerifierConfig(dataset="spell_backward", tokenizer=letters))
    ids = torch.tensor([[0, 3, 2, 1], [0, 3, 2, 2]])
    sequences = Sequences(ids=ids, mask=ids >= 0, response_mask=ids[:, 1:] > 0)
    prompts = Prompts(ids=ids[:, :1], mask=ids[:, :1] >= 0, task=[{"answer": "cba"}, {"answer": "cba"}])
    assert verifier.score(prompts, sequences).score.tensor.tolist() == pytest.approx([1.0, 2 / 3])


def letters(tokens: list[int]) -> str:
    return "".join("_abc"[token] for token in tokens)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (w.VerifierConfig(dataset="no_such", tokenizer=letters), "reasoning-gym has no data set 'no_such'"),
        (w.VerifierConfig(function="math:no_such"), "no function 'math:no_such'"),
    ],
)
def test_what_a_verifier_lacks_is_reported(config: w.VerifierConfig, text: str) -> None:
    with pytest.raises(HfError) as error:
        w.Verifier(config)
    assert error.value.code == "HF812"
    assert text in error.value.message
