"""A role's engine: it is started, has the role's weights in their newest version, and samples the role's rows.

An actor's engine in three steps, with the version that each side has::

    role                             policy    engine
    construct                          1          0     the engine starts, with no weights of use
    generate                           1          1     the weights go to the engine, then rows are sampled
    update                             2          1
    generate, generate                 2          2     they go once

The policy counts its version up whenever its weights are written. An engine that was ended has version 0 again: the
next call starts another one, and the weights follow by the same rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final, TypeAlias

import torch

from hfdsl.errors import HfError, ResourceError, WiringError
from hfdsl.protocols.call import current_call
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.engines.interface import Completion, EngineStart
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.rl.engines.ranks import EngineRanks
from hfdsl.rl.engines.versions import check_version, installed_version
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import FloatDType, GenerationConfig
from hfdsl.rl.workers.gpu_memory import BLOCK_TOKENS, token_bytes
from hfdsl.rl.workers.slicing import parts_problem
from hfdsl.rl.workers.state_bytes import ITEM_BYTES

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The weights of a policy: their names and shapes."""

Weights: TypeAlias = Iterable[tuple[str, torch.Tensor]]
"""Weights by those names; an iterable may gather them one by one."""

ADAPTERS: Final = {"vllm": "hfdsl.rl.engines.vllm_engine:VllmEngine"}
"""The adapters, by what ``GenerationConfig.engine`` says."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Responses i64[B, R], their mask bool[B, R], and the log-probs that they were sampled with, f32[B, R]."""

    response: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor


@dataclass(frozen=True, slots=True)
class Requests:
    """The prompts that an engine gets in a call, their seeds, and which of them are this rank's own."""

    prompts: list[list[int]]
    seeds: list[int] | None
    rows: slice


