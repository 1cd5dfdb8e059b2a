"""Adapters learn as peft's own do, alone, and leave the module as merged weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import hfdsl as hf
from hfdsl.errors import HfError
from hfdsl.protocols.call import Call, in_call
from hfdsl.protocols.collectives import SoleRank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import ImitationMetrics, Prompts, ReferenceLogProbs, Rollout, Sequences, ValueExperience
from hfdsl.rl.losses import ClippedValue
from hfdsl.rl.models.adapters import adapted_layers
from hfdsl.rl.models.policies import policy
from hfdsl.rl.models.sharding import full_state_dict
from hfdsl.rl.workers.layouts import state_parameters
from hfdsl.runtime.weights.held_parts import ComputedPart
from tests.rl.workers import tiny
from tests.rl.workers.programs import ROWS, SIZES, Weighed, apart, numbers, tensors, weighed
from tests.rl.workers.test_sharding import NO_GPU

peft = pytest.importorskip("peft")

LORA = w.Lora(rank=4, alpha=12)
ATTENTION = replace(LORA, targets=("q_proj", "self_attn.v_proj"))
RATE = 1e-2
TRAINING = w.TrainingConfig(w.OptimizerConfig(learning_rate=RATE, clip_norm=1e9, weight_decay=0.01))
ACTOR = replace(tiny.ACTOR, training=TRAINING, lora=LORA)
CRITIC = replace(tiny.CRITIC, training=TRAINING, lora=LORA)
GPT2 = {
    "model_type": "gpt2", "vocab_size": tiny.VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "bos_token_id": None, "pad_token_id": tiny.PAD, "eos_token_id": tiny.END, "attn_pdrop": 0, "embd_pdrop": 0,
    "resid_pdrop": 0,
}  # fmt: skip  # a table


def adapted(parameters: Any) -> dict[str, torch.Tensor]:
    return {name.split("layers.")[1]: value.detach() for name, value in parameters if "lora_" in name}


def log_probs(model: Any, sequences: Sequences) -> torch.Tensor:
    """Of responses, from the logits of transformers, row by row and without padding."""
    rows = []
    for ids, mask, response_mask in zip(*(tensors(sequences)[name] for name in tensors(sequences)), strict=True):
        tokens, count = ids[mask][None], int(response_mask.sum())
        rows.append(model(tokens).logits.log_softmax(-1)[0, :-1].gather(1, tokens[0, 1:, None])[-count:, 0])
    return torch.cat(rows)


def peft_model(lora: w.Lora, config: dict[str, Any] = tiny.LLAMA) -> Any:
    """The same model and adapter by peft's own interface."""
    torch.manual_seed(tiny.MODEL.seed)
    values = {**config}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values)).eval()
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    torch.manual_seed(tiny.MODEL.seed)
    return peft.get_peft_model(
        model, peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    )


