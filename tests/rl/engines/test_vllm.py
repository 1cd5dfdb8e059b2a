"""vLLM for real: rows, log-probs, weights and prefix cache of ``engine = "vllm"``, beside the plain engine.

Starting an engine takes most of the time, so tests share one where they can. ``make vllm`` runs them.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import HfError, ResourceError
from hfdsl.protocols.call import Call, in_call
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, Experience, P, Prompts, R, Rollout
from hfdsl.rl.models.sharding import full_state_dict
from hfdsl.rl.training.config import from_table
from hfdsl.rl.training.loop import train
from tests.rl.workers import programs, tiny

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make vllm installs it"),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("forked_vllm_engines"),
]

WIDTH, RESPONSE, ROWS = 200, 8, 6
LENGTHS = (1, 3, 130, 199, 200, 200)
"""Of prompts: some are longer than a block of the cache, which on a CPU has 128 tokens."""

LLAMA = {**tiny.LLAMA, "hidden_size": 128, "max_position_embeddings": 512}
"""vLLM's attention on a CPU takes heads of a width of 32, and not of 8."""

TOLERANCE = 0.05 if torch.cuda.is_available() else 1e-4
"""Of log-probs in nats: on a GPU, vLLM's attention does not multiply float32 in full precision."""

MODEL = w.ModelConfig(config=LLAMA, end_tokens=(tiny.END, 2, 3))
GENERATION = w.GenerationConfig(RESPONSE, temperature=0.7, cache_tokens=4096, engine_deadline=300)


def generation(engine: Any, **changes: Any) -> w.GenerationConfig:
    return replace(GENERATION, engine=engine, **changes)


def actor(engine: Any, model: w.ModelConfig = MODEL, **changes: Any) -> w.Actor:
    return w.Actor(w.ActorConfig(model, generation(engine, **changes), tiny.TRAINING, tiny.FIXED))


def prompts(rows: slice = slice(None)) -> Prompts:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(2, tiny.VOCABULARY, (ROWS, WIDTH), generator=draw)
    mask = torch.arange(WIDTH) >= WIDTH - torch.tensor(LENGTHS)[:, None]
    return Prompts(ids=(ids * mask)[rows], mask=mask[rows], task=[{}] * len(mask[rows]))


def rollout(policy: w.Actor, rows: slice = slice(0, ROWS), *, greedy: bool = False, seed: int = 0) -> Rollout:
    call = Call(seed=seed, step=0, node=0, rank=0, first_row=rows.start, row_count=rows.stop - rows.start)
    with in_call(call):
        return policy.generate(prompts(rows), greedy=greedy)


def strengthened(policy: w.Actor, version: int) -> None:
    """Other weights, which say other tokens; the same ones for the same version."""
    draw = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in policy.policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.2 + (parameter.ndim == 1))


def differences(result: Rollout) -> torch.Tensor:
    assert result.engine_log_probs is not None
    return (result.engine_log_probs.tensor - result.log_probs.tensor).abs()


@pytest.fixture(scope="module")
def engine(forked_vllm_engines: None) -> w.Actor:
    torch.set_num_threads(1)
    return actor("vllm")


@pytest.fixture(scope="module")
def plain() -> w.Actor:
    return actor("plain")


def test_greedy_rows_are_those_of_the_policy_in_every_version(engine: w.Actor, plain: w.Actor) -> None:
    """Prompts longer than a block are in the prefix cache by the second version, with keys and values of the first."""
    responses = []
    for version in (1, 2, 3):
        strengthened(engine, version)
        strengthened(plain, version)
        ours, theirs = rollout(engine, greedy=True), rollout(plain, greedy=True)
        assert torch.equal(ours.ids.tensor, theirs.ids.tensor)
        assert torch.equal(ours.mask.tensor, theirs.mask.tensor)
        assert torch.equal(ours.response_mask.tensor, theirs.response_mask.tensor)
        assert differences(ours).max() < TOLERANCE  # greedy ones too are at the temperature
        responses.append(ours.ids.tensor[:, WIDTH:])
    first, second, third = responses
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_log_probs_are_at_the_temperature_of_the_role(engine: w.Actor) -> None:
    """``log_probs`` come from a pass of transformers over the same tokens."""
    result = rollout(engine)
    assert differences(result).max() < TOLERANCE
    assert result.response_mask.tensor.sum() > ROWS
    assert (result.log_probs.tensor[result.response_mask.tensor] < -0.01).any()


