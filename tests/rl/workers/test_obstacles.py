"""Roles that cannot be constructed: the check reports before the launch what the constructors raise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

import hfdsl as hf
from hfdsl.errors import ResourceError, RoleError
from hfdsl.protocols import role_facts
from hfdsl.protocols.worker import RankContext, current_rank
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, Prompts, R, ReferenceLogProbs, Rollout, Scores, Sequences, Values
from hfdsl.rl.workers.lora import Lora
from tests.rl.workers import tiny


@hf.dataflow
def generated(prompts: Prompts, role: w.Actor) -> Rollout:
    return role.generate(prompts)


@hf.dataflow
def sampled(prompts: Prompts, role: w.Sampler) -> Rollout:
    return role.generate(prompts)


@hf.dataflow
def valued(sequences: Sequences, role: w.Critic) -> Values:
    return role.values(sequences)


@hf.dataflow
def compared(sequences: Sequences, role: w.Reference) -> ReferenceLogProbs:
    return role.log_probs(sequences)


@hf.dataflow
def scored(prompts: Prompts, sequences: Sequences, role: w.Reward) -> Scores:
    return role.score(prompts, sequences)


@hf.dataflow
def asked(prompts: Prompts, role: w.ServedPolicy) -> Rollout:
    return role.generate(prompts)


FLOWS: dict[type[hf.Worker], hf.Dataflow[..., Any]] = {
    w.ServedPolicy: asked,
    w.Actor: generated,
    w.Sampler: sampled,
    w.InFlightSampler: sampled,
    w.Critic: valued,
    w.Reference: compared,
}
WHOLE, SLICED, SHARDED = hf.Mesh(), hf.Mesh(tp=2), hf.Mesh(dp=2)
COMPILED = replace(tiny.MODEL, compile=True)
LORA = Lora(rank=4)
COSINE = w.TrainingConfig(w.OptimizerConfig(schedule="cosine", warmup_steps=2))
FSDP = w.TrainingConfig(sharding="fsdp")
SAMPLER = w.SamplerConfig(tiny.MODEL, tiny.GENERATION)
QUERIES = "the model has no linear layer 'query_proj'; did you mean 'q_proj'? It has down_proj, gate_proj, k_proj, "
ADAPTER = "a LoRA adapter cannot be combined with {}, which slices the model"
COMPILE = "compile = true cannot be combined with {}, which slices the model"
CAPTURED = 'engine = "captured" needs the whole model on every rank, and {} gives a part to each'


def engine(name: Any, **changes: Any) -> w.GenerationConfig:
    return replace(tiny.GENERATION, engine=name, **changes)


def actor(**changes: Any) -> w.ActorConfig:
    return replace(tiny.ACTOR, **changes)


def model(config: dict[str, Any] | None = None, **changes: Any) -> w.ModelConfig:
    return replace(tiny.MODEL, config={**tiny.LLAMA, **(config or {})}, **changes)


def served(url: str) -> w.ServedConfig:
    return w.ServedConfig(w.ServerConfig(url, "m"), tiny.GENERATION, pad_token=0)


def judge(url: str = "http://host/v1", **changes: Any) -> w.JudgeConfig:
    config = w.JudgeConfig(w.ServerConfig(url, "m"), question="{response}", tokenizer="math:sqrt")
    return replace(config, **changes)


ADDRESS = 'a ServerConfig needs url="http://host:port/v1" or one with https'
EAGER, PACKED = model(attention="eager"), w.BatchingConfig(packing=True)
UNPACKED = "packing=true cannot be used here: attention='eager' does not support sequences of different lengths; 's"

CASES: list[tuple[type[hf.Worker], Any, hf.Mesh, str, str]] = [
    (w.Actor, actor(lora=LORA), SLICED, "HF715", ADAPTER.format("tp = 2")),
    (w.Critic, replace(tiny.CRITIC, lora=LORA), SLICED, "HF715", ADAPTER.format("tp = 2")),
    (w.RewardLearner, replace(tiny.CRITIC, lora=LORA), SLICED, "HF715", ADAPTER.format("tp = 2")),
    (w.Sampler, replace(SAMPLER, lora=LORA), hf.Mesh(tp=4, gen_tp=2), "HF715", ADAPTER.format("gen_tp = 2")),
    (w.InFlightSampler, replace(SAMPLER, lora=LORA), SLICED, "HF715", ADAPTER.format("tp = 2")),
    (w.Actor, actor(model=COMPILED), hf.Mesh(tp=2, gen_tp=1), "HF715", COMPILE.format("tp = 2")),
    (w.Reference, w.ReferenceConfig(COMPILED), SLICED, "HF715", COMPILE.format("tp = 2")),
    (w.RewardModel, w.RewardConfig(COMPILED), SLICED, "HF715", COMPILE.format("tp = 2")),
    (w.Actor, actor(generation=engine("captured")), SLICED, "HF715", CAPTURED.format("tp = 2")),
    (
        w.Actor,
        actor(generation=engine("captured"), training=FSDP),
        SHARDED,
        "HF715",
        CAPTURED.format('sharding = "fsdp"'),
    ),
    (w.Actor, actor(training=COSINE), WHOLE, "HF812", 'schedule = "cosine" needs total_steps, the update at which'),
    (w.RewardLearner, replace(tiny.CRITIC, training=COSINE), WHOLE, "HF812", 'schedule = "cosine" needs total_steps'),
    (w.Critic, replace(tiny.CRITIC, lora=Lora(4, targets=("query_proj",))), WHOLE, "HF962", QUERIES),
    (w.Actor, actor(lora=Lora(17)), WHOLE, "HF962", "rank = 17 is more than 'model.layers.0.self_attn.k_proj' can use"),
    (
        w.Sampler,
        replace(SAMPLER, generation=engine("vllm", adapter="apart"), lora=Lora(4, targets=("lm_head",))),
        WHOLE,
        "HF963",
        "adapter = \"apart\", and vLLM supports no adapter of 'lm_head'",
    ),
    (
        w.Sampler,
        replace(SAMPLER, generation=engine("vllm", engine_tp=3)),
        hf.Mesh(dp=4),
        "HF957",
        "engine_tp = 3 does not divide the 4 ranks of dp",
    ),
    (
        w.Actor,
        actor(model=model({"model_type": "mixtral"}), generation=engine("vllm")),
        WHOLE,
        "HF951",
        "vLLM may give wrong weights to the experts of a mixtral in an update",
    ),
    (w.Actor, actor(model=model({"pad_token_id": None})), WHOLE, "HF812", "the model 'llama' has no pad token, and"),
    (w.Actor, actor(model=model(end_tokens=(1, 99))), WHOLE, "HF812", "end_tokens names the token 99, and the model"),
    (w.Sampler, replace(SAMPLER, model=model(pad_token=16)), WHOLE, "HF812", "pad_token names the token 16, and the"),
    (w.Reference, w.ReferenceConfig(w.ModelConfig()), WHOLE, "HF812", "the model has neither a path nor a configurat"),
    (w.Verifier, w.VerifierConfig(), WHOLE, "HF812", "a verifier takes either a dataset or a function, and has neit"),
    (
        w.Verifier,
        w.VerifierConfig("spell_backward", "math:sqrt", tokenizer="math:sqrt"),
        WHOLE,
        "HF812",
        "a verifier takes either a dataset or a function, and has both",
    ),
    (w.Verifier, w.VerifierConfig("spell_backward"), WHOLE, "HF812", "the scorer of 'spell_backward' reads texts"),
    (w.ServedPolicy, served("host:8000/v1"), WHOLE, "HF812", f"{ADDRESS}, got 'host:8000/v1'"),
    (w.ServedPolicy, served("http://u:secret@host:65536"), WHOLE, "HF812", f"{ADDRESS}, got 'http://***@host:65536'"),
    (w.Judge, judge(url="http://"), WHOLE, "HF812", f"{ADDRESS}, got 'http://'"),
    (w.Judge, judge(pattern="("), WHOLE, "HF812", "a JudgeConfig has pattern='(': missing )"),
    (w.Judge, judge(pattern="a{99999999999}"), WHOLE, "HF812", "a JudgeConfig has pattern='a{99999999999}': the rep"),
    (w.Judge, judge(question="{promt}"), WHOLE, "HF812", "a JudgeConfig has question='{promt}': there is no {promt}"),
    (w.Judge, judge(question="{}"), WHOLE, "HF812", "a JudgeConfig has question='{}': there is no {}; it takes"),
    (w.Judge, judge(question="{response"), WHOLE, "HF812", "a JudgeConfig has question='{response': "),
    (w.Actor, actor(model=EAGER, batching=PACKED), WHOLE, "HF812", UNPACKED),
    (w.Sampler, replace(SAMPLER, model=EAGER, batching=PACKED), WHOLE, "HF812", UNPACKED),
    (w.Reference, w.ReferenceConfig(EAGER, batching=PACKED), WHOLE, "HF812", UNPACKED),
    (w.Critic, replace(tiny.CRITIC, model=EAGER, batching=PACKED), WHOLE, "HF812", UNPACKED),
    (w.RewardModel, w.RewardConfig(EAGER, batching=PACKED), WHOLE, "HF812", UNPACKED),
]

NAMES = [f"{code}-{role.__name__}" for role, _, _, code, _ in CASES]


@contextmanager
def on(mesh: hf.Mesh) -> Iterator[None]:
    """Construct the first rank of a mesh."""
    token = current_rank.set(RankContext(world_size=mesh.world_size, mesh=mesh))
    try:
        yield
    finally:
        current_rank.reset(token)


def placed(role: type[hf.Worker], config: Any, mesh: hf.Mesh) -> hf.Deployment:
    return hf.Deployment(role=hf.place(role, config, pool=hf.ResourcePool([mesh.world_size]), mesh=mesh))


def reported(role: type[hf.Worker], config: Any, mesh: hf.Mesh) -> list[tuple[str, str]]:
    flow = FLOWS.get(role, next((FLOWS[base] for base in role.__mro__ if base in FLOWS), scored))
    report = flow.check(placed(role, config, mesh), {B: 8, P: tiny.PROMPT, R: tiny.RESPONSE})
    return [(finding.code, finding.message) for finding in report if finding.code in {case[3] for case in CASES}]


@pytest.mark.parametrize(("role", "config", "mesh", "code", "text"), CASES, ids=NAMES)
def test_the_check_reports_what_the_constructor_raises(
    role: type[hf.Worker], config: Any, mesh: hf.Mesh, code: str, text: str
) -> None:
    [(finding_code, message)] = reported(role, config, mesh)
    assert finding_code == code
    assert message.startswith(f"'role': {text}")
    with on(mesh), pytest.raises(ResourceError) as error:
        role(config)
    assert error.value.code == code
    assert error.value.message.startswith(message.removeprefix("'role': "))


@pytest.mark.parametrize(
    ("role", "config", "mesh"),
    [
        (w.Actor, actor(lora=LORA, model=COMPILED, training=FSDP), SHARDED),
        (w.Actor, actor(generation=engine("captured"), training=FSDP), WHOLE),  # one rank has the whole model
        (w.Actor, actor(generation=engine("captured")), hf.Mesh(tp=2, gen_tp=1)),  # gathers it to sample
        (w.Sampler, replace(SAMPLER, model=COMPILED, lora=LORA, generation=engine("vllm")), SLICED),
        (w.Sampler, replace(SAMPLER, model=COMPILED, lora=LORA), hf.Mesh(tp=2, gen_tp=1)),
        (w.Critic, replace(tiny.CRITIC, model=model({"pad_token_id": None})), WHOLE),  # it fills nothing
        (w.Critic, replace(tiny.CRITIC, training=w.TrainingConfig(w.OptimizerConfig(warmup_steps=2))), WHOLE),
        (w.Actor, actor(lora=Lora(4, targets=("query_proj",)), model=model({"model_type": "gemma"})), WHOLE),
        (w.Verifier, w.VerifierConfig("spell_backward", tokenizer="math:sqrt"), WHOLE),
        (w.Verifier, w.VerifierConfig(function="math:sqrt"), WHOLE),
        (w.Verifier, w.VerifierConfig(function="math:sqrt"), hf.Mesh(pp=2, dp=2)),  # it has no model
        (w.ServedPolicy, served("https://u:p@host:8000/v1?key=1"), WHOLE),
        (w.Judge, judge(question="{{}} {prompt:>4} {response!r} {task[answer][0].real}"), WHOLE),
        (w.Judge, judge(question="", pattern=""), WHOLE),
        (w.Actor, actor(model=EAGER), WHOLE),
        (w.Actor, actor(model=model(attention="sdpa"), batching=PACKED), WHOLE),
        (w.Actor, actor(model=model(attention="flash_attention_2"), batching=PACKED), WHOLE),
        (w.Sampler, replace(SAMPLER, model=EAGER, batching=PACKED, generation=engine("vllm")), WHOLE),  # packs nothing
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_nothing_is_reported_of_roles_that_can_be_constructed(
    role: type[hf.Worker], config: Any, mesh: hf.Mesh
) -> None:
    assert reported(role, config, mesh) == []


STAGES = "pp = 2 does not divide the model: a ready-made role has no pipeline stages"


@pytest.mark.parametrize(
    ("role", "config"),
    [
        (w.Actor, tiny.ACTOR),
        (w.Critic, tiny.CRITIC),
        (w.RewardLearner, tiny.CRITIC),
        (w.Reference, w.ReferenceConfig(tiny.MODEL)),
        (w.RewardModel, w.RewardConfig(tiny.MODEL)),
        (w.Sampler, SAMPLER),
        (w.InFlightSampler, SAMPLER),
    ],
)
def test_a_model_has_no_pipeline_stages(role: type[hf.Worker], config: Any) -> None:
    """Every stage of a mesh would have all of it."""
    mesh = hf.Mesh(pp=2, dp=2)
    report = FLOWS.get(role, scored).check(placed(role, config, mesh), {B: 8, P: tiny.PROMPT, R: tiny.RESPONSE})
    [finding] = [finding for finding in report if finding.code == "HF813"]
    assert finding.message.startswith(f"'role': {STAGES}")
    assert finding.notes == ("use the axes dp and tp alone, such as dp = 4 and tp = 1",)
    with on(mesh), pytest.raises(ResourceError, match=f"HF813: {STAGES}"):
        role(config)


def test_slices_that_a_policy_gathers_to_sample_can_be_captured() -> None:
    """The constructor does not refuse a whole model on every rank of generation."""
    config = actor(generation=engine("captured"))
    pool = hf.ResourcePool([2], use_gpu=False)
    deployment = hf.Deployment(role=hf.place(w.Actor, config, pool=pool, mesh=hf.Mesh(tp=2, gen_tp=1)))
    sizes = {B: 2, P: tiny.PROMPT, R: tiny.RESPONSE}
    with generated.compile(deployment, sizes).launch("local") as running:
        assert running.step(tiny.prompts(2)).ids.tensor.shape == (2, tiny.PROMPT + tiny.RESPONSE)


class WholeActor(w.Actor):
    """An actor whose own constructor leaves the adapter out."""

    def __init__(self, config: w.ActorConfig) -> None:
        super().__init__(replace(config, lora=None))


class AdaptedActor(w.Actor):
    """An actor whose own constructor adds an adapter."""

    def __init__(self, config: w.ActorConfig) -> None:
        super().__init__(replace(config, lora=LORA))


def test_an_obstacle_that_only_the_constructor_knows_keeps_its_code_in_a_launch() -> None:
    deployment = placed(AdaptedActor, tiny.ACTOR, SLICED)
    plan = generated.compile(deployment, {B: 2, P: tiny.PROMPT, R: tiny.RESPONSE})
    with pytest.raises(RoleError, match=ADAPTER.format("tp = 2")) as error, plan.launch("local") as running:
        running.step(tiny.prompts(2))
    assert error.value.code == "HF715"


class NamedActor(w.Actor):
    """An actor with the constructor of its base class."""


def test_a_constructor_of_its_own_is_not_judged_by_the_facts_of_its_base_class() -> None:
    assert reported(WholeActor, actor(lora=LORA), SLICED) == []
    [(code, _)] = reported(NamedActor, actor(lora=LORA), SLICED)
    assert code == "HF715"


def test_arguments_that_do_not_fit_state_no_obstacle() -> None:
    pool, place_untyped = hf.ResourcePool([SLICED.world_size]), cast(Any, hf.place)
    without_config = place_untyped(w.Actor, settings=actor(lora=LORA), pool=pool, mesh=SLICED)
    without_settings = place_untyped(w.Actor, None, pool=pool, mesh=SLICED)
    assert role_facts.obstacles.of(without_config) == role_facts.obstacles.of(without_settings) == ()
