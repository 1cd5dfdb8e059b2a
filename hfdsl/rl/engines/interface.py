"""What hfdsl asks of a generation engine, and the values that cross into its process.

Five methods are enough; an engine with two more samples several calls in one batch, and takes weights between decode
steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from hfdsl.rl.workers.model_config import FloatDType

if TYPE_CHECKING:
    import torch

LoadPart: TypeAlias = Literal["weights", "adapter"]
"""What an engine loads by itself: all weights of the model, or the LoRA adapter beside them."""

WakePart: TypeAlias = Literal["weights", "cache"]
"""What of a sleeping engine is taken back by itself, so that new weights are loaded before the cache needs room."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the processes of one engine meet: this one's number, how many there are, and the address of their store.

    The store is a ``torch.distributed.TCPStore`` that is there before they are.
    """

    rank: int
    size: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """The LoRA adapter that an engine has beside its weights; its matrices follow by ``load``."""

    rank: int
    """The rows of A and the columns of B."""

    alpha: float
    """The adapter counts alpha / rank times."""

    layers: tuple[str, ...]
    """The last parts of the names of the layers that may have one, such as ``"q_proj"``."""


@dataclass(frozen=True, slots=True)
class EngineStart:
    """What an engine starts with; its weights follow by ``load``."""

    engine: str
    """Its name, for messages."""

    implementation: str
    """The class that speaks to it, a ``GenerationEngine``, as ``module:name``; its process alone imports it."""

    config: str
    """The model's ``config.json``."""

    dtype: FloatDType
    """The dtype of its parameters, of what it computes, and of its cache."""

    max_length: int
    """The most tokens of a prompt with its response."""

    cache_bytes: int
    """The memory of a process's cache of keys and values."""

    weight_bytes: int
    """The memory of a process's weights."""

    temperature: float
    """Logits are divided by it, for sampling, for greedy rows and for log-probs."""

    top_p: float
    """As in ``GenerationConfig``; log-probs are those of the tokens that remain."""

    top_k: int
    """As in ``GenerationConfig``."""

    max_tokens: int
    """The most tokens of a response."""

    end_tokens: tuple[int, ...]
    """The tokens that end a response, which is then its last; an engine has no other."""

    adapter: EngineAdapter | None = None
    """The adapter that it samples with; None for weights alone."""

    rendezvous: Rendezvous | None = None
    """Where the processes of an engine in parts meet; None for one that is whole."""

    in_flight: bool = False
    """Whether weights are loaded between decode steps, so that it is a ``SteppingEngine``."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The weights that it is given: their names in a saved model, and their shapes."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A response, with the end token if it has ended, and the log-prob of each of its tokens.

    ``loaded`` has, for each load while it was sampled, how many of its tokens the weights before it have sampled.
    """

    tokens: list[int]
    log_probs: list[float]
    loaded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """How many decode steps there were, and by their numbers the calls whose rows have all ended, in order."""

    steps: int
    ended: dict[int, list[Completion]]


class GenerationEngine(Protocol):
    """A generation engine. It runs one call at a time, so no token reads weights of two versions.

    Its class takes an ``EngineStart`` and a folder with the model's ``config.json``, without weights, which is there
    while the engine starts. Every process of an engine in parts gets the same calls, and gives the same answers.
    """

    copies: bool
    """Whether it has copied all weights when ``load`` returns, so that the caller may change them then."""

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        """A completion of every prompt, a list of tokens, in order.

        Each row is sampled with its seed and depends on nothing else of the batch; without seeds rows are greedy.
        """
        ...

    def load(self, batches: Iterable[Sequence[tuple[str, torch.Tensor]]], part: LoadPart) -> None:
        """Replace all weights, by their names in a saved model, or the adapter; batches arrive one after another.

        What was computed with the old ones is forgotten. New weights end an adapter, which is loaded again after them.
        """
        ...

    def sleep(self, keep_weights: bool) -> None:
        """Give back the memory of the device: the cache is forgotten, and weights go to the host, or are forgotten too.

        An engine that has forgotten its weights is given all of them between ``wake`` and the next call that samples.
        """
        ...

    def wake(self, part: WakePart) -> None:
        """Take the memory of a part again."""
        ...

    def close(self) -> None:
        """End."""
        ...


class SteppingEngine(GenerationEngine, Protocol):
    """An engine that samples step by step, the rows of several calls at a time, and loads weights between two steps.

    Such a load forgets the keys and values of the rows that are being sampled too, and computes them again with the new
    weights: each token is one that its weights alone would have sampled after the tokens before it.
    """

    def begin(self, call: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> None:
        """Take the rows of a call, by any new number, as ``generate`` does, and sample nothing yet."""
        ...

    def step(self, most: int) -> Stepped:
        """Up to so many decode steps, each at most one token for every row; fewer where all rows of a call end."""
        ...