@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
def test_an_adapter_learns_as_pefts_own_does(lora: w.Lora) -> None:
    actor, theirs = w.Actor(replace(ACTOR, lora=lora)), peft_model(lora)
    optimizer = torch.optim.AdamW(
        [p for p in theirs.parameters() if p.requires_grad], lr=RATE, betas=(0.9, 0.95), weight_decay=0.01
    )
    for step in range(3):
        sequences = tiny.demonstrations(ROWS, step)
        actor.imitate(sequences)
        optimizer.zero_grad()
        loss = -log_probs(theirs, sequences).mean()
        loss.backward()
        gradients = adapted((name, p.grad) for name, p in theirs.named_parameters() if p.requires_grad)
        ours = adapted((name, p.grad) for name, p in actor.policy.named_parameters() if p.requires_grad)
        assert ours.keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(ours[name], gradient, rtol=2e-4, atol=1e-6, msg=name)
        optimizer.step()
        after = adapted(actor.policy.named_parameters())
        for name, value in adapted(theirs.named_parameters()).items():
            torch.testing.assert_close(after[name], value, rtol=1e-3, atol=1e-5, msg=name)
            after[name].copy_(value)  # AdamW enlarges the rounding of gradients near 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_new_adapter_changes_no_bit(dtype: Any) -> None:
    model = replace(tiny.MODEL, dtype=dtype)
    base, new = (policy(model, 1.0, SoleRank(), lora) for lora in (None, LORA))
    sequences = tiny.demonstrations(ROWS)
    inputs = sequences.ids.tensor, sequences.mask.tensor, tiny.RESPONSE
    assert torch.equal(base(*inputs)[0], new(*inputs)[0])
    ours, theirs = full_state_dict(new), full_state_dict(base)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())
    assert {p.dtype for p in new.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_autocast_alone_gives_the_bits_of_cast_inputs(dtype: Any) -> None:
    training = replace(TRAINING, autocast="bfloat16")
    runs = [w.Actor(replace(ACTOR, training=training, model=replace(tiny.MODEL, dtype=dtype))) for _ in range(2)]
    alone = learn(runs[0], 2)
    for _, layer in adapted_layers(runs[1].policy):
        layer.cast_input_dtype_enabled = True
    assert learn(runs[1], 2) == alone
    states = [run.policy.state_dict() for run in runs]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_engines_sample_from_models_of_16_bits(engine: Any) -> None:
    training = replace(TRAINING, autocast="bfloat16")
    model, generation = replace(tiny.MODEL, dtype="bfloat16"), replace(tiny.GENERATION, engine=engine)
    actor = w.Actor(replace(ACTOR, training=training, model=model, generation=generation))
    learn(actor, 1)
    assert generated_by(actor).log_probs.tensor.isfinite().all()


@pytest.mark.parametrize("engine", ["plain", "captured"])
def test_engines_sample_with_the_adapter(engine: Any) -> None:
    """Greedy rows of a strong adapter are those of a whole policy that has its merged weights."""
    actor = w.Actor(replace(ACTOR, generation=replace(tiny.GENERATION, engine=engine)))
    learn(actor, 6)
    whole = w.Actor(tiny.ACTOR)
    whole.policy.load_state_dict(full_state_dict(actor.policy))
    rows, others = (generated_by(role) for role in (actor, whole))
    assert torch.equal(rows.ids.tensor, others.ids.tensor)
    assert not torch.equal(rows.ids.tensor, generated_by(w.Actor(tiny.ACTOR)).ids.tensor)
    torch.testing.assert_close(rows.log_probs.tensor, others.log_probs.tensor, rtol=1e-4, atol=1e-5)


def generated_by(actor: w.Actor) -> Rollout:
    with in_call(Call(seed=0, step=0, node=0, rank=0, row_count=ROWS)):
        return actor.generate(tiny.prompts(ROWS), greedy=True)


def learn(actor: w.Actor, steps: int) -> list[dict[str, float]]:
    return [numbers(actor.imitate(tiny.demonstrations(ROWS, step))) for step in range(steps)]


def test_only_the_adapter_learns() -> None:
    actor = w.Actor(ACTOR)
    before = {name: value.clone() for name, value in actor.policy.state_dict().items()}
    learn(actor, 2)
    after = actor.policy.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {name for name in before if "lora_" in name}
    assert len(changed) == 2 * 7 * 2  # A and B, of seven layers in each of two blocks
    assert len(actor.learner.optimizer.state) == len(changed)
    assert all(p.grad is None for name, p in actor.policy.named_parameters() if "lora_" not in name)


@pytest.mark.parametrize("config", [tiny.LLAMA, {**tiny.LLAMA, "tie_word_embeddings": True}, GPT2])
def test_merged_weights_are_those_of_peft(config: dict[str, Any]) -> None:
    ours, theirs = policy(w.ModelConfig(config=config), 1.0, SoleRank(), LORA), peft_model(LORA, config)
    draw = torch.Generator().manual_seed(1)
    values = [torch.randn(p.shape, generator=draw) * 0.1 for p in ours.parameters() if p.requires_grad]
    for module in (ours, theirs):
        learned = [p for p in module.parameters() if p.requires_grad]
        for parameter, value in zip(learned, values, strict=True):
            parameter.data.copy_(value)
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    merged = full_state_dict(ours)
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())
    expected = theirs.merge_and_unload().state_dict()
    assert [name.removeprefix("model.") for name in merged] == list(expected)
    for name, weight in expected.items():
        torch.testing.assert_close(merged[f"model.{name}"], weight, rtol=1e-6, atol=1e-7, msg=name)