def experience_of(result: Rollout) -> Experience:
    return Experience(
        ids=result.ids.tensor,
        mask=result.mask.tensor,
        response_mask=result.response_mask.tensor,
        log_probs=result.log_probs.tensor,
        advantage=torch.linspace(-1, 1, ROWS)[:, None].expand(ROWS, RESPONSE),
    )


def test_an_update_reaches_the_engine(engine: w.Actor) -> None:
    result = rollout(engine)
    for _ in range(3):
        engine.update(experience_of(result), loss=programs.ALONE)
    after = rollout(engine)
    assert differences(after).max() < TOLERANCE
    assert not torch.equal(after.log_probs.tensor, result.log_probs.tensor)


needs_peft = pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed")
LEARNING = replace(tiny.TRAINING, optimizer=w.OptimizerConfig(learning_rate=3e-2))
WHOLE = w.Lora(rank=4)
SOME = w.Lora(rank=5, alpha=12, targets=("q_proj", "down_proj"))


def adapted(adapter: Any, lora: w.Lora, model: w.ModelConfig = MODEL) -> w.Actor:
    return w.Actor(w.ActorConfig(model, generation("vllm", adapter=adapter), LEARNING, tiny.FIXED, lora=lora))


@needs_peft
@pytest.mark.parametrize(
    ("adapter", "lora"),
    [
        ("merged", WHOLE),
        ("apart", WHOLE),
        ("auto", SOME),
        ("auto", replace(SOME, targets=("lm_head",))),
    ],
    ids=["merged", "apart", "some-layers", "output-layer"],
)
def test_an_adapter_reaches_the_engine_in_every_version(adapter: Any, lora: w.Lora) -> None:
    """The prefix cache has blocks of the prompts by every adapter before."""
    role = adapted(adapter, lora)
    handle, responses = role.sampling.external, []
    assert handle is not None
    assert (handle.start.adapter is None) == (adapter == "merged" or lora.targets == ("lm_head",))
    for _ in range(4):
        ours = rollout(role, greedy=True)
        merged = actor("plain")
        merged.policy.load_state_dict(full_state_dict(role.policy))
        theirs = rollout(merged, greedy=True)
        assert torch.equal(ours.ids.tensor, theirs.ids.tensor)
        assert differences(ours).max() < TOLERANCE
        assert differences(rollout(role)).max() < TOLERANCE
        torch.testing.assert_close(ours.log_probs.tensor, theirs.log_probs.tensor, rtol=0, atol=TOLERANCE)
        responses.append(ours.log_probs.tensor)
        role.update(experience_of(ours), loss=programs.ALONE)
    assert min((after - before).abs().max() for before, after in pairwise(responses)) > 10 * TOLERANCE


@needs_peft
def test_an_engine_that_was_killed_has_the_adapter_again() -> None:
    role = adapted("apart", WHOLE)
    role.update(experience_of(rollout(role)), loss=programs.ALONE)
    before, handle = rollout(role), role.sampling.external
    assert handle is not None
    os.kill(handle.process.pid, signal.SIGKILL)
    handle.process._process.wait()
    again = rollout(role)
    assert torch.equal(again.ids.tensor, before.ids.tensor)
    assert differences(again).max() < TOLERANCE


@needs_peft
def test_new_base_weights_reach_the_engine_below_the_adapter() -> None:
    role = adapted("apart", WHOLE)
    role.update(experience_of(rollout(role)), loss=programs.ALONE)
    rollout(role)
    with torch.no_grad():
        for parameter in role.policy.parameters():
            if not parameter.requires_grad:
                parameter.mul_(1.1)
    assert differences(rollout(role)).max() < TOLERANCE


