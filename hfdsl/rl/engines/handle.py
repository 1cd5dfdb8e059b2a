"""The engine of a role: hfdsl starts it, keeps it at the role's newest weights, and lets it sample the role's rows.

An actor's engine in three steps, with the version that each side has::

    role                             policy    engine
    construct                          1          0     the engine starts, with no weights of use
    generate                           1          1     the weights go to the engine, then rows are sampled
    update                             2          1
    generate, generate                 2          2     they go once

The policy counts its version up whenever its weights are written. An engine that was ended has no version: the next
call starts another one, and the weights follow by the same rule.

Nor has an engine that slept without its weights, because it can read them again in the role's memory.

An engine with an adapter has two versions, and after an update the adapter alone goes to it. The base weights go once,
and again to an engine that was started again; an adapter follows all weights that are loaded::

    role                             base, adapter    engine
    construct                          1, 1             -, -     the engine starts
    generate                           1, 1             1, 1     both go
    update                             1, 2             1, 1
    generate                           1, 2             1, 2     the adapter goes
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Final

import torch

from hfdsl.errors import HfError, ResourceError
from hfdsl.protocols.call import current_call
from hfdsl.protocols.collectives import AxisGroup
from hfdsl.rl.engines.interface import Completion, EngineAdapter, EngineStart, LoadPart
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.rl.engines.ranks import EngineRanks
from hfdsl.rl.engines.shared_batch import BatchedCall, EngineActions, SharedBatch
from hfdsl.rl.engines.versions import check_version, installed_version
from hfdsl.rl.engines.weights import Shapes, Weights, fitting
from hfdsl.rl.models.row_errors import bad_row
from hfdsl.rl.workers.config import GenerationConfig, ModelConfig
from hfdsl.rl.workers.engine_adapters import MATRIX_A, engine_adapter_elements
from hfdsl.rl.workers.gpu_memory import BLOCK_TOKENS, token_bytes
from hfdsl.rl.workers.lora import Lora
from hfdsl.rl.workers.model_config import FloatDType
from hfdsl.rl.workers.slicing import parts_problem
from hfdsl.rl.workers.state_bytes import ITEM_BYTES

ENGINES: Final = {"vllm": "hfdsl.rl.engines.vllm_engine:VllmEngine"}
"""The handle classes of engines, by the name in ``GenerationConfig.engine``."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """Weights with a version: a number from 1 that changes whenever they do."""

    version: int
    weights: Callable[[], Weights]
    place: Callable[[], object] | None = None
    """Where the weights are, if later versions are in the same memory: equal as long as that is so."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Responses i64[B, R], their mask bool[B, R], and their log-probs at sampling, f32[B, R]."""

    response: torch.Tensor
    mask: torch.Tensor
    log_probs: torch.Tensor


@dataclass(frozen=True, slots=True)
class VersionedSampled(Sampled):
    """Responses with the version i64[B, R] of each token's weights; padding has that of the last token."""

    versions: torch.Tensor


@dataclass(frozen=True, slots=True)
class Requests:
    """The prompts of one call to an engine, their seeds, and which of them belong to this rank."""

    prompts: list[list[int]]
    seeds: list[int] | None
    rows: slice


