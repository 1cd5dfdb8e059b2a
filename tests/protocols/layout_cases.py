"""Random layouts, meshes and parameters, and local tensors made by torch as frameworks make them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, product
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st

from hfdsl.protocols.layouts import Box, Cut, Layout, Only, Parameter, Replicas, Shards, Slices, StandardLayout
from hfdsl.protocols.mesh import AXES, Mesh, axis_rank, axis_size

SIZES = (12, 24)  # what all sizes below divide
AXIS_SIZES = (1, 2, 3, 4)


@st.composite
def meshes(draw: st.DrawFn, most: int = 12) -> Mesh:
    """Meshes of few ranks, in any order of axes, with generation groups."""
    pp, dp, tp = draw(st.sampled_from([sizes for sizes in product(AXIS_SIZES, repeat=3) if prod(sizes) <= most]))
    gen_pp, gen_tp = (draw(st.sampled_from([n for n in AXIS_SIZES if size % n == 0])) for size in (pp, tp))
    return Mesh(pp=pp, dp=dp, tp=tp, gen_pp=gen_pp, gen_tp=gen_tp, order=tuple(draw(st.permutations(AXES))))


@st.composite
def cut_lists(draw: st.DrawFn, parameter: Parameter, mesh: Mesh) -> list[Cut]:
    """Cuts that this parameter can take."""
    cuts: list[Cut] = []
    dim = draw(st.integers(0, len(parameter.shape) - 1))
    size, axis = parameter.shape[dim], draw(st.sampled_from(("tp", "gen_tp")))
    count = axis_size(mesh, axis)
    match draw(st.sampled_from(("whole", "equal", "blocks", "interleaved", "shared", "padded"))):
        case "equal":
            cuts.append(Slices(dim, axis, units=12))
        case "blocks":
            cuts.append(Slices(dim, axis, blocks=(size // 2, size // 2) if size == 24 else (size,)))
        case "interleaved":
            cuts.append(
                Slices(dim, axis, blocks=(12, 12) if size == 24 else (12,), interleaved=count * (2 if count < 4 else 1))
            )
        case "shared":
            cuts.append(
                Slices(dim, axis, units=draw(st.sampled_from([n for n in (1, 2, 4) if count % n == 0])), shared=True)
            )
        case "padded":
            cuts.append(Slices(dim, axis, padding=draw(st.sampled_from((count, 5 * count)))))
    if draw(st.booleans()):
        over: str | tuple[str, ...] = ("dp", "pp") if draw(st.booleans()) else "dp"
        cuts.append(Shards(over, draw(st.integers(0, len(parameter.shape) - 1))))
    elif draw(st.booleans()):
        stage = draw(st.integers(0, mesh.pp - 1))
        cuts.insert(draw(st.integers(0, len(cuts))), Only(axis="pp", at=(stage,)))
    return cuts


def parameters() -> st.SearchStrategy[Parameter]:
    shapes = st.lists(st.sampled_from(SIZES), min_size=1, max_size=2).map(tuple)
    return st.builds(Parameter, st.just("weight"), shapes, st.sampled_from(("float32", "bfloat16")))


@dataclass(frozen=True)
class Listed(Layout):
    """A layout of one's own: boxes by rank."""

    by_rank: tuple[tuple[Box, ...], ...]

    def boxes(self, parameter: Parameter, mesh: Mesh, rank: int) -> tuple[Box, ...]:
        return self.by_rank[rank]


@st.composite
def listed_layouts(draw: st.DrawFn, parameter: Parameter, mesh: Mesh) -> Listed:
    """Any ranges of each dim on each rank, in any order, so that parts may overlap anyhow; often none is missing."""
    edges = [sorted({0, size, *draw(st.lists(st.integers(1, size - 1), max_size=2))}) for size in parameter.shape]
    ranges = [list(pairwise(ends)) for ends in edges]
    held = [tuple(product(*(draw(some(part)) for part in ranges))) for _ in range(mesh.world_size)]
    if draw(st.booleans()):
        held[draw(st.integers(0, len(held) - 1))] = tuple(product(*map(draw, map(st.permutations, ranges))))
    return Listed(tuple(held))


def some(ranges: list[tuple[int, int]]) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.sampled_from(ranges), unique=True)


@st.composite
def layouts(draw: st.DrawFn, parameter: Parameter, mesh: Mesh) -> Layout:
    if draw(st.integers(0, 3)) == 0:
        return draw(listed_layouts(parameter, mesh))
    return composed(draw(cut_lists(parameter, mesh)))


def composed(cuts: list[Cut]) -> StandardLayout:
    return Replicas().then(*cuts)


def local_tensor(whole: torch.Tensor, cuts: list[Cut], mesh: Mesh, rank: int) -> torch.Tensor | None:
    """What frameworks give a rank: chunks, blocks and concatenations of torch, cut by cut."""
    local: torch.Tensor | None = whole
    for cut in cuts:
        if local is None:
            return None
        names = (cut.axis,) if isinstance(cut.axis, str) else cut.axis
        count = reduce(lambda product, name: product * axis_size(mesh, name), names, 1)
        index = reduce(lambda number, name: number * axis_size(mesh, name) + axis_rank(mesh, name, rank), names, 0)
        local = _cut(local, cut, index, count)
    return local


def _cut(local: torch.Tensor, cut: Any, index: int, count: int) -> torch.Tensor | None:
    match cut:
        case Only():
            return local if index in cut.at else None
        case Shards():
            chunks = local.chunk(count, cut.dim)
            return chunks[index] if index < len(chunks) and chunks[index].numel() else None
        case Slices(dim=dim) if cut.padding > 1:
            size = local.shape[dim]
            share = -(-size // cut.padding) * cut.padding // count
            stop = min((index + 1) * share, size)
            return local.narrow(dim, index * share, stop - index * share) if index * share < stop else None
        case Slices(dim=dim, units=int(heads)) if cut.shared:
            return local.chunk(heads, dim)[index * heads // count]
        case Slices(dim=dim) if cut.interleaved:
            blocks = local.split(cut.blocks, dim)
            share = cut.interleaved // count
            groups = range(index * share, (index + 1) * share)
            return torch.cat([block.chunk(cut.interleaved, dim)[group] for group in groups for block in blocks], dim)
        case Slices(dim=dim):
            blocks = local.split(cut.blocks, dim) if cut.blocks else (local,)
            return torch.cat([block.chunk(count, dim)[index] for block in blocks], dim)
    raise TypeError(cut)