@needs_peft
@pytest.mark.parametrize("adapter", ["apart", "merged"])
def test_a_sampler_follows_an_adapter_by_sync(adapter: Any, tmp_path: Path) -> None:
    lora = replace(WHOLE, exports="adapter")
    sampler = w.SamplerConfig(MODEL, generation("vllm", adapter=adapter), batching=tiny.FIXED, lora=lora)
    trained = w.ActorConfig(MODEL, generation("plain"), LEARNING, tiny.FIXED, lora=lora)
    deployment = tiny.deployment(actor=trained, sampler=sampler, reward=tiny.VERIFIER)
    steps = apart_steps(deployment, "local", tmp_path / "checkpoint")
    for _, likeliest, own, _ in steps:
        assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
        assert (likeliest.log_probs.tensor - own.log_probs.tensor).abs().max() < TOLERANCE
    assert (steps[0][2].log_probs.tensor - steps[2][2].log_probs.tensor).abs().max() > 10 * TOLERANCE


def test_a_row_depends_on_its_seed_and_not_on_its_batch(engine: w.Actor) -> None:
    whole = rollout(engine)
    assert torch.equal(rollout(engine).ids.tensor, whole.ids.tensor)
    for rows in (slice(0, 1), slice(2, 5)):
        assert torch.equal(rollout(engine, rows).ids.tensor, whole.ids.tensor[rows])
    assert not torch.equal(rollout(engine, seed=1).ids.tensor, whole.ids.tensor)


def test_rows_with_seeds_are_sampled_though_their_prompts_fill_several_steps() -> None:
    policy, rows = actor("vllm", cache_tokens=32_768), 60
    ids = torch.randint(2, tiny.VOCABULARY, (rows, WIDTH), generator=torch.Generator().manual_seed(1))
    with in_call(Call(seed=0, step=0, node=0, rank=0, first_row=0, row_count=rows)):
        result = policy.generate(Prompts(ids=ids, mask=torch.ones_like(ids).bool(), task=[{}] * rows))
    assert result.response_mask.tensor.any(1).all()
    assert differences(result).max() < TOLERANCE


def test_a_response_ends_with_an_end_token_or_is_full(engine: w.Actor) -> None:
    assert MODEL.end_tokens is not None
    lengths = []
    for seed in range(8):
        result = rollout(engine, seed=seed)
        for tokens, mask in zip(result.ids.tensor[:, WIDTH:], result.response_mask.tensor, strict=True):
            length = int(mask.sum())
            own = tokens[:length].tolist()
            assert mask[:length].all()
            assert not any(token in MODEL.end_tokens for token in own[:-1])
            assert own[-1] in MODEL.end_tokens or length == RESPONSE
            assert (tokens[length:] == tiny.PAD).all()
            lengths.append(length)
    assert len(set(lengths)) > 2


def test_prompts_that_the_engine_cannot_take_are_named(engine: w.Actor) -> None:
    bad = prompts()
    bad.ids.tensor[4, -1] = tiny.VOCABULARY
    with in_call(Call(seed=0, step=0, node=0, rank=0, row_count=ROWS)), pytest.raises(HfError, match=r"HF953.*row 4"):
        engine.generate(bad)


def test_an_engine_that_was_killed_starts_again(engine: w.Actor) -> None:
    before, handle = rollout(engine), engine.sampling.external
    assert handle is not None
    os.kill(handle.process.pid, signal.SIGKILL)
    handle.process._process.wait()
    assert torch.equal(rollout(engine).ids.tensor, before.ids.tensor)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False},
        {"model_type": "mistral", "sliding_window": None, "head_dim": 32},
    ],
    ids=["qwen2-tied", "qwen3", "mistral"],
)
def test_other_models_sample_as_the_policy_does(change: dict[str, Any]) -> None:
    model = replace(MODEL, config={**LLAMA, **change})
    ours, theirs = actor("vllm", model), actor("plain", model)
    for version in (1, 2):
        strengthened(ours, version)
        strengthened(theirs, version)
        assert torch.equal(rollout(ours, greedy=True).ids.tensor, rollout(theirs, greedy=True).ids.tensor)
        assert differences(rollout(ours)).max() < TOLERANCE