def test_an_actor_goes_on_where_it_stopped_and_keeps_its_adapter_alone() -> None:
    whole, first, second = (w.Actor(ACTOR) for _ in range(3))
    uninterrupted = learn(whole, 3)
    before = learn(first, 2)
    state = first.state()
    assert all("lora_" in name for name in state["weights"])
    second.load_state(state)
    assert [*before, numbers(second.imitate(tiny.demonstrations(ROWS, 2)))] == uninterrupted
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, second.policy.state_dict()[name])


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_an_actor_is_its_own_reference(autocast: Any) -> None:
    actor = w.Actor(replace(ACTOR, training=replace(TRAINING, autocast=autocast)))
    reference = w.Reference(replace(tiny.REFERENCE, autocast=autocast))
    learn(actor, 3)
    sequences = tiny.demonstrations(ROWS)
    expected = reference.log_probs(sequences).ref_log_probs.tensor
    assert torch.equal(actor.base_log_probs(sequences).ref_log_probs.tensor, expected)
    assert not torch.allclose(actor.log_probs(sequences).ref_log_probs.tensor, expected, atol=1e-2)
    before = actor.policy.state_dict()["model.model.layers.0.mlp.up_proj.lora_B.default.weight"].clone()
    learn(actor, 1)
    assert not torch.equal(before, actor.policy.state_dict()["model.model.layers.0.mlp.up_proj.lora_B.default.weight"])


def test_recomputed_activations_give_the_same_gradients() -> None:
    runs = [w.Actor(replace(ACTOR, training=replace(TRAINING, checkpointing=on))) for on in (False, True)]
    metrics = [learn(actor, 2) for actor in runs]
    assert metrics[0] == metrics[1]
    assert metrics[0][-1]["grad_norm"] > 0


def test_a_critic_learns_its_adapter_and_its_head() -> None:
    critic = w.Critic(CRITIC)
    before = {name: value.clone() for name, value in critic.critic.state_dict().items()}
    sequences = tiny.demonstrations(ROWS)
    width = torch.zeros(ROWS, tiny.RESPONSE)
    targets = ValueExperience(**tensors(sequences), values=width, returns=width + 1)
    losses = [numbers(critic.update(targets, loss=ClippedValue(9.0)))["loss"] for _ in range(8)]
    assert losses[-1] < losses[0]
    after = critic.critic.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {name for name in before if "lora_" in name or name == "score.weight"}
    assert critic.state()["weights"].keys() == changed


def test_a_sampler_gets_merged_weights() -> None:
    sampler = w.SamplerConfig(replace(tiny.MODEL, seed=9), tiny.GENERATION, batching=tiny.FIXED)
    deployment = tiny.deployment(actor=ACTOR, sampler=sampler, reward=tiny.VERIFIER)
    with apart.compile(deployment, SIZES).launch("local") as running:
        steps = [running.step(tiny.prompts(ROWS)) for _ in range(3)]
    for _, likeliest, of_actor, _ in steps:
        assert torch.equal(likeliest.ids.tensor, of_actor.ids.tensor)
        torch.testing.assert_close(likeliest.log_probs.tensor, of_actor.log_probs.tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(steps[0][2].ids.tensor, steps[2][2].ids.tensor)


def test_a_sampler_gets_the_adapter_alone(tmp_path: Path) -> None:
    """The first sync sends B = 0, and the sampler begins with the actor's base weights."""
    lora = replace(LORA, exports="adapter")
    sampler = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, batching=tiny.FIXED, lora=lora)
    deployment = tiny.deployment(actor=replace(ACTOR, lora=lora), sampler=sampler, reward=tiny.VERIFIER)
    with apart.compile(deployment, SIZES).launch("local") as running:
        steps = [running.step(tiny.prompts(ROWS)) for _ in range(3)]
        running.save(tmp_path)
    for _, likeliest, of_actor, _ in steps:
        assert torch.equal(likeliest.ids.tensor, of_actor.ids.tensor)
        torch.testing.assert_close(likeliest.log_probs.tensor, of_actor.log_probs.tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(steps[0][2].ids.tensor, steps[2][2].ids.tensor)
    with apart.compile(deployment, SIZES).launch("local") as running:
        running.load(tmp_path)
        _, likeliest, of_actor, _ = running.step(tiny.prompts(ROWS))
    assert torch.equal(likeliest.ids.tensor, of_actor.ids.tensor)


@pytest.mark.parametrize("lora", [LORA, ATTENTION], ids=["all", "attention"])
def test_a_configuration_has_the_matrices_of_its_adapter(lora: w.Lora) -> None:
    config = replace(ACTOR, lora=replace(lora, exports="adapter"))
    held = w.Actor(config).held_weights("policy")
    stated = {parameter.name: (parameter.shape, parameter.dtype) for parameter in state_parameters(config)["policy"]}
    assert stated == {name: (tuple(part.tensor.shape), "float32") for name, part in held.items()}
    sampler = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, lora=lora)
    assert state_parameters(sampler) == state_parameters(config)
    merged, full = (state_parameters(replace(config, lora=adapter))["policy"] for adapter in (lora, None))
    assert [replace(parameter, contiguous=True) for parameter in merged] == list(full)
    parts = w.Actor(replace(config, lora=lora)).held_weights("policy")
    assert [isinstance(parts[parameter.name], ComputedPart) for parameter in merged] == [
        not parameter.contiguous for parameter in merged
    ]


