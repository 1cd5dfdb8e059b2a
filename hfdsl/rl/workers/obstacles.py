"""Why a ready-made role cannot be constructed, as far as its configuration and its mesh show.

The check of a dataflow reports these obstacles before the launch, and the constructors raise them. What only the loaded
model shows, such as the layers of a type that ``linear_layers`` does not know, is left to the constructors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from hfdsl.errors import ResourceError
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.role_facts import Obstacle
from hfdsl.rl.hub import local_folder
from hfdsl.rl.workers.config import (
    ActorConfig,
    CriticConfig,
    JudgeConfig,
    ModelConfig,
    OptimizerConfig,
    ReferenceConfig,
    RewardConfig,
    SamplerConfig,
    ServedConfig,
    VerifierConfig,
)
from hfdsl.rl.workers.engine_adapters import adapter_problem
from hfdsl.rl.workers.gpu_memory import ModelRoleConfig
from hfdsl.rl.workers.linear_layers import linear_layers, targets_of
from hfdsl.rl.workers.lora import Lora, large_rank, matches, missing_target, nearest_target
from hfdsl.rl.workers.saved_folders import is_saved_model
from hfdsl.rl.workers.server_config import address_problem, pattern_problem, question_problem
from hfdsl.rl.workers.slicing import group_problem, model_config, parts_problem, sliced
from hfdsl.rl.workers.special_tokens import PAD_ADVICE, lacks_pad, no_pad_token, own_ends
from hfdsl.types.numbers import divisors

GeneratingConfig: TypeAlias = ActorConfig | SamplerConfig

OUTPUT: Final = "lm_head"
"""The output layer, which an adapter may name; loading the model decides whether it can have one."""

MIXTURES: Final = ("mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe")
"""Types of models whose layers have experts, unless a configuration excludes layers."""


def refuse(obstacles: Iterable[Obstacle]) -> None:
    """Refuse to construct a role with an obstacle.

    Raises:
        ResourceError: with the code of the first one.
    """
    for obstacle in obstacles:
        raise ResourceError(obstacle.code, obstacle.message)


def obstacles(mesh: Mesh, config: ModelRoleConfig) -> list[Obstacle]:
    """Why a role with a model cannot be constructed; none if nothing is known against it.

    >>> critic = CriticConfig(ModelConfig(path="model"), lora=Lora(rank=8))
    >>> [obstacle.text for obstacle in obstacles(Mesh(tp=2), critic)]
    ['a LoRA adapter cannot be combined with tp = 2, which slices the model']
    """
    return [*_of_model_role(mesh, config)]


def _of_model_role(mesh: Mesh, config: ModelRoleConfig) -> Iterator[Obstacle]:
    yield from model_obstacles(config.model)
    yield from _of_packing(config)
    yield from _of_stages(mesh)
    yield from _of_slices(mesh, config)
    if not isinstance(config, (ReferenceConfig, RewardConfig)) and config.lora is not None:
        yield from _of_adapter(config.model, config.lora)
    if isinstance(config, (ActorConfig, SamplerConfig)):
        yield from _of_tokens(config.model)
        yield from _of_engine(mesh, config)
    if isinstance(config, (ActorConfig, CriticConfig)):
        yield from schedule_obstacles(config.training.optimizer)


def model_obstacles(model: ModelConfig) -> Iterator[Obstacle]:
    """A model is a saved one, or has a type."""
    if model.path is None and "model_type" not in (model.config or {}):
        yield Obstacle(
            "HF812",
            "the model has neither a path nor a configuration with model_type",
            "model",
            help='set path to the folder of a saved model, or config, with a model_type such as "llama", for a new one',
        )


def _of_packing(config: ModelRoleConfig) -> Iterator[Obstacle]:
    """Packed sequences need an attention for different lengths, where a model of transformers takes them."""
    attention = config.model.attention
    problem = attention_problem(attention) if config.batching.packing and attention is not None else None
    if problem is not None and not (isinstance(config, SamplerConfig) and config.generation.engine == "vllm"):
        yield Obstacle(
            "HF812",
            f"packing=true cannot be used here: {problem}",
            "batching.packing",
            values=(False,),
            help="packing=false can",
            conflicts=(("model.attention", f'attention = "{attention}"'),),
        )


def attention_problem(attention: str) -> str | None:
    """Why an attention of transformers cannot take packed sequences; None if it can.

    >>> attention_problem("flash_attention_2"), attention_problem("eager")
    (None, "attention='eager' does not support sequences of different lengths; 'sdpa' does")
    """
    if attention == "sdpa" or attention.startswith("flash_attention"):
        return None
    return f"attention={attention!r} does not support sequences of different lengths; 'sdpa' does"


def _of_stages(mesh: Mesh) -> Iterator[Obstacle]:
    """A model is not cut into pipeline stages: each of them would have all of it, and repeat all work."""
    if mesh.pp > 1:
        yield Obstacle(
            "HF813",
            f"pp = {mesh.pp} does not divide the model: a ready-made role has no pipeline stages, so that {mesh.pp} "
            "ranks would repeat the work of one",
            "mesh",
            help=f"use the axes dp and tp alone, such as dp = {mesh.dp * mesh.pp} and tp = {mesh.tp}",
        )


def _of_slices(mesh: Mesh, config: ModelRoleConfig) -> Iterator[Obstacle]:
    """A model that is compiled or has an adapter is whole, unless an engine has its own copy of it."""
    cut = _cut(mesh, config)
    if cut is None:
        return
    if config.model.compile:
        yield Obstacle(
            "HF715",
            f"compile = true cannot be combined with {cut}, which slices the model",
            "model.compile",
            values=(False,),
            help="set compile to false, or use a mesh without tp",
            conflicts=(("mesh", cut),),
        )
    if not isinstance(config, (ReferenceConfig, RewardConfig)) and config.lora is not None:
        sharded = 'training.sharding = "fsdp" shards a model with its adapter over dp'
        yield Obstacle(
            "HF715",
            f"a LoRA adapter cannot be combined with {cut}, which slices the model",
            "lora",
            help='engine = "vllm" slices an adapter, too' if isinstance(config, SamplerConfig) else sharded,
            conflicts=(("mesh", cut),),
        )


def _cut(mesh: Mesh, config: ModelRoleConfig) -> str | None:
    """The axis that slices the model of a role, with its size; None for a whole model."""
    if not isinstance(config, SamplerConfig):
        return f"tp = {mesh.tp}" if mesh.tp > 1 else None
    return None if config.generation.engine == "vllm" else _sampling_cut(mesh)


def _sampling_cut(mesh: Mesh) -> str | None:
    """The axis that slices the model that samples, with its size; None for a whole model."""
    axis = "tp" if mesh.gen_tp is None else "gen_tp"
    return f"{axis} = {mesh.gen_tp_size}" if mesh.gen_tp_size > 1 else None


def _of_adapter(model: ModelConfig, lora: Lora) -> Iterator[Obstacle]:
    """The targets of an adapter are layers of the model, and its rank is at most a side of their weights."""
    layers, targets = linear_layers(model), targets_of(lora)
    if layers is None:
        return
    ends = sorted({path.rpartition(".")[2] for path in layers})
    for i, target in enumerate(targets):
        if not any(matches(path, target) for path in (*layers, OUTPUT)):
            nearest = nearest_target(target, ends)
            mended = ([*targets[:i], nearest, *targets[i + 1 :]],) if nearest is not None else ()
            yield Obstacle("HF962", missing_target(target, layers), "lora.targets", values=mended)
    targeted = {
        path: min(sides)
        for path, sides in layers.items()
        if lora.targets == "all-linear" or any(matches(path, target) for target in targets)
    }
    path = min(targeted, key=lambda path: targeted[path], default=None)
    if path is not None and lora.rank > targeted[path]:
        largest = targeted[path]
        text = large_rank(lora.rank, path, layers[path])
        yield Obstacle("HF962", text, "lora.rank", values=(largest,), help=f"set rank to {largest}")


def _of_tokens(model: ModelConfig) -> Iterator[Obstacle]:
    """A model that samples has a token that fills responses, and the tokens that its configuration names."""
    # Whether the generation_config.json of a folder that is not there yet names a token is unknown.
    if lacks_pad(model) and (model.path is None or is_saved_model(local_folder(model.path))):
        ends = [*(model.end_tokens or ()), *own_ends(model)]
        yield Obstacle("HF812", no_pad_token(model), "model.pad_token", values=tuple(ends[:1]), help=PAD_ADVICE)
    vocabulary = model_config(model).get("vocab_size")
    if isinstance(vocabulary, int):
        for name, tokens in (("pad_token", [model.pad_token]), ("end_tokens", model.end_tokens or ())):
            yield from _of_vocabulary(name, tokens, vocabulary)


def _of_vocabulary(name: str, tokens: Sequence[int | None], vocabulary: int) -> Iterator[Obstacle]:
    for token in tokens:
        if token is not None and token >= vocabulary:
            yield Obstacle("HF812", missing_token(name, token, vocabulary), f"model.{name}")


def missing_token(name: str, token: int, vocabulary: int) -> str:
    """The message about a token that a configuration names and its model does not have.

    >>> missing_token("pad_token", 16, 16)
    'pad_token names the token 16, and the model has the tokens 0 to 15'
    """
    return f"{name} names the token {token}, and the model has the tokens 0 to {vocabulary - 1}"


def _of_engine(mesh: Mesh, config: GeneratingConfig) -> Iterator[Obstacle]:
    """The engine of a role can sample with its model, on its mesh, and with its adapter."""
    if config.generation.engine == "captured":
        yield from _of_captured_steps(mesh, config)
    if config.generation.engine == "vllm":
        yield from _of_engine_ranks(mesh, config)
        yield from _of_engine_model(config)


def _of_captured_steps(mesh: Mesh, config: GeneratingConfig) -> Iterator[Obstacle]:
    cut, setting = _sampling_cut(mesh), "mesh"
    is_sharded = isinstance(config, ActorConfig) and config.training.sharding == "fsdp" and mesh.dp > 1
    if cut is None and is_sharded and mesh.tp == 1:  # generation slices of a smaller gen_tp are gathered whole
        cut, setting = 'sharding = "fsdp"', "training.sharding"
    if cut is not None:
        yield Obstacle(
            "HF715",
            f'engine = "captured" needs the whole model on every rank, and {cut} gives a part to each',
            "generation.engine",
            values=("plain",),
            help='set engine to "plain"',
            conflicts=((setting, cut),),
        )


def _of_engine_ranks(mesh: Mesh, config: GeneratingConfig) -> Iterator[Obstacle]:
    """The ranks that share an engine fit the mesh, and the model can be cut into as many parts."""
    engine_tp, values = config.generation.engine_tp, model_config(config.model)
    if mesh.tp > 1 and any(size % mesh.tp for size in sliced(config).values()):
        return  # HF813
    problem = group_problem(mesh, engine_tp) or parts_problem(values, engine_tp or mesh.gen_tp_size)
    if problem is not None:
        fitting = [size for size in divisors(mesh.dp) if parts_problem(values, size) is None]
        smaller = [size for size in fitting if mesh.tp == 1 and engine_tp is not None and size < engine_tp][-1:]
        yield Obstacle(
            "HF957",
            problem,
            "generation.engine" if engine_tp is None else "generation.engine_tp",
            values=tuple(smaller),
            help="".join(f"set engine_tp to {size}" for size in smaller),
            conflicts=(("mesh", f"tp = {mesh.tp}"),) if mesh.tp > 1 else (),
        )


def _of_engine_model(config: GeneratingConfig) -> Iterator[Obstacle]:
    """VLLM can replace the weights of the model, and hold its adapter where it is to be apart."""
    values, lora = model_config(config.model), config.lora
    is_dense_somewhere = values.get("mlp_only_layers") or values.get("decoder_sparse_step", 1) != 1
    if values.get("model_type") in MIXTURES and not is_dense_somewhere:
        yield Obstacle(
            "HF951",
            f"vLLM may give wrong weights to the experts of a {values['model_type']} in an update",
            "generation.engine",
            values=("auto",),
            help='set engine to "auto"',
            conflicts=(("model", "a mixture of experts"),),
        )
    if lora is not None and config.generation.adapter == "apart" and "model_type" in values:
        yield from adapter_obstacles(lora, values)


def adapter_obstacles(lora: Lora, values: dict[str, object]) -> Iterator[Obstacle]:
    """An adapter that an engine is to hold apart from the weights of a model of this configuration can be so."""
    problem = adapter_problem(lora, values)
    if problem is not None:
        yield Obstacle(
            "HF963",
            f'adapter = "apart", and {problem}',
            "generation.adapter",
            values=("merged",),
            help='set adapter to "merged"',
            conflicts=(("lora", "the adapter"),),
        )


def schedule_obstacles(optimizer: OptimizerConfig) -> Iterator[Obstacle]:
    """A learning rate that falls has an update at which it ends."""
    if optimizer.schedule != "constant" and optimizer.total_steps is None:
        yield Obstacle(
            "HF812",
            f'schedule = "{optimizer.schedule}" needs total_steps, the update at which it ends',
            "training.optimizer.schedule",
        )


def served_obstacles(mesh: Mesh, config: ServedConfig | JudgeConfig) -> list[Obstacle]:
    """Why a role that calls a server cannot be constructed; none if nothing is known against it.

    >>> from hfdsl.rl.workers.config import ServerConfig
    >>> judge = JudgeConfig(ServerConfig("http://host:8000/v1", "judge"), "{response}", "tokenizer", pattern="(")
    >>> [obstacle.text for obstacle in served_obstacles(Mesh(), judge)]
    ["a JudgeConfig has pattern='(': missing ), unterminated subpattern at position 0"]
    """
    problems = {"server.url": address_problem(config.server.url)}
    if isinstance(config, JudgeConfig):
        problems |= {"question": question_problem(config.question), "pattern": pattern_problem(config.pattern)}
    return [Obstacle("HF812", problem, setting) for setting, problem in problems.items() if problem is not None]


def verifier_obstacles(mesh: Mesh, config: VerifierConfig) -> list[Obstacle]:
    """Why a verifier cannot be constructed; none if nothing is known against it.

    >>> [obstacle.text for obstacle in verifier_obstacles(Mesh(), VerifierConfig())]
    ['a verifier takes either a dataset or a function, and has neither']
    """
    return [*_of_rule(config)]


def _of_rule(config: VerifierConfig) -> Iterator[Obstacle]:
    """A verifier has one rule, and the scorer of a data set gets texts."""
    if (config.dataset is None) == (config.function is None):
        both = "both" if config.dataset is not None else "neither"
        yield Obstacle(
            "HF812",
            f"a verifier takes either a dataset or a function, and has {both}",
            help="dataset is the name of a reasoning-gym data set; a function takes a response and its task, a dict",
        )
    if config.dataset is not None and config.tokenizer is None:
        yield Obstacle(
            "HF812",
            f"the scorer of '{config.dataset}' reads texts, and without a tokenizer it would be given tokens",
            "tokenizer",
            help="set tokenizer to the one of the data",
            conflicts=(("dataset", "this data set"),),
        )
