"""Reports of digests from ranks to the driver, and a comparison of both sides of a sync in a few operations.

An example
----------
Two ranks of an actor export the halves of ``x``, and a sampler has loaded all of it::

    rank      part             value
    actor 0   x[0:2]              41       one of each part, by weight:   41 + 154 = 195
    actor 1   x[2:4]             154
    sampler   x[0:4]             195                                                 195

Which numbers are replicas of the same part, and which add up to the same weight, depends on names and boxes alone. So
the driver works this out once, when it gets the names and boxes, and then only adds and compares arrays. If that finds
a difference, or if parts of a weight overlap, ``comparison.compare`` goes through the digests and names the ones that
are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from hfdsl.protocols.boxes import Box, extent, fill
from hfdsl.runtime.verification.digest_report import DigestReport, PartTable
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.copied_names import CopiedNames

if TYPE_CHECKING:
    from hfdsl.runtime.digests import Digests


class DriverReports:
    """The reports of ranks about the last step."""

    def __init__(self) -> None:
        self._parts: dict[str, PartTable] = {}
        self._reports: dict[tuple[VerifiedSync, bool], dict[int, DigestReport]] = {}
        self._sums: dict[tuple[str, ...], _Sums | None] = {}

    def replace(self, reports: Iterable[DigestReport]) -> None:
        """Keep the reports of a step, and drop those of the previous one."""
        self._reports = {}
        for report in reports:
            if report.parts is not None:
                self._parts[report.key] = report.parts
            self._reports.setdefault((report.sync, report.exported), {})[report.rank] = report

    def complete(self, sync: VerifiedSync, exporting: int, loading: int) -> bool:
        """Whether ``exporting`` ranks of one side and ``loading`` ranks of the other have reported."""
        sides = self._side(sync, exported=True), self._side(sync, exported=False)
        have_parts = all(report.key in self._parts for side in sides for report in side)
        return have_parts and [len(side) for side in sides] == [exporting, loading]

    def digests(self, sync: VerifiedSync, *, exported: bool) -> list[Digests]:
        """The digests of the ranks of one side."""
        from hfdsl.runtime.digests import Digest

        return [
            tuple(Digest(*part, value) for part, value in zip(self._parts[report.key], report.values, strict=True))
            for report in self._side(sync, exported=exported)
        ]

    def agree(self, sync: VerifiedSync, names: Callable[[], CopiedNames] = CopiedNames) -> bool:
        """Whether both sides certainly hold the same weights; otherwise compare the digests in detail.

        ``names`` says which weights the ranks of the target should have.
        """
        sides = [self._side(sync, exported=exported) for exported in (True, False)]
        keys = tuple(report.key for side in sides for report in side)
        if keys not in self._sums:
            tables = [[self._parts[report.key] for report in side] for side in sides]
            held = [{name for name, _, _ in table} for table in tables[1]]
            self._sums[keys] = None if any(names().lacking(held)) else _sums(*tables)
        sums = self._sums[keys]
        values = [[value for report in side for value in report.values] for side in sides]
        return sums is not None and sums.agree(*(np.array(side, np.uint64) for side in values))

    def _side(self, sync: VerifiedSync, *, exported: bool) -> list[DigestReport]:
        by_rank = self._reports.get((sync, exported), {})
        return [by_rank[rank] for rank in sorted(by_rank)]


_Indices: TypeAlias = npt.NDArray[np.int64]

_Values: TypeAlias = npt.NDArray[np.uint64]
"""The digests of all parts of all ranks of a side, one rank after another."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The ``first`` replica of each part, the different parts, and the weight number of each."""

    first: _Indices
    parts: _Indices
    weights: _Indices

    def sums(self, values: _Values, count: int) -> _Values | None:
        """The digests of weights; None if replicas differ."""
        if not np.array_equal(values, values[self.first]):
            return None
        sums = np.zeros(count, np.uint64)
        np.add.at(sums, self.weights, values[self.parts])
        return sums


@dataclass(frozen=True, slots=True)
class _Sums:
    """The digests of both sides that add up to those of ``count`` weights, and the ``same`` parts on both."""

    count: int
    source: _Side
    target: _Side
    same: tuple[_Indices, _Indices]

    def agree(self, source: _Values, target: _Values) -> bool:
        """Whether replicas, sums and common parts are equal."""
        exported, loaded = self.source.sums(source, self.count), self.target.sums(target, self.count)
        if exported is None or loaded is None:
            return False
        ours, theirs = self.same
        return np.array_equal(exported, loaded) and np.array_equal(source[ours], target[theirs])


def _sums(source: Sequence[PartTable], target: Sequence[PartTable]) -> _Sums | None:
    """How the digests of both sides add up; None if names or shapes differ, or a weight's parts overlap."""
    sides = [_first_of_each(tables) for tables in (source, target)]
    boxes = [_boxes(side) for side in sides]
    names = {name: number for number, name in enumerate(boxes[0])}
    if boxes[0].keys() != boxes[1].keys():
        return None
    for name, ours in boxes[0].items():
        theirs = boxes[1][name]
        if extent(ours) != extent(theirs) or not (fill(ours) and fill(theirs)):
            return None
    exporting, loading = (_side(side, tables, names) for side, tables in zip(sides, (source, target), strict=True))
    common = [part for part in sides[0] if part in sides[1]]
    same = [np.array([side[part] for part in common], np.int64) for side in sides]
    return _Sums(len(names), exporting, loading, (same[0], same[1]))


def _first_of_each(tables: Sequence[PartTable]) -> dict[tuple[str, Box], int]:
    """The first replica of each part."""
    first: dict[tuple[str, Box], int] = {}
    for index, (name, box, _) in enumerate(part for table in tables for part in table):
        first.setdefault((name, box), index)
    return first


def _boxes(parts: Iterable[tuple[str, Box]]) -> dict[str, list[Box]]:
    boxes: dict[str, list[Box]] = {}
    for name, box in parts:
        boxes.setdefault(name, []).append(box)
    return boxes


def _side(first: Mapping[tuple[str, Box], int], tables: Sequence[PartTable], names: Mapping[str, int]) -> _Side:
    entries = [(name, box) for table in tables for name, box, _ in table]
    return _Side(
        np.array([first[entry] for entry in entries], np.int64),
        np.array(list(first.values()), np.int64),
        np.array([names[name] for name, _ in first], np.int64),
    )