def test_a_model_that_vllm_refuses_is_an_error_with_its_reason() -> None:
    codegen = {"model_type": "codegen", "n_embd": 64, "n_head": 4, "n_layer": 1, "rotary_dim": 8, "n_positions": 512}
    special = {"vocab_size": tiny.VOCABULARY, "pad_token_id": tiny.PAD, "eos_token_id": tiny.END}
    with pytest.raises(ResourceError, match=r"HF951.*does not start with this model(.|\n)*CodeGenForCausalLM"):
        actor("vllm", replace(MODEL, config={**codegen, **special}))


SIZES: dict[type[hf.Dim], int] = {B: 8, P: tiny.PROMPT, R: RESPONSE}


def roles(engine: Any, dp: int = 1, sharding: Any = "none", engine_tp: int | None = None) -> hf.Deployment:
    training, shared = replace(tiny.TRAINING, sharding=sharding), generation(engine, engine_tp=engine_tp)
    configs: dict[str, Any] = {
        "actor": w.ActorConfig(MODEL, shared if sharding == "fsdp" else generation("plain"), training, tiny.FIXED),
        "sampler": w.SamplerConfig(replace(MODEL, seed=5), shared, batching=tiny.FIXED),
        "reward": tiny.VERIFIER,
    }
    return tiny.deployment(dp, **configs)


def apart_steps(deployment: hf.Deployment, backend: Any, folder: Path | None = None) -> list[Any]:
    with programs.apart.compile(deployment, SIZES).launch(backend) as running:
        steps = [running.step(tiny.prompts(8, step)) for step in range(3)]
        if folder is not None:
            folder.mkdir()
            running.save(folder)
    return steps


def test_a_sampler_follows_the_actor_by_sync(tmp_path: Path) -> None:
    """The sampler begins with other weights, and is one of the ranks' processes beside the actor's."""
    for rollout_, likeliest, own, _ in apart_steps(roles("vllm"), "local", tmp_path / "checkpoint"):
        assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
        assert torch.equal(rollout_.engine_log_probs.tensor, rollout_.log_probs.tensor)
        assert differences(likeliest).max() == 0
        assert (likeliest.log_probs.tensor - own.log_probs.tensor).abs().max() < TOLERANCE
    with programs.apart.compile(roles("vllm"), SIZES).launch("local") as running:
        running.load(tmp_path / "checkpoint")
        _, likeliest, own, _ = running.step(tiny.prompts(8, 9))
    assert torch.equal(likeliest.ids.tensor, own.ids.tensor)


@pytest.mark.parametrize("engine_tp", [None, 2])
def test_shards_on_ray_sample_as_one_whole_policy(ray_cluster: Any, engine_tp: int | None) -> None:
    """Two ranks with a shard each gather what their engines need, or the one that they share."""
    for _, likeliest, own, _ in apart_steps(roles("vllm", 2, "fsdp", engine_tp), "ray"):
        assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
        assert (likeliest.log_probs.tensor - own.log_probs.tensor).abs().max() < TOLERANCE


@pytest.mark.parametrize("engine_tp", [1, 2])
def test_shards_reach_an_engine_on_a_pool_of_its_own(ray_cluster: Any, engine_tp: int) -> None:
    """Each of two ranks sends its shards; the digests of every tensor are compared on both sides."""
    training = replace(tiny.TRAINING, sharding="fsdp")
    config = w.ActorConfig(MODEL, generation("plain"), training, tiny.FIXED)
    sampler = w.SamplerConfig(replace(MODEL, seed=5), generation("vllm"), batching=tiny.FIXED)
    trained, engines = (hf.ResourcePool([size], use_gpu=False) for size in (2, engine_tp))
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, config, pool=trained, mesh=hf.Mesh(dp=2)),
        sampler=hf.place(w.Sampler, sampler, pool=engines, mesh=hf.Mesh(tp=engine_tp)),
        reward=hf.place(w.Verifier, tiny.VERIFIER, pool=trained, mesh=hf.Mesh(dp=2)),
    )
    plan = programs.apart.compile(deployment, SIZES)
    [sync] = plan.syncs
    assert sync.needed == sync.received == sum(weight.nbytes for weight in actor("plain").weights().values())
    with plan.launch("ray") as running:
        for step in range(3):
            with running.verifying("policy"):
                _, likeliest, own, _ = running.step(tiny.prompts(8, step))
            assert torch.equal(likeliest.ids.tensor, own.ids.tensor)
            assert (likeliest.log_probs.tensor - own.log_probs.tensor).abs().max() < TOLERANCE


