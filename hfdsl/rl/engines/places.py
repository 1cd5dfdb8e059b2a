"""The places of a saved model's weights in vLLM's parameters, for writing them without vLLM's loader.

A worked example
----------------
vLLM fuses layers that read the same input, cuts them into parts, and pads the vocabulary to a multiple of 64. A Llama
of width 32, with 4 heads and 2 key-value heads, and 100 tokens; part 1 of an engine in two parts::

    saved                        parameter of the part                  elements of it   rows of the parameter
    q_proj.weight       32 x 32  qkv_proj.weight               32 x 32  [16:32, :]       [0:16]
    k_proj.weight       16 x 32                                         [8:16, :]        [16:24]
    v_proj.weight       16 x 32                                         [8:16, :]        [24:32]
    o_proj.weight       32 x 32  o_proj.weight                 32 x 16  [:, 16:32]       [0:32]
    embed_tokens.weight 100 x 32 embed_tokens.weight           64 x 32  [64:100, :]      [0:36], then padding

Everything follows from the shapes. A part has an equal share of the query heads, and the other rows of ``qkv_proj`` are
its keys and values, in equal numbers; where these are more than a part's share, several parts hold the same heads. The
places of a parameter tile it, except for padding, which is never read.

Shapes do not tell how a kernel reads a parameter: ``hfdsl.rl.engines.vllm_places`` tries every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

import torch

from hfdsl.rl.engines.interface import Lent
from hfdsl.rl.engines.weights import Shapes, Weights
from hfdsl.runtime.copying import copy_all

FUSED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""The saved layers that vLLM fuses into one layer, stacked by rows."""

CUT_ROWS: Final = frozenset((*FUSED, "embed_tokens", "lm_head"))
CUT_COLUMNS: Final = frozenset(("o_proj", "down_proj"))
"""The layers that parts split by outputs, or by inputs; the other dim is whole."""

PADDED: Final = frozenset(("embed_tokens", "lm_head"))
"""The layers with padding rows that belong to no token."""

WRAPPED: Final = "base_layer."
"""The name of the wrapped layer within a parameter's name, where a layer has an adapter."""


@dataclass(frozen=True, slots=True)
class WeightPlace:
    """A view of a parameter, and the first row (column, for ``dim`` 1) of the saved weight that it holds."""

    target: torch.Tensor
    dim: int = 0
    first: int = 0

    def source(self, weight: torch.Tensor) -> torch.Tensor:
        """The slice of a whole saved weight that belongs here, as a view.

        >>> WeightPlace(torch.zeros(2), first=1).source(torch.tensor([5.0, 6.0, 7.0])).tolist()
        [6.0, 7.0]
        """
        if weight.shape == self.target.shape:
            return weight
        return weight.narrow(self.dim, self.first, self.target.shape[self.dim])


@dataclass(frozen=True, slots=True)
class WeightCopies:
    """The copies that write a batch of weights: the names, and the targets and sources of each layout."""

    names: tuple[str, ...]
    groups: tuple[tuple[list[torch.Tensor], list[torch.Tensor]], ...]


class PlaceWriter:
    """Writes saved weights to their places, rounded to the dtypes there; every place must be written.

    The copies of lent weights are worked out once, and kept as long as these are lent.

    >>> writer = PlaceWriter({"weight": WeightPlace(torch.zeros(2), first=1)})
    >>> writer.write([[("weight", torch.tensor([5.0, 6.0, 7.0]))]])
    >>> writer.places["weight"].target.tolist()
    [6.0, 7.0]
    """

    def __init__(self, places: Mapping[str, WeightPlace]) -> None:
        self.places = places
        self._lent_copies: WeakKeyDictionary[Lent, WeightCopies] = WeakKeyDictionary()

    @torch.no_grad()
    def write(self, batches: Iterable[Weights]) -> None:
        """Write a whole model, whose weights come in batches."""
        missing = set(self.places)
        for batch in batches:
            copies = self._copies(batch)
            for name in copies.names:
                missing.remove(name)
            for targets, sources in copies.groups:
                copy_all(targets, sources)
        if missing:
            raise ValueError(f"no weight {min(missing)!r} was given")

    def _copies(self, batch: Weights) -> WeightCopies:
        if not isinstance(batch, Lent):
            return copies_of(list(batch), self.places)
        copies = self._lent_copies.get(batch)
        if copies is None:
            copies = self._lent_copies[batch] = copies_of(list(batch), self.places)
        return copies


