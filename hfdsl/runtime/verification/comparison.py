"""The digests of both sides of a sync: are they of the same weights, and if not, which ranks hold other ones?

An example
----------
An actor exports ``x`` in halves of two rows, and the three ranks of an engine hold them with these digests::

    part      actor    engine 0    engine 1    engine 2
    x[0:2]    41       41
    x[2:4]    154                  154         150         rank 2 holds other values of x[2:4]

Where the parts of both sides are the same, each is compared. Where they are others, those of a side add up to the
weight, one replica of each: of replicas that differ, a combination that adds up to it is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from hfdsl.errors import SyncError
from hfdsl.protocols.boxes import Box, extent, fill, in_words, volume
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.copied_names import UNKNOWN, CopiedNames

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests

MAX_COMBINATIONS = 64
"""The maximum number of combinations of differing replicas to search for the correct ones."""

MAX_RANKS = 8
"""The maximum number of ranks that a message lists."""

Meshes: TypeAlias = Mapping[str, Mesh]
"""The meshes of both roles, by name; without them, messages have no coordinates."""

NO_MESHES: Final[Meshes] = MappingProxyType({})


def dtypes_of(ranks: Sequence[Digests]) -> dict[str, str]:
    """The dtypes of the weights on ranks."""
    return {digest.name: digest.dtype for digests in ranks for digest in digests}


def other_form(source: Sequence[Digests], target: Sequence[Digests], names: CopiedNames) -> str | None:
    """Whether a copy has other names for all its weights, or other shapes; None if it can be compared by name."""
    exported, held = _by_name(source), _by_name(target)
    common = [name for name in names.compared(exported, held) if name in exported and name in held]
    if held and not common:
        return "names"
    return "shapes" if any(extent(exported[name]) != extent(held[name]) for name in common) else None


def compare(
    sync: VerifiedSync,
    source: Sequence[Digests],
    target: Sequence[Digests],
    version: int = 0,
    names: CopiedNames = UNKNOWN,
    meshes: Meshes = NO_MESHES,
) -> str | None:
    """Compare two roles' weights of a state in one version: the number of the sync in the run.

    ``names`` says which weights each side should have. Returns the reason if not all of them can be compared, or None.

    Raises:
        SyncError: HF771 for the first weight that differs, with the number of others.
    """
    differences: list[SyncError] = []
    problem = _compare_weights(sync, source, target, names, meshes, differences.append)
    if not differences:
        return problem
    first, others = differences[0], len({error.parameter for error in differences}) - 1
    more = f"; {others} other weight{'s differ' if others > 1 else ' differs'}, too" if others else ""
    in_version = f", in sync {version} of the run" if version else ""
    named = _different(first.role, first.parameter, first.ranks, f"{first.message}{in_version}{more}")
    named.version = version or first.version
    raise named


def _compare_weights(
    sync: VerifiedSync,
    source: Sequence[Digests],
    target: Sequence[Digests],
    names: CopiedNames,
    meshes: Meshes,
    report: Callable[[SyncError], None],
) -> str | None:
    exported, loaded = _by_name(source), _by_name(target)
    dtypes = dtypes_of(source), dtypes_of(target)
    overlapping, alone = dict[str, str](), dict[str, list[str]]()
    for name, ranks in names.lacking([{digest.name for digest in rank} for rank in target]):
        where = _ranks_in_words(ranks, meshes.get(sync.target))
        problem = f"'{sync.target}' holds no '{name}' of '{sync.state}' on {where}, where its layout has a part of it"
        report(_different(sync.target, name, ranks, problem))
    for name in (*exported, *(name for name in loaded if name not in exported)):
        exported_as, loaded_as = names.on_sides(name, exported, loaded)
        if exported_as is None or loaded_as is None:
            holder = sync.source if loaded_as is None else sync.target
            if names.missing(name, of_target=loaded_as is None):
                report(_different(sync.target, name, (), _held_alone(sync, holder, [name])))
            else:
                alone.setdefault(holder, []).append(name)
            continue
        if exported_as != loaded_as and dtypes[0][exported_as] != dtypes[1][loaded_as]:
            continue  # one side has it under the other name, too, in the dtype of which it is compared
        ours, theirs = exported[exported_as], loaded[loaded_as]
        if extent(ours) != extent(theirs):
            report(_other_shape(sync, name, ours, theirs))
        elif not (fill(ours) and fill(theirs)):
            overlapping[name] = sync.target if fill(ours) else sync.source
        elif (difference := _difference(sync, name, ours, theirs, meshes)) is not None:
            report(difference)
    for holder, held in alone.items():
        return f"{_held_alone(sync, holder, held)}; '{sync.target}' does not state the parameters that it loads"
    if not overlapping:
        return None
    name, role = next(iter(overlapping.items()))
    more = f" and of {len(overlapping) - 1} more weights" if len(overlapping) > 1 else ""
    return f"the parts of '{name}'{more} on the ranks of '{role}' overlap or have gaps, so their digests do not add up"


def _held_alone(sync: VerifiedSync, holder: str, names: Sequence[str]) -> str:
    lacking = sync.target if holder == sync.source else sync.source
    more = f" and {len(names) - 1} more weights" if len(names) > 1 else ""
    return f"'{holder}' holds '{names[0]}'{more} of '{sync.state}', and '{lacking}' does not"


_Parts: TypeAlias = dict[Box, dict[int, int]]
"""The digests of a weight by part and rank."""


def _by_name(ranks: Sequence[Digests]) -> dict[str, _Parts]:
    weights: dict[str, _Parts] = {}
    for rank, digests in enumerate(ranks):
        for digest in digests:
            if volume(digest.box):  # a sync sends no part without elements, so only one side may have it
                weights.setdefault(digest.name, {}).setdefault(digest.box, {})[rank] = digest.value
    return weights


def _difference(sync: VerifiedSync, name: str, source: _Parts, target: _Parts, meshes: Meshes) -> SyncError | None:
    """The error for a weight of which ranks hold different values; None if all hold the same ones."""
    for box, replicas in source.items():
        if len(set(replicas.values())) > 1:
            ranks, part = _minority(replicas), f"'{name}'{_place([box], source)} of '{sync.state}'"
            where = _ranks_in_words(ranks, meshes.get(sync.source))
            problem = f"ranks of '{sync.source}' hold different values of {part}: {where} and the others"
            return _different(sync.source, name, ranks, problem)
    expected = sum(next(iter(replicas.values())) for replicas in source.values()) % 2**64
    wrong = _wrong(source, target, expected)
    if not wrong:
        return None
    places, ranks = {_place(boxes, target) for boxes in wrong.values()}, tuple(sorted(wrong))
    part = f"'{name}'{places.pop() if len(places) == 1 else ''} of '{sync.state}'"
    where = _ranks_in_words(ranks, meshes.get(sync.target))
    problem = f"'{sync.target}' holds other values of {part} on {where} than '{sync.source}' exported"
    return _different(sync.target, name, ranks, problem)


def _other_shape(sync: VerifiedSync, name: str, source: _Parts, target: _Parts) -> SyncError:
    sizes = f"{extent(target)} in '{sync.target}' and {extent(source)} in '{sync.source}'"
    return _different(sync.target, name, (), f"'{name}' of '{sync.state}' has the shape {sizes}")


def _wrong(source: _Parts, target: _Parts, expected: int) -> dict[int, list[Box]]:
    """The boxes of wrong values by rank of the target; all that ranks hold if these cannot be determined."""
    if source.keys() == target.keys():
        return _differing(target, {box: next(iter(replicas.values())) for box, replicas in source.items()})
    choices = [sorted(set(replicas.values())) for replicas in target.values()]
    count = 1
    for choice in choices:
        count *= len(choice)
    for values in product(*choices) if count <= MAX_COMBINATIONS else ():
        if sum(values) % 2**64 == expected:
            return _differing(target, dict(zip(target, values, strict=True)))
    return _differing(target, {})


def _differing(target: _Parts, right: Mapping[Box, int]) -> dict[int, list[Box]]:
    """By rank the boxes whose values are not the right ones."""
    differing: dict[int, list[Box]] = {}
    for box, replicas in target.items():
        for rank, value in replicas.items():
            if value != right.get(box):
                differing.setdefault(rank, []).append(box)
    return differing


def _minority(replicas: Mapping[int, int]) -> tuple[int, ...]:
    values = list(replicas.values())
    usual = max(values, key=values.count)
    return tuple(rank for rank, value in replicas.items() if value != usual)


def _place(boxes: Sequence[Box], parts: _Parts) -> str:
    """Some boxes of a weight in words; nothing if there is only one of them."""
    if len(parts) == 1:
        return ""
    more = f" and {len(boxes) - 1} more" if len(boxes) > 1 else ""
    return f"{in_words(boxes[0])}{more}"


def _ranks_in_words(ranks: Sequence[int], mesh: Mesh | None) -> str:
    """The ranks, the first of them with its coordinates."""
    first, *others = ranks
    named = f"rank{'s' * bool(others)} {', '.join(map(str, ranks[:MAX_RANKS]))}"
    more = f" and {len(ranks) - MAX_RANKS} more" if len(ranks) > MAX_RANKS else ""
    at = f" ({mesh.coordinates(first)})" if mesh is not None and not others else ""
    return f"{named}{more}{at}"


def _different(role: str, name: str, ranks: tuple[int, ...], problem: str) -> SyncError:
    error = SyncError("HF771", problem)
    error.role, error.parameter, error.ranks = role, name, ranks
    return error
