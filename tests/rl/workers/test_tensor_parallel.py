"""A model that is sliced over tp says and learns what the whole one does, up to the order in which sums are rounded."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import ResourceError, RoleError
from hfdsl.protocols import role_facts
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Prompts, ReferenceLogProbs, Rollout, Scores, Sequences
from hfdsl.rl.models.loading import load
from hfdsl.rl.models.tensor_parallel import (
    DIVISIBLE_FIELDS,
    KEY_PROJECTIONS,
    planned_slice_dims,
    slice_dims,
    tensor_parallel_plan,
)
from hfdsl.rl.workers.slicing import BY_HEADS
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, Weighed, apart, everything, numbers, policy, tensors, weighed
from tests.rl.workers.test_sharding import NO_GPU

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},  # nothing tied
    "qwen3": {"head_dim": 8},  # norms that are whole and read heads
    "cohere": {"logit_scale": 0.25},  # tied embeddings
    "phi": {},  # biases everywhere
    "olmo2": {},  # heads gathered and split again
    "odd": {"model_type": "llama", "vocab_size": tiny.VOCABULARY + 1, "tie_word_embeddings": True},  # stays whole
}
BY_TOKENS = w.BatchingConfig(tokens=25)
ONE, TWO, FOUR = hf.Mesh(), hf.Mesh(tp=2), hf.Mesh(dp=2, tp=2)


def model(name: str) -> w.ModelConfig:
    return replace(tiny.MODEL, config={**tiny.LLAMA, "model_type": name, **MODELS[name]})


def placed(mesh: hf.Mesh, **configs: Any) -> hf.Deployment:
    pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
    return hf.Deployment(
        **{name: hf.place(tiny.CLASSES[name], config, pool=pool, mesh=mesh) for name, config in configs.items()}
    )


def roles(mesh: hf.Mesh, name: str, batching: w.BatchingConfig, sharding: Any = "none") -> hf.Deployment:
    training = replace(tiny.TRAINING, sharding=sharding, checkpointing=True)
    return placed(
        mesh,
        actor=replace(tiny.ACTOR, model=model(name), training=training, batching=batching),
        critic=replace(tiny.CRITIC, model=model(name), training=training, batching=batching),
        reference=replace(tiny.REFERENCE, model=model(name), batching=batching),
        reward=tiny.VERIFIER,
    )


@cache
def ran(mesh: hf.Mesh, name: str, batching: w.BatchingConfig) -> tuple[Any, dict[str, torch.Tensor]]:
    """A step of everything, of three updates, and what the policy's weights are then."""
    deployment = roles(mesh, name, batching)
    with everything.compile(deployment, SIZES).launch("local", seed=3) as running:
        return running.step(tiny.prompts(ROWS)), running.also(policy.compile(deployment)).step()


def alike(first: tuple[Any, dict[str, torch.Tensor]], second: tuple[Any, dict[str, torch.Tensor]]) -> None:
    """The same tokens; log-probs, values, losses and weights within the bound that docs/roles.md states."""
    (whole, weights), (cut, others) = first, second
    for alone, split in zip((*whole[:4], *whole[4]), (*cut[:4], *cut[4]), strict=True):
        for column, value in tensors(split).items():
            expected = tensors(alone)[column]
            if expected.is_floating_point():
                torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4, msg=column)
            else:
                assert torch.equal(value, expected), column
    for alone, split in zip((*whole[5], *whole[6]), (*cut[5], *cut[6]), strict=True):
        assert numbers(split) == pytest.approx(numbers(alone), rel=1e-3, abs=1e-5)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.nightly_besides("qwen3")
@pytest.mark.parametrize("name", MODELS)
def test_slices_give_what_the_whole_gives(name: str) -> None:
    alike(ran(ONE, name, tiny.FIXED), ran(TWO, name, tiny.FIXED))


def test_slices_of_rows_of_unlike_lengths_on_both_axes() -> None:
    alike(ran(ONE, "llama", tiny.FIXED), ran(FOUR, "llama", BY_TOKENS))


@pytest.mark.nightly
def test_processes_give_the_same_and_go_on_from_what_they_kept(ray_cluster: Any, tmp_path: Path) -> None:
    """FSDP2 over dp of slices over tp; whatever is split is kept as such."""
    deployment = roles(FOUR, "qwen3", BY_TOKENS, "fsdp")
    with everything.compile(deployment, SIZES).launch("ray", seed=3, worker_env=NO_GPU) as running:
        weights = running.also(policy.compile(deployment))
        first = running.step(tiny.prompts(ROWS)), weights.step()
        running.save(tmp_path)
        second = running.step(tiny.prompts(ROWS, 1)), weights.step()
        running.load(tmp_path)
        again = running.step(tiny.prompts(ROWS, 1)), weights.step()
    alike(ran(ONE, "qwen3", tiny.FIXED), first)
    for before, after in zip((*second[0][5], *second[0][6]), (*again[0][5], *again[0][6]), strict=True):
        assert numbers(before) == numbers(after)
    assert all(torch.equal(weight, again[1][name]) for name, weight in second[1].items())