@hf.dataflow
def sent(prompts: Prompts, actor: w.Actor, sampler: w.Sampler) -> tuple[Rollout, ImitationMetrics]:
    hf.sync(actor, sampler)
    rollout = sampler.generate(prompts)
    return rollout, actor.imitate(rollout)


def sharded_adapter(sampler: w.SamplerConfig, pools: list[hf.ResourcePool]) -> Any:
    training = replace(TRAINING, sharding="fsdp")
    actor = replace(ACTOR, training=training, lora=replace(LORA, exports="adapter"))
    deployment = hf.Deployment(
        actor=hf.place(w.Actor, actor, pool=pools[0], mesh=hf.Mesh(dp=2)),
        sampler=hf.place(w.Sampler, sampler, pool=pools[1]),
    )
    return sent.compile(deployment, SIZES)


def test_the_plan_of_a_sharded_adapter_sends_no_more_than_the_adapter() -> None:
    sampler = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, batching=tiny.FIXED, lora=LORA)
    pools = [hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)]
    (sync,) = sharded_adapter(sampler, pools).syncs
    layers = w.Actor(ACTOR).policy.state_dict()
    assert sync.needed == sync.received == sum(value.nbytes for name, value in layers.items() if "lora_" in name)


@pytest.mark.nightly
def test_a_sharded_adapter_reaches_a_sampler_in_its_own_memory(ray_cluster: Any) -> None:
    sampler = w.SamplerConfig(tiny.MODEL, tiny.GENERATION, batching=tiny.FIXED, lora=LORA)
    pools = [hf.ResourcePool([2], use_gpu=False), hf.ResourcePool([1], use_gpu=False)]
    with sharded_adapter(sampler, pools).launch("ray", worker_env=NO_GPU) as running:
        steps = []
        for _ in range(3):
            with running.verifying("policy"):
                steps.append(running.step(tiny.prompts(ROWS))[0])
    assert not torch.equal(steps[0].log_probs.tensor, steps[2].log_probs.tensor)


MISMATCHES = [
    (replace(LORA, exports="adapter"), None, "it was sent an adapter alone", "HF730"),
    (LORA, replace(LORA, exports="adapter"), "it has an adapter, and was sent whole weights", "HF730"),
    (replace(LORA, exports="adapter"), replace(LORA, rank=3), "'transformer.h.0.attn.c_attn.lora_A.weight'", "HF732"),
]


def mismatched(model: w.ModelConfig, sends: w.Lora, takes: w.Lora | None) -> hf.Deployment:
    sampler = w.SamplerConfig(model, tiny.GENERATION, batching=tiny.FIXED, lora=takes)
    return tiny.deployment(actor=replace(ACTOR, model=model, lora=sends), sampler=sampler, reward=tiny.VERIFIER)


@pytest.mark.parametrize(("sends", "takes", "says", "code"), MISMATCHES)
def test_a_sampler_that_cannot_take_what_is_sent_is_found(
    sends: w.Lora, takes: w.Lora | None, says: str, code: str
) -> None:
    """By the check where it knows the model's layers, and else when the sampler loads."""
    report = apart.check(mismatched(tiny.MODEL, sends, takes), SIZES)
    assert {finding.code for finding in report.errors} == {code}
    unknown = w.ModelConfig(config=GPT2, end_tokens=tiny.MODEL.end_tokens)
    with (
        apart.compile(mismatched(unknown, sends, takes), SIZES).launch("local") as running,
        pytest.raises(HfError, match=f"HF956(.|\\n)*{says}"),
    ):
        running.step(tiny.prompts(ROWS))


@hf.dataflow
def own_reference(
    sequences: Sequences, actor: Weighed
) -> tuple[ReferenceLogProbs, ImitationMetrics, ReferenceLogProbs, hf.PerRank[int]]:
    return actor.base_log_probs(sequences), actor.imitate(sequences), actor.log_probs(sequences), actor.held()


SHARDED: dict[str, tuple[Any, dict[str, Any], w.BatchingConfig]] = {
    "float32": ("float32", {}, tiny.FIXED),
    "bfloat16": ("bfloat16", {"autocast": "bfloat16"}, tiny.FIXED),
    "packing": ("float32", {}, w.BatchingConfig(tokens=25, packing=True)),
    "master_weights": ("bfloat16", {"master_weights": True}, tiny.FIXED),
    "compile": ("float32", {}, tiny.FIXED),
}