def copies_of(batch: Sequence[tuple[str, torch.Tensor]], places: Mapping[str, WeightPlace]) -> WeightCopies:
    """The copies of some weights to their places."""
    pairs = [(place.target, place.source(weight)) for name, weight in batch for place in [places[name]]]
    groups = []
    # Among tensors of the same strides, one with others would have all of them copied one by one.
    for alike in (True, False):
        chosen = [pair for pair in pairs if pair[1].is_contiguous() == alike]
        groups.append(([target for target, _ in chosen], [source for _, source in chosen]))
    return WeightCopies(tuple(name for name, _ in batch), tuple(groups))


def places(
    parameters: Mapping[str, torch.Tensor], shapes: Shapes, rank: int = 0, size: int = 1
) -> dict[str, WeightPlace] | None:
    """The place of every saved weight in the parameters of one of ``size`` parts, or None if they do not match.

    >>> qkv = {"attn.qkv_proj.weight": torch.zeros(4, 2)}
    >>> saved = {"attn.q_proj.weight": (4, 2), "attn.k_proj.weight": (2, 2), "attn.v_proj.weight": (2, 2)}
    >>> [(name, place.first, len(place.target)) for name, place in places(qkv, saved, rank=1, size=2).items()]
    [('attn.q_proj.weight', 2, 2), ('attn.k_proj.weight', 1, 1), ('attn.v_proj.weight', 1, 1)]
    >>> places(qkv, saved | {"norm.weight": (2,)}) is None
    True
    """
    weight_places: dict[str, WeightPlace] = {}
    for name, parameter in parameters.items():
        path, _, kind = name.replace(WRAPPED, "").rpartition(".")
        block, dot, layer = path.rpartition(".")
        sources = [f"{block}{dot}{source}.{kind}" for source in FUSED.get(layer, (layer,))]
        if not all(source in shapes for source in sources) or not parameter.is_contiguous():
            return None
        places_of_sources = list(_places(parameter, [shapes[source] for source in sources], layer, rank, size))
        if len(places_of_sources) != len(sources):
            return None
        weight_places.update(zip(sources, places_of_sources, strict=True))
    return weight_places if weight_places.keys() == shapes.keys() else None


def _places(
    parameter: torch.Tensor, fulls: Sequence[tuple[int, ...]], layer: str, rank: int, size: int
) -> Iterator[WeightPlace]:
    """The places of weights stacked in a parameter; fewer if they do not tile it."""
    cut = 0 if layer in CUT_ROWS else 1 if layer in CUT_COLUMNS and parameter.ndim > 1 else None
    shape = tuple(parameter.shape)
    if cut is None:
        if fulls == [shape]:
            yield WeightPlace(parameter)
        return
    offset = 0
    for full, count in zip(fulls, _counts(shape[cut], [full[cut] for full in fulls], size), strict=False):
        holders, remainder = divmod(count * size, full[cut])  # the number of parts with equal rows
        uneven = layer not in PADDED and (remainder or holders > size)
        if not holders or uneven or not _alike(full, shape, cut):
            return
        index = rank if layer in PADDED else rank // holders
        first, end = (min(at, full[cut]) for at in (index * count, index * count + count))
        yield WeightPlace(parameter.narrow(cut, offset, end - first), cut, first)
        offset += count


def _alike(full: tuple[int, ...], shape: tuple[int, ...], cut: int) -> bool:
    """Whether two shapes differ in at most one dim."""
    return full[:cut] == shape[:cut] and full[cut + 1 :] == shape[cut + 1 :]


def _counts(total: int, fulls: Sequence[int], size: int) -> list[int]:
    """The rows of each weight in a part's parameter: the first has its share, the others split the rest; [] if uneven.

    >>> _counts(32, [32, 16, 16], 2), _counts(33, [32, 16, 16], 2), _counts(64, [100], 2)
    ([16, 8, 8], [], [64])
    """
    if len(fulls) == 1:
        return [total]
    first, uneven = divmod(fulls[0], size)
    others, remainder = divmod(total - first, len(fulls) - 1)
    return [] if uneven or remainder or others <= 0 else [first, *[others] * (len(fulls) - 1)]