@hf.dataflow
def sampled(prompts: Prompts, sampler: w.Sampler) -> tuple[Rollout, Rollout]:
    return sampler.generate(prompts), sampler.generate(prompts, greedy=True)


def test_an_engine_in_two_parts_samples_as_a_whole_one() -> None:
    """Only where a sum is split into two does rounding differ."""
    whole, parts = [
        sampled.compile(
            hf.Deployment(
                sampler=hf.place(
                    w.Sampler,
                    w.SamplerConfig(MODEL, generation("vllm")),
                    pool=hf.ResourcePool([mesh.world_size], use_gpu=False),
                    mesh=mesh,
                )
            ),
            SIZES,
        )
        for mesh in (hf.Mesh(), hf.Mesh(tp=2))
    ]
    with whole.launch("local") as running_whole, parts.launch("local") as running_parts:
        for ours, theirs in zip(running_parts.step(tiny.prompts(8)), running_whole.step(tiny.prompts(8)), strict=True):
            assert torch.equal(ours.ids.tensor, theirs.ids.tensor)
            assert (ours.log_probs.tensor - theirs.log_probs.tensor).abs().max() < TOLERANCE


@pytest.fixture
def table(tmp_path: Path) -> dict[str, Any]:
    words = tmp_path / "words.jsonl"
    words.write_text("".join(f'{{"word": "{a}{b}"}}\n' for a in "abcdefgh" for b in "abcdefgh"))
    return {
        "algorithm": "hfdsl.rl.dataflows.grpo:grpo",
        "deployment": {"pools": {"all": {"processes": [1], "gpu": False}}, "default": {"pool": "all"}},
        "dims": {"B": 8, "P": 3, "R": 6},
        "steps": 12,
        "output": str(tmp_path / "run"),
        "options": {"group": 8, "updates": 1, "loss": {"kl": 0.0}},
        "roles": {"reward": "hfdsl.rl.workers:Verifier"},
        "data": {
            "source": {"kind": "JsonLines", "path": str(words)},
            "tokenizer": {"kind": "Characters", "alphabet": "abcdefgh"},
            "prompt": {"text": "{word}"},
        },
        "actor": {
            "model": {"config": {name: value for name, value in LLAMA.items() if value is not None}},
            "generation": {"max_tokens": 6, "cache_tokens": 4096},
            "training": {"optimizer": {"learning_rate": 3e-3}},
        },
        "reference": {"model": "$actor.model"},
        "reward": {"function": "tests.rl.workers.tiny:share_of_sevens"},
    }


def test_a_line_of_a_configuration_makes_a_run_learn_by_vllm(table: dict[str, Any]) -> None:
    loaded = from_table(table, ['actor.generation.engine="vllm"'])
    records: list[Any] = []
    train(loaded, show=records.append)
    scores = [record.values["outcome/score"] for record in records if "outcome/score" in record.values]
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1, scores


def test_a_run_samples_on_a_pool_of_its_own(table: dict[str, Any]) -> None:
    """The sampler begins with other weights, and follows the actor from the first step on."""
    pools = {"trained": {"processes": [1], "gpu": False}, "engines": {"processes": [1], "gpu": False}}
    model = table["actor"]["model"]
    changed = {
        **table,
        "deployment": {"pools": pools, "roles": {"sampler": {"pool": "engines"}}, "default": {"pool": "trained"}},
        "sampler": {"model": {**model, "seed": 9}, "generation": {**table["actor"]["generation"], "engine": "vllm"}},
    }
    records: list[Any] = []
    train(from_table(changed), show=records.append)
    gaps = [record.values["actor/engine_gap_max"] for record in records if "actor/engine_gap_max" in record.values]
    scores = [record.values["outcome/score"] for record in records if "outcome/score" in record.values]
    assert max(gaps) < TOLERANCE
    assert sum(scores[-2:]) / 2 > scores[0] + 0.1, scores