@pytest.mark.nightly  # launches on Ray; tests/rl/workers/test_sharding.py has one in every run
@pytest.mark.timeout(900)  # each of several processes compiles all blocks
@pytest.mark.parametrize("case", SHARDED)
def test_shards_learn_as_whole_copies_do(case: str, ray_cluster: Any) -> None:
    """The base model's log-probs too, which ranks with unlike many micro-batches compute."""
    dtype, changes, batching = SHARDED[case]

    def ran(sharding: Any, backend: Any) -> list[tuple[Any, ...]]:
        training = replace(TRAINING, sharding=sharding, checkpointing=True, **changes)
        model = replace(tiny.MODEL, dtype=dtype, compile=case == "compile" and sharding == "fsdp")
        config = replace(ACTOR, training=training, model=model, batching=batching)
        pool = hf.ResourcePool([2], use_gpu=False)
        plan = own_reference.compile(hf.Deployment(actor=hf.place(Weighed, config, pool=pool)), SIZES)
        with plan.launch(backend, worker_env=NO_GPU) as running:
            return [running.step(tiny.demonstrations(ROWS)) for _ in range(3)]

    whole, shards = ran("none", "local"), ran("fsdp", "ray")
    rel, apart_by = (1e-3, 1e-4) if dtype == "float32" else (0.05, 0.05)
    first = shards[0][0].ref_log_probs.tensor
    for (base, metrics, _, held), (others_base, others, learned, parts) in zip(whole, shards, strict=True):
        assert numbers(others) == pytest.approx(numbers(metrics), rel=rel)
        assert 0.5 <= max(parts) / max(held) < 0.51
        torch.testing.assert_close(others_base.ref_log_probs.tensor, base.ref_log_probs.tensor, rtol=0, atol=apart_by)
        assert torch.equal(others_base.ref_log_probs.tensor, first)
        assert not torch.allclose(learned.ref_log_probs.tensor, first, atol=2 * apart_by)


def test_packed_sequences_teach_an_adapter_the_same() -> None:
    batchings = w.BatchingConfig(tokens=30), w.BatchingConfig(tokens=30, packing=True)
    padded, packed = (w.Actor(replace(ACTOR, batching=batching)) for batching in batchings)
    for ours, theirs in zip(learn(packed, 3), learn(padded, 3), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    sequences = tiny.demonstrations(ROWS)
    mine, others = (role.base_log_probs(sequences).ref_log_probs.tensor for role in (packed, padded))
    torch.testing.assert_close(mine, others, rtol=1e-4, atol=1e-5)


def test_an_adapter_of_16_bits_has_no_master_weights() -> None:
    """It learns in float32 already, and frozen weights need none."""
    model = replace(tiny.MODEL, dtype="bfloat16")
    plain, copied = (
        w.Actor(replace(ACTOR, model=model, training=replace(TRAINING, master_weights=on))) for on in (False, True)
    )
    assert learn(copied, 2) == learn(plain, 2)
    assert copied.learner.masters.state() == []
    states = [role.policy.state_dict() for role in (plain, copied)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_dropout_follows_the_seed_of_the_run() -> None:
    config = replace(ACTOR, lora=replace(LORA, dropout=0.5))
    plan = weighed.compile(
        hf.Deployment(actor=hf.place(Weighed, config, pool=hf.ResourcePool([1], use_gpu=False))), SIZES
    )

    def ran(seed: int) -> list[dict[str, float]]:
        with plan.launch("local", seed=seed) as running:
            return [numbers(running.step(tiny.demonstrations(ROWS))[0]) for _ in range(3)]

    assert ran(0) == ran(0) != ran(1)


# -- what cannot have an adapter, and what can


def test_the_output_layer_can_have_an_adapter() -> None:
    actor = w.Actor(replace(ACTOR, lora=replace(LORA, targets=("lm_head",))))
    losses = [numbers(actor.imitate(tiny.demonstrations(ROWS)))["loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert actor.state()["weights"].keys() == {f"model.lm_head.lora_{side}.default.weight" for side in "AB"}


def test_slices_cannot_have_an_adapter() -> None:
    pool = hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(actor=hf.place(Weighed, ACTOR, pool=pool, mesh=hf.Mesh(tp=2)))
    with pytest.raises(hf.CheckError, match="a LoRA adapter cannot be combined with tp = 2"):
        weighed.compile(deployment, SIZES)
