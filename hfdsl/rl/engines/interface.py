"""The interface of generation engines, and the values that cross into an engine's process.

Every engine has the five methods of ``GenerationEngine``. With two more, a ``SteppingEngine`` samples several calls in
one batch and takes weights between decode steps. With two others, a ``SharingEngine`` lets its caller write weights
into its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from hfdsl.rl.workers.model_config import FloatDType

if TYPE_CHECKING:
    import torch

    from hfdsl.rl.engines.weights import Weights

LoadPart: TypeAlias = Literal["weights", "adapter"]
"""A part that an engine loads separately: all weights of the model, or the LoRA adapter."""

WakePart: TypeAlias = Literal["weights", "cache"]
"""A part of a sleeping engine that wakes separately, so that weights can be loaded before the cache takes memory."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The meeting point of the processes of one engine: this one's number, their count, and the address of their store.

    The store is a ``torch.distributed.TCPStore`` that exists before the processes.
    """

    rank: int
    size: int
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """The LoRA adapter of an engine; ``load`` delivers its matrices."""

    rank: int
    """The number of rows of A and of columns of B."""

    alpha: float
    """The adapter is scaled by alpha / rank."""

    layers: tuple[str, ...]
    """The last parts of the names of the layers that may have an adapter, such as ``"q_proj"``."""


@dataclass(frozen=True, slots=True)
class EngineStart:
    """The settings with which an engine starts; ``load`` delivers its weights."""

    engine: str
    """Its name, for messages."""

    implementation: str
    """The engine's class, a ``GenerationEngine``, as ``module:name``; only its process imports it."""

    config: str
    """The model's ``config.json``."""

    dtype: FloatDType
    """The dtype of parameters, computations and cache."""

    max_length: int
    """The most tokens of a prompt with its response."""

    cache_bytes: int
    """The memory of a process's cache of keys and values."""

    weight_bytes: int
    """The memory of a process's weights."""

    temperature: float
    """The divisor of logits, for sampling, for greedy rows and for log-probs."""

    top_p: float
    """As in ``GenerationConfig``; log-probs are those of the tokens that remain."""

    top_k: int
    """As in ``GenerationConfig``."""

    max_tokens: int
    """The most tokens of a response."""

    end_tokens: tuple[int, ...]
    """The tokens that end a response, each as its last token; an engine has no others."""

    adapter: EngineAdapter | None = None
    """The adapter to sample with; None for weights alone."""

    rendezvous: Rendezvous | None = None
    """The meeting point of an engine with several processes; None for a single process."""

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The weights to expect: names in a saved model, and shapes."""

    sleeps: bool = True
    """Whether it may have to sleep; only one that does not shares its memory, as ``SharingEngine``."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A response, including its end token if it has one, and the log-prob of each of its tokens.

    ``loaded`` has an entry for each load of weights during sampling: the number of tokens sampled before the load.
    """

    tokens: list[int]
    log_probs: list[float]
    loaded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stepped:
    """The number of decode steps, and the numbers of the calls whose rows have all ended, in order."""

    steps: int
    ended: dict[int, list[Completion]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Lent:
    """Weights by name in the memory of the caller, which may change them between loads.

    An engine is given the same object in every load, until other weights are lent or these are released. It may keep
    what it derives from them as long as this object lives, and must not keep the object alive.
    """

    weights: Mapping[str, torch.Tensor]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.weights.items())


class GenerationEngine(Protocol):
    """A generation engine. It runs one call at a time, so no token reads weights of two versions.

    The constructor takes an ``EngineStart`` and a folder with the model's ``config.json`` but no weights; the folder
    exists while the engine starts. If an engine has several processes, all of them get the same calls and return the
    same results.
    """

    copies: bool
    """Whether ``load`` has copied all weights when it returns, so that the caller may change them."""

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Completion]:
        """Complete every prompt, in order; each completion is a list of tokens.

        Each row is sampled with its own seed, independently of the rest of the batch; without seeds, decoding is
        greedy.
        """
        ...

    def load(self, batches: Iterable[Weights], part: LoadPart) -> None:
        """Replace all weights, named as in a saved model, or the adapter; batches arrive one after another.

        Lent weights are a single batch, a ``Lent``. Drops everything computed with the old weights. New weights
        invalidate the adapter, so it is loaded after them.
        """
        ...

    def sleep(self, keep_weights: bool) -> None:
        """Free device memory: drop the cache, and move weights to the host or drop them too.

        An engine that has dropped its weights receives all of them between ``wake`` and the next call that samples.
        """
        ...

    def wake(self, part: WakePart) -> None:
        """Allocate the memory of a part again."""
        ...

    def close(self) -> None:
        """Shut the engine down."""
        ...


class SteppingEngine(GenerationEngine, Protocol):
    """An engine that samples step by step, batches the rows of several calls, and loads weights between two steps.

    Such a load also drops the keys and values of rows that are still being sampled, and recomputes them with the new
    weights. So each token is the one that its weights alone would have sampled after the preceding tokens.
    """

    def begin(self, call: int, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> None:
        """Add the rows of a call under a new number, as for ``generate``, without sampling yet."""
        ...

    def step(self, most: int) -> Stepped:
        """Run up to ``most`` decode steps, each at most one token per row; stop once all rows of a call have ended."""
        ...


class SharingEngine(GenerationEngine, Protocol):
    """An engine whose weights the process that started it may write in place, instead of calling ``load``."""

    def share(self) -> Mapping[str, torch.Tensor] | None:
        """The memory of all weights, named as in a saved model; None if it cannot be shared.

        It stays the same as long as the engine lives.
        """
        ...

    def forget(self) -> None:
        """Drop everything computed with the old weights, without reading any: the caller replaces all of them."""
        ...