class Second(SoleRank):
    """The second of two ranks, as far as it speaks to nobody."""

    size, rank = 2, 1


@pytest.mark.parametrize("name", MODELS)
def test_an_export_knows_the_slices_from_the_plan(name: str) -> None:
    whole, slices = load(model(name)), load(model(name), Second())
    dims, expected = planned_slice_dims(whole, 2), slice_dims(slices)
    cut = {key for key, value in whole.state_dict().items() if value.shape != slices.state_dict()[key].shape}
    assert {key: dim for key, dim in dims.items() if key in whole.state_dict()} == expected
    assert cut == set(expected)


def test_a_rank_holds_its_slice() -> None:
    def held(mesh: hf.Mesh) -> int:
        pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
        deployment = hf.Deployment(actor=hf.place(Weighed, tiny.ACTOR, pool=pool, mesh=mesh))
        with weighed.compile(deployment, SIZES).launch("local") as running:
            _, counts = running.step(tiny.demonstrations(ROWS))
            return max(map(int, counts))

    assert 0.5 < held(TWO) / held(ONE) < 0.52  # all but norms


@pytest.mark.parametrize(("train", "roll"), [(TWO, ONE), (hf.Mesh(dp=2), TWO)], ids=["from slices", "to slices"])
def test_a_sampler_on_another_mesh_receives_whole_weights(train: hf.Mesh, roll: hf.Mesh) -> None:
    first, second = (hf.ResourcePool([mesh.world_size], use_gpu=False) for mesh in (train, roll))
    config = w.SamplerConfig(replace(tiny.MODEL, seed=9), tiny.GENERATION, batching=tiny.FIXED)
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, tiny.ACTOR, pool=first, mesh=train),
        sampler=hf.place(w.Sampler, config, pool=second, mesh=roll),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=first),
    )
    with apart.compile(deployment, SIZES).launch("local") as running:
        steps = [running.step(tiny.prompts(ROWS)) for _ in range(2)]
    for _, likeliest, of_actor, _ in steps:
        assert torch.equal(likeliest.ids.tensor, of_actor.ids.tensor)
    assert not torch.equal(steps[0][2].ids.tensor, steps[1][2].ids.tensor)


class Drawing(w.Actor):
    """An actor every rank of which reports the tokens that it drew last."""

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def draw(self, prompts: Prompts) -> Rollout:
        rollout = self.generate(prompts)
        self.drawn: list[list[int]] = rollout.ids.tensor.tolist()
        return rollout

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def last_drawn(self) -> list[list[int]]:
        return self.drawn


@hf.dataflow
def drawn(prompts: Prompts, actor: Drawing) -> tuple[Rollout, hf.PerRank[list[list[int]]]]:
    return actor.draw(prompts), actor.last_drawn()


def test_ranks_of_tp_draw_the_same_and_those_of_dp_others() -> None:
    prompt = tiny.prompts(1)
    prompts = Prompts(
        ids=prompt.ids.tensor.repeat(ROWS, 1), mask=prompt.mask.tensor.repeat(ROWS, 1), task=[{} for _ in range(ROWS)]
    )
    pool = hf.ResourcePool([4], use_gpu=False)
    deployment = hf.Deployment(actor=hf.place(Drawing, tiny.ACTOR, pool=pool, mesh=FOUR))
    with drawn.compile(deployment, SIZES).launch("local") as running:
        _, tokens = running.step(prompts)
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3]


@hf.dataflow
def judged(prompts: Prompts, sequences: Sequences, scorer: w.RewardModel) -> Scores:
    return scorer.score(prompts, sequences)