class EngineHandle:
    """The engine of a role, for a model with a configuration of transformers and these weights.

    ``ranks`` share the engine, and ``weight_peers`` gather its weights together.

    Raises:
        ResourceError: HF951 where no engine is installed, or it refuses the model; HF952 where its cache does not fit;
            HF957 where the model cannot be cut into as many parts as there are ranks.
    """

    def __init__(
        self,
        model_config: Any,
        shapes: Shapes,
        generation: GenerationConfig,
        dtype: FloatDType,
        end_tokens: Sequence[int],
        pad_token: int,
        ranks: EngineRanks,
        weight_peers: AxisGroup,
    ) -> None:
        self.ranks, self.weight_peers, parts = ranks, weight_peers, ranks.size
        version = installed_version()
        if version is None:
            problem = 'engine="vllm" needs vLLM, which is not installed'
            raise ResourceError("HF951", f"{problem}; pip install 'hfdsl[vllm]'")
        check_version(version)
        self.shapes, self.pad_token, self.deadline = shapes, pad_token, generation.engine_deadline
        text = model_config.get_text_config()
        self.vocabulary: int = text.vocab_size
        experts = next((name for name, shape in shapes.items() if ".experts." in name and len(shape) > 2), None)
        if experts is not None:
            raise ResourceError(
                "HF951",
                f"engine={generation.engine!r} may give experts wrong weights in an update, and the model has "
                f"'{experts.removeprefix('model.')}'; generate with another engine",
            )
        refusal = parts_problem(text.to_dict(), parts)
        if refusal is not None:
            raise ResourceError("HF957", refusal)
        limit = getattr(text, "max_position_embeddings", None) or generation.cache_tokens
        self.start = EngineStart(
            engine=generation.engine,
            adapter=ADAPTERS[generation.engine],
            config=json.dumps(_untied(model_config.to_dict())),
            dtype=dtype,
            max_length=min(limit, generation.cache_tokens),
            cache_bytes=(generation.cache_tokens + BLOCK_TOKENS) * _token_bytes(text, dtype, parts),
            weight_bytes=sum(map(prod, shapes.values())) * ITEM_BYTES[dtype] // parts,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            max_tokens=generation.max_tokens,
            end_tokens=tuple(end_tokens),
        )
        self.process = self._started()
        self.asleep = False

    def sample(
        self, ids: torch.Tensor, mask: torch.Tensor, version: int, weights: Callable[[], Weights], *, greedy: bool
    ) -> Sampled:
        """Responses to prompts i64[B, P], bool[B, P], by the weights of this version.

        ``weights`` gives them where the engine has another version.

        Raises:
            HfError: HF953 for a prompt that the engine cannot take, with its row.
            ResourceError: HF954 where the engine died; HF956 for weights of another model.
            DeadlineError: HF955 where it hangs.
        """
        requests = self._requests(ids, mask, greedy=greedy)
        try:
            completions = self.ranks.together(lambda: self._completions(requests, version, weights), _tokens)
        except HfError:
            self.process.close()  # on every rank, whichever it failed on
            raise
        completions = completions[requests.rows]
        rows, length = len(completions), self.start.max_tokens
        response = torch.full((rows, length), self.pad_token)
        response_mask, log_probs = torch.zeros(rows, length, dtype=torch.bool), torch.zeros(rows, length)
        for row, completion in enumerate(completions):
            count = len(completion.tokens)
            response[row, :count] = torch.tensor(completion.tokens)
            response_mask[row, :count] = True
            log_probs[row, :count] = torch.tensor(completion.log_probs)
        return Sampled(response.to(ids.device), response_mask.to(ids.device), log_probs.to(ids.device))

    def sleep(self) -> None:
        """Give back the memory of the device, where the engine has it."""
        if not self.asleep and self.process.alive:
            self.process.sleep()
            self.asleep = True

    def _completions(self, requests: Requests, version: int, weights: Callable[[], Weights]) -> list[Completion]:
        """Completions of all requests, by the weights of this version."""
        self._load(version, weights)
        return self.process.generate(requests.prompts, requests.seeds) if requests.prompts else []

    def _load(self, version: int, weights: Callable[[], Weights]) -> None:
        """Have an engine that is awake and has this version of the weights.

        Weights that are sharded are gathered by all ranks that hold a part. So where one rank needs them all take part,
        also one whose engine failed meanwhile: the others would wait for it.
        """
        alive = all(self.ranks.gather(self.process.alive))
        is_stale = self.weight_peers.all_reduce(int(not alive or self.process.version != version), "max")
        stream = iter(weights() if is_stale else ())
        try:
            if not alive:
                self.process.close()
                self.process, self.asleep = self._started(), False
            if self.asleep:
                self.process.wake("weights")
            if self.process.version != version:
                self.process.load(self._checked(stream), version)
            if self.asleep:
                self.process.wake("cache")
                self.asleep = False
        finally:
            for _ in stream:
                pass

    def _started(self) -> EngineProcess:
        link = self.ranks.link()
        start = self.start if link is None else replace(self.start, rendezvous=link.rendezvous)
        try:
            return EngineProcess(start, self.deadline, link)
        except ResourceError as error:
            if error.code == "HF952":
                error = ResourceError("HF952", f"{error.message}; set a smaller generation.cache_tokens")
            raise error from None

    def check_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Refuse the weights of another model (HF956)."""
        for _ in self._checked(weights.items()):
            pass

    def _checked(self, weights: Weights) -> Weights:
        """The weights, all of which the model has, and all that it has.

        Raises:
            WiringError: HF956.
        """
        missing = dict(self.shapes)
        for name, weight in weights:
            shape, saved = missing.pop(name, None), name.removeprefix("model.")  # ``Policy`` holds the model as "model"
            if shape is None:
                twice = name in self.shapes
                problem = f"was given the weight '{saved}' twice" if twice else f"has no weight '{saved}' in its model"
                raise WiringError("HF956", f"the engine {problem}")
            if shape != tuple(weight.shape):
                problem = f"the engine's model has '{saved}' of shape {shape}, and got one of {tuple(weight.shape)}"
                raise WiringError("HF956", problem)
            yield saved, weight
        if missing:
            saved = next(iter(missing)).removeprefix("model.")
            raise WiringError("HF956", f"the engine was not given the weight '{saved}' of its model")

    def _requests(self, ids: torch.Tensor, mask: torch.Tensor, *, greedy: bool) -> Requests:
        """What the engine is to do: rows of this rank, and of the others that share it.

        Raises:
            HfError: HF953 for a row that it cannot take, on all ranks.
        """
        prompts = [row[real].tolist() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
        problem = self._prompt_problem(prompts)
        seeds = None if greedy else current_call().row_seeds()
        if not self.ranks.has_other_rows:
            if problem is not None:
                raise problem
            return Requests(prompts, seeds, slice(0, len(prompts)))
        problems = [problem, *self.ranks.peers.all_gather(problem)]
        for first in filter(None, problems):
            raise first
        parts = self.ranks.gather((prompts, seeds))
        before = sum(len(part) for part, _ in parts[: self.ranks.rank])
        return Requests(
            [prompt for part, _ in parts for prompt in part],
            None if seeds is None else [seed for _, part in parts for seed in part or ()],
            slice(before, before + len(prompts)),
        )

    def _prompt_problem(self, prompts: Sequence[Sequence[int]]) -> HfError | None:
        room = self.start.max_length - self.start.max_tokens
        for row, prompt in enumerate(prompts):
            if not 0 < len(prompt) <= room:
                return bad_row(
                    row,
                    f"its prompt has {len(prompt)} tokens, and the engine takes 1 to {room}: {self.start.max_length} "
                    f"(the positions of the model, or cache_tokens) less {self.start.max_tokens} of a response",
                    "HF953",
                )
            if min(prompt) < 0 or max(prompt) >= self.vocabulary:
                token = max(prompt) if max(prompt) >= self.vocabulary else min(prompt)
                return bad_row(
                    row,
                    f"its prompt has the token {token}, and the engine's model {self.vocabulary} tokens: is the "
                    "tokenizer that of the model?",
                    "HF953",
                )
        return None


def engine_config(model: Any) -> Any:
    """The configuration of a model of transformers, with the name of its class, by which an engine knows it."""
    config = deepcopy(model.config)
    config.architectures = [type(model).__name__]
    return config


def _token_bytes(config: Any, dtype: FloatDType, parts: int) -> int:
    """The bytes of the keys and values of a token of a model in each of its engine's parts."""
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return token_bytes(config.num_hidden_layers, key_heads, head_width, ITEM_BYTES[dtype], parts)


def _untied(values: dict[str, Any]) -> dict[str, Any]:
    """A model's configuration without tied weights.

    vLLM 0.32 leaves a tied output layer with its old values when weights are replaced. An output layer of its own gets
    them, for the memory of one more embedding.
    """
    text = values.get("text_config")
    inner = {"text_config": _untied(text)} if isinstance(text, dict) else {}
    return {**values, "tie_word_embeddings": False, **inner}


def _tokens(completions: list[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in completions]
