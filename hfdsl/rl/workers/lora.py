"""The configuration of a LoRA adapter, which learns instead of the weights of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Final, Literal, TypeAlias

from hfdsl.errors import ConfigError
from hfdsl.rl.fields import Count, Positive, check_fields
from hfdsl.types.bounds import Within

TILE_BYTES: Final = 2**25
"""The bytes of the product that is computed at once where an adapter is merged: 32 MiB."""

Targets: TypeAlias = Literal["all-linear"] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA adapter (Hu et al., 2022): beside each target's weight W, a product B A of two thin matrices that learns.

    A layer computes W x + (alpha / rank) B A x. W is frozen; B starts at 0, so a new adapter changes nothing. The
    adapter's parameters are float32, whatever the dtype of the model. It needs ``pip install 'hfdsl[lora]'``.

    >>> Lora(rank=8, targets=("q_proj", "v_proj"))
    Lora(rank=8, alpha=32.0, targets=('q_proj', 'v_proj'), dropout=0.0, exports='merged')
    """

    rank: Count = 16
    """The rows of A and the columns of B, at most the smaller side of a target's weight; usually 8 to 64."""

    alpha: Positive = 32.0
    """The adapter counts alpha / rank times. Usually once or twice the rank."""

    targets: Targets = "all-linear"
    """The linear layers that get an adapter: the ends of their names, such as ``("q_proj", "v_proj")``, or
    ``"all-linear"``, which is all but the output layer."""

    dropout: Annotated[float, Within(at_least=0, below=1)] = 0.0
    """The share of an adapter's inputs that an update sets to 0. RL keeps 0: otherwise ratios do not start at 1."""

    exports: Literal["merged", "adapter"] = "merged"
    """The weights that ``hf.sync`` sends: all, with the adapter merged, which any role with the model can load; or the
    adapter's matrices alone, which a ``Sampler`` with the same model and the same ``lora`` can."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.targets, str) and not all(self.targets or ("",)):
            raise ConfigError("HF940", "targets has to name layers: the ends of their names, or 'all-linear'")


def matches(path: str, target: str) -> bool:
    """Whether a target is the end of a layer's name.

    >>> matches("model.layers.0.self_attn.q_proj", "q_proj"), matches("model.layers.0.self_attn.q_proj", "proj")
    (True, False)
    """
    return f".{path}".endswith(f".{target}")


def missing_target(target: str, layers: Iterable[str]) -> str:
    """The message for a target that is the end of no linear layer's name.

    >>> missing_target("query_proj", ["layers.0.q_proj", "layers.0.v_proj"])
    "the model has no linear layer 'query_proj'; did you mean 'q_proj'? It has q_proj, v_proj"
    """
    ends = sorted({path.rpartition(".")[2] for path in layers})
    nearest = nearest_target(target, ends)
    hint = f"did you mean '{nearest}'? It" if nearest else "it"
    return f"the model has no linear layer '{target}'; {hint} has {', '.join(ends)}"


def nearest_target(target: str, ends: Sequence[str]) -> str | None:
    """The end of a layer's name whose spelling is nearest to a target.

    >>> nearest_target("query_proj", ["down_proj", "q_proj", "up_proj"])
    'q_proj'
    """
    return next(iter(get_close_matches(target.rpartition(".")[2], ends, n=1)), None)


def large_rank(rank: int, path: str, sides: Sequence[int]) -> str:
    """The message for a rank that is larger than a side of a weight."""
    return f"rank = {rank} is more than '{path}' can use, whose weight is {sides[0]} x {sides[1]}"