def test_a_sliced_reward_model_scores_as_the_whole_one(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    config = load(tiny.MODEL).config
    config.num_labels = 1
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    saved = w.RewardConfig(w.ModelConfig(path=str(tmp_path)))
    scores = []
    for mesh in (ONE, TWO):
        with judged.compile(placed(mesh, scorer=saved), SIZES).launch("local") as running:
            scores.append(running.step(tiny.prompts(ROWS), tiny.demonstrations(ROWS)).score.tensor)
    assert scores[0].abs().max() > 0
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "tp", "text"),
    [
        ({"model_type": "gpt2"}, 2, "transformers has no tensor-parallel plan for GPT2LMHeadModel"),
        (
            {"model_type": "mixtral"},
            2,
            "its plan has model.layers.0.mlp.experts cut by 'moe_tp_experts', which the ready",
        ),
        (
            {"model_type": "cohere", "use_qk_norm": True},
            2,
            "its plan does not say how to cut model.layers.0.self_attn.q_n",
        ),
        (
            {"model_type": "phi", "resid_pdrop": 0.1},
            2,
            "resid_pdrop=0.1 of its config drops different values on every rank; set it to 0",
        ),
    ],
    ids=["no plan", "experts", "plan with a gap", "dropout"],
)
def test_what_cannot_be_sliced_is_reported(config: dict[str, Any], tp: int, text: str) -> None:
    model = w.ModelConfig(config={**tiny.LLAMA, **config})
    deployment = placed(hf.Mesh(tp=tp), reference=w.ReferenceConfig(model))
    with pytest.raises(RoleError) as error:
        reread.compile(deployment, SIZES).launch("local")
    name = config.get("model_type", "llama")
    start = f"the model '{name}' cannot be cut over the mesh axis tp={tp}: "
    assert str(error.value).startswith(f"HF812: 'reference.__init__ (Reference)' on rank 0: {start}")
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("config", "tp", "broken", "fitting"),
    [
        ({"num_attention_heads": 2}, 4, "num_attention_heads = 2 (2 % 4 = 2) and num_key_value_heads = 2 (", "1 or 2"),
        ({}, 4, "num_key_value_heads = 2 (2 % 4 = 2) of the model", "1 or 2"),
        ({"intermediate_size": 65}, 2, "intermediate_size = 65 (65 % 2 = 1) of the model", "1"),
    ],
    ids=["heads", "key-value heads", "features"],
)
def test_heads_that_tp_does_not_divide_are_reported_by_a_check_as_a_launch_would(
    config: dict[str, Any], tp: int, broken: str, fitting: str
) -> None:
    model = w.ModelConfig(config={**tiny.LLAMA, **config})
    deployment = placed(hf.Mesh(tp=tp), reference=w.ReferenceConfig(model))
    [finding] = reread.check(deployment, SIZES).findings
    assert finding.code == "HF813"
    assert finding.message.startswith(f"role 'reference': tp = {tp} does not divide {broken}")
    assert finding.message.endswith(f", which tp slices; tp can be {fitting}")
    with pytest.raises(ResourceError, match=rf"HF812: .* tp={tp}: .* is not divisible by {tp}"):
        tensor_parallel_plan(load(model), tp, "llama")
    for size in map(int, fitting.split(" or ")):
        tensor_parallel_plan(load(model), size, "llama")


def test_heads_are_held_against_tp_where_transformers_cuts_by_heads() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in BY_HEADS:
        plan = CONFIG_MAPPING[name].base_model_tp_plan or {}
        keys = [style for path, style in plan.items() if path.rpartition(".")[2] in KEY_PROJECTIONS]
        assert "colwise" in keys, name


def test_what_is_sliced_is_what_a_configuration_says(tmp_path: Path) -> None:
    load(tiny.MODEL).config.save_pretrained(tmp_path)
    saved = w.ReferenceConfig(w.ModelConfig(path=str(tmp_path)))
    sizes = {name: tiny.LLAMA[name] for name in DIVISIBLE_FIELDS}

    def sliced(role: type, config: object) -> dict[str, int]:
        return role_facts.sliced.of(hf.place(role, config, pool=hf.ResourcePool([1])))

    assert sliced(w.Reference, saved) == sizes
    wider = w.ModelConfig(path=str(tmp_path), config={"intermediate_size": 96})
    assert sliced(w.Actor, replace(tiny.ACTOR, model=wider)) == {**sizes, "intermediate_size": 96}
    (tmp_path / "config.json").write_text("{")
    assert sliced(w.Reference, saved) == {}  # the launch tells
    other_model = w.ModelConfig(config={"model_type": "phi3", "num_attention_heads": 6, "intermediate_size": 8})
    assert sliced(w.Critic, w.CriticConfig(other_model)) == {"intermediate_size": 8}  # not cut by heads
    assert sliced(w.Verifier, w.VerifierConfig()) == {}


@hf.dataflow
def reread(sequences: Sequences, reference: w.Reference) -> ReferenceLogProbs:
    return reference.log_probs(sequences)


def test_slices_on_gpus_need_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfdsl.rl.models.loading.device", lambda: torch.device("cuda"))
    with pytest.raises(RoleError, match=r"HF812: .*the mesh axis tp=2 needs a process for every rank on a GPU"):
        reread.compile(placed(TWO, reference=tiny.REFERENCE), SIZES).launch("local")