class EngineHandle:
    """The engine of a role, for a transformers configuration and weights of these shapes.

    ``ranks`` share the engine, and ``weight_peers`` gather its weights together. With ``lora``, the engine also has an
    adapter, whose matrices have the shapes ``adapter_shapes``. Without ``sleeps`` it may share its memory, and ends
    when it is first put to sleep.

    Raises:
        ResourceError: HF951 if no engine is installed, or it refuses the model; HF952 if its cache does not fit;
            HF957 if the model cannot be cut into as many parts as there are ranks.
    """

    def __init__(
        self,
        model_config: Any,
        shapes: Shapes,
        generation: GenerationConfig,
        *,
        dtype: FloatDType,
        end_tokens: Sequence[int],
        pad_token: int,
        ranks: EngineRanks,
        weight_peers: AxisGroup,
        lora: Lora | None = None,
        adapter_shapes: Shapes = MappingProxyType({}),
        sleeps: bool = True,
    ) -> None:
        self.ranks, self.weight_peers, parts = ranks, weight_peers, ranks.size
        version = installed_version()
        if version is None:
            problem = 'engine="vllm" needs vLLM, which is not installed'
            raise ResourceError("HF951", f"{problem}; pip install 'hfdsl[vllm]'")
        check_version(version)
        self.shapes: Mapping[LoadPart, Shapes] = {"weights": shapes, "adapter": adapter_shapes}
        self.pad_token, self.deadline = pad_token, generation.engine_deadline
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
        weight_bytes = sum(map(prod, shapes.values())) * ITEM_BYTES[dtype] // parts
        if lora is not None:
            sizes = ModelConfig(config=text.to_dict())
            weight_bytes += (engine_adapter_elements(sizes, lora, parts) or 0) * ITEM_BYTES[dtype]
        limit = getattr(text, "max_position_embeddings", None) or generation.cache_tokens
        self.start = EngineStart(
            engine=generation.engine,
            implementation=ENGINES[generation.engine],
            config=json.dumps(_untied(model_config.to_dict())),
            dtype=dtype,
            max_length=min(limit, generation.cache_tokens),
            cache_bytes=(generation.cache_tokens + BLOCK_TOKENS) * _token_bytes(text, dtype, parts),
            weight_bytes=weight_bytes,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            max_tokens=generation.max_tokens,
            end_tokens=tuple(end_tokens),
            adapter=None if lora is None else engine_adapter(lora, adapter_shapes),
            shapes={name.removeprefix("model."): shape for name, shape in shapes.items()},
            sleeps=sleeps,
        )
        self.process = self._started()
        self.asleep = False
        self.batch = SharedBatch()

    def sample(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        weights: Versioned,
        adapter: Versioned | None = None,
        *,
        greedy: bool,
    ) -> Sampled:
        """Sample responses to prompts i64[B, P], bool[B, P], with these weights and the engine's adapter, if any.

        They are sent if the engine has another version.

        Raises:
            HfError: HF953 for a prompt that the engine cannot take, with its row.
            ResourceError: HF954 if the engine died; HF956 for weights of another model.
            DeadlineError: HF955 if it hangs.
        """
        sources: dict[LoadPart, Versioned] = {"weights": weights, **({} if adapter is None else {"adapter": adapter})}
        requests = self._requests(ids, mask, greedy=greedy)
        try:
            completions = self.ranks.together(lambda: self._completions(requests, sources), _tokens)
        except HfError:
            self.process.close()  # on every rank, whichever it failed on
            raise
        return self._sampled(completions[requests.rows], ids.device)

    def sample_in_flight(
        self, ids: torch.Tensor, mask: torch.Tensor, weights: Callable[[], Versioned], *, greedy: bool
    ) -> VersionedSampled:
        """Sample responses whose tokens may have several versions, on an engine of one rank without an adapter.

        The running call takes the weights that arrive, into ``weights``. It may run beside others, in threads of their
        own: the engine then samples the rows of all of them in one batch.

        Raises:
            HfError, ResourceError, DeadlineError: as ``sample``, each in all calls that run; whatever a load raises.
        """
        requests, length = self._requests(ids, mask, greedy=greedy), self.start.max_tokens
        call = BatchedCall(current_call(), length, requests.prompts, requests.seeds)
        actions = EngineActions(
            prepare=lambda: self._load({"weights": weights()}),
            reload=lambda: self._replace(weights()),
            process=lambda: self.process,
        )
        completions = self.batch.sample(call, actions) if requests.prompts else []
        sampled = self._sampled(completions, ids.device)
        columns = [_token_versions(completion, call.versions, length) for completion in completions]
        by_token = torch.tensor(columns, dtype=torch.int64).reshape(sampled.mask.shape)
        return VersionedSampled(sampled.response, sampled.mask, sampled.log_probs, by_token.to(ids.device))

    def _replace(self, source: Versioned) -> None:
        """Replace the weights of an engine that has rows; do not restart one that has died."""
        self.process.load(self._checked(source.weights(), "weights"), source.version)

    def _sampled(self, completions: Sequence[Completion], device: torch.device) -> Sampled:
        """Completions as columns."""
        rows, length = len(completions), self.start.max_tokens
        response = torch.full((rows, length), self.pad_token)
        response_mask, log_probs = torch.zeros(rows, length, dtype=torch.bool), torch.zeros(rows, length)
        for row, completion in enumerate(completions):
            count = len(completion.tokens)
            response[row, :count] = torch.tensor(completion.tokens)
            response_mask[row, :count] = True
            log_probs[row, :count] = torch.tensor(completion.log_probs)
        return Sampled(response.to(device), response_mask.to(device), log_probs.to(device))

    def release(self) -> None:
        """Stop the engine's use of the weights' memory before it is freed."""
        self.process.release()

    def sleep(self) -> None:
        """Free the engine's device memory.

        Weights that are lent are not kept: reading them again takes less time than a copy on the host does. An engine
        with an adapter keeps all, since the adapter would go with them. One that cannot sleep ends; the next one can.
        """
        if not self.start.sleeps:
            self.process.close()
            self.start = replace(self.start, sleeps=True)
        elif not self.asleep and self.process.alive:
            self.process.sleep(keep_weights=not self.process.lends or self.start.adapter is not None)
            self.asleep = True

    def _completions(self, requests: Requests, sources: Mapping[LoadPart, Versioned]) -> list[Completion]:
        """Complete all requests with these weights."""
        self._load(sources)
        return self.process.generate(requests.prompts, requests.seeds) if requests.prompts else []

    def _load(self, sources: Mapping[LoadPart, Versioned]) -> None:
        """Ensure that the engine is awake and has these versions.

        Weights that are sharded are gathered by all ranks that hold a part. So where one rank needs them all take part,
        also one whose engine failed meanwhile: the others would wait for it.
        """
        alive = all(self.ranks.gather(self.process.alive))
        is_stale = False  # also of an adapter whose weights are loaded before it
        streams: dict[LoadPart, Iterator[tuple[str, torch.Tensor]]] = {}
        for part, source in sources.items():
            differs = is_stale or not alive or self.process.versions.get(part) != source.version
            is_stale = bool(self.weight_peers.all_reduce(int(differs), "max"))
            streams[part] = iter(source.weights() if is_stale else ())
        try:
            if not alive:
                self.process.close()
                self.process, self.asleep = self._started(), False
            if self.asleep:
                self.process.wake("weights")
            for part, source in sources.items():
                if self.process.versions.get(part) != source.version:
                    weights = self._checked(streams[part], part)
                    place = source.place() if source.place is not None else None
                    self.process.load(weights, source.version, part, place=place)
            if self.asleep:
                self.process.wake("cache")
                self.asleep = False
        finally:
            for part, stream in streams.items():
                for _ in stream if sources[part].place is None else ():  # what has a place is not gathered
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

    def _checked(self, weights: Weights, part: LoadPart) -> Weights:
        """The weights, checked to be exactly those of the model.

        Raises:
            WiringError: HF956.
        """
        for name, weight in fitting(weights, self.shapes[part], "engine"):
            yield name.removeprefix("model."), weight  # ``Policy`` holds the model as "model"

    def _requests(self, ids: torch.Tensor, mask: torch.Tensor, *, greedy: bool) -> Requests:
        """The requests of a call: the rows of this rank and of the ranks that share its engine.

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


def engine_adapter(lora: Lora, shapes: Shapes) -> EngineAdapter:
    """The description of an adapter with matrices of these shapes, for an engine."""
    layers = {name.removesuffix(MATRIX_A).rpartition(".")[2] for name in shapes if name.endswith(MATRIX_A)}
    return EngineAdapter(lora.rank, lora.alpha, tuple(sorted(layers)))


def engine_config(model: Any) -> Any:
    """The configuration of a transformers model with the name of its class, by which an engine finds it."""
    config = deepcopy(model.config)
    config.architectures = [type(model).__name__]
    return config


def _token_versions(completion: Completion, versions: Sequence[int], length: int) -> list[int]:
    """The version of each of ``length`` tokens of a row; padding has that of the last token.

    >>> _token_versions(Completion([7, 7, 7], [0.0] * 3, loaded=(1, 1, 3)), [2, 3, 4, 5], 5)
    [2, 4, 4, 4, 4]
    """
    last = len(completion.tokens) - 1
    return [versions[bisect_right(completion.loaded, min(token, last))] for token in range(length)]


def _token_bytes(config: Any, dtype: FloatDType, parts: int) -> int:
    """The bytes that a token's keys and values take in each part of its engine."""
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
