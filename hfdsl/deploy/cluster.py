"""Clusters: the nodes that a deployment runs on, by kind of node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hfdsl.errors import ResourceError
from hfdsl.graph.spans import NOWHERE, Span, caller_span
from hfdsl.types.foreign_text import parse_toml, read_text
from hfdsl.types.numbers import MAX_COUNT, brief, count_range, is_count, is_number
from hfdsl.types.similar_names import closest, nearest

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Nodes:
    """``count`` nodes of one kind, each with ``gpus`` and ``cpus``; memory is that of one GPU, and of the host.

    ``domain`` is the number of nodes whose GPUs are linked as fast as those of one node, if there are any.

    Raises:
        ResourceError: HF523 for a number that makes no sense.

    >>> str(Nodes(16, gpus=8, gpu_memory_gib=80, cpus=96))
    '16 nodes of 8 GPUs (80 GiB) and 96 CPUs'
    """

    count: int
    gpus: int = field(default=0, kw_only=True)
    gpu_memory_gib: float | None = field(default=None, kw_only=True)
    cpus: float = field(kw_only=True)
    memory_gib: float | None = field(default=None, kw_only=True)
    domain: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        mistakes = list(_number_mistakes({entry.name: getattr(self, entry.name) for entry in fields(self)}))
        if mistakes:
            raise _refused("; ".join(mistakes))

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''} ({self.gpu_memory_gib:g} GiB) and " if self.gpus else ""
        return (
            f"{self.count} node{'s' if self.count > 1 else ''} of {gpus}{self.cpus:g} CPU{'s' if self.cpus > 1 else ''}"
        )


@dataclass(frozen=True, slots=True, init=False)
class Cluster:
    """The nodes of a cluster, as ``check`` reads them; the cluster itself is never queried.

    Raises:
        ResourceError: HF523 if there are no nodes, or something else among them.

    >>> import hfdsl as hf
    >>> cluster = hf.Cluster(hf.Nodes(2048, gpus=8, gpu_memory_gib=80, cpus=96), hf.Nodes(4, cpus=64))
    >>> cluster.gpus, str(cluster)
    (16384, '2048 nodes of 8 GPUs (80 GiB) and 96 CPUs, 4 nodes of 64 CPUs')
    """

    kinds: tuple[Nodes, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    def __init__(self, *kinds: Nodes) -> None:
        if not kinds:
            raise _refused("a cluster needs nodes: hf.Cluster(hf.Nodes(2, gpus=8, gpu_memory_gib=80, cpus=96))")
        for kind in kinds:
            if not isinstance(kind, Nodes):
                raise _refused(f"a cluster is made of hf.Nodes(...), got {kind!r}")
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "span", caller_span())

    @classmethod
    def read(cls, path: str | Path) -> Cluster:
        """The cluster that a TOML file describes: a ``[[nodes]]`` table per kind, with the fields of ``hf.Nodes``.

        Raises:
            ResourceError: HF523 naming the file, the table and the key of each mistake.
        """
        try:
            text = read_text(path)
            document = parse_toml(text)
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise _refused(f"{path}: line {line}: {error.reason}; TOML is UTF-8") from None
        except (OSError, ValueError) as error:  # also of a number of more digits than Python reads
            raise _refused(f"{path}: {getattr(error, 'strerror', None) or error}") from None
        if mistakes := list(_mistakes(document)):
            raise _refused("\n".join(f"{path}: {mistake}" for mistake in mistakes))
        cluster = cls(*(Nodes(**table) for table in document["nodes"]))
        heads = (line for line, written in enumerate(text.split("\n"), 1) if written.strip().startswith("[[nodes]]"))
        object.__setattr__(cluster, "span", Span(str(path), next(heads, 1)))
        return cluster

    @property
    def gpus(self) -> int:
        """The GPUs of all nodes."""
        return sum(kind.count * kind.gpus for kind in self.kinds)

    @property
    def cpus(self) -> float:
        """The CPUs of all nodes."""
        return sum(kind.count * kind.cpus for kind in self.kinds)

    def __str__(self) -> str:
        return ", ".join(map(str, self.kinds))


def _refused(message: str) -> ResourceError:
    return ResourceError("HF523", message)


def _number_mistakes(values: Mapping[str, Any]) -> Iterator[str]:
    """The mistakes in the numbers of nodes; those that are left out have their defaults."""
    invalid = set[str]()
    for name, least in (("count", 1), ("gpus", 0), ("domain", 1)):
        if name in values and not is_count(values[name], least):
            invalid.add(name)
            yield f"{name} is {count_range(values[name], least=least)}, got {brief(values[name])}"
    for name in ("gpu_memory_gib", "cpus", "memory_gib"):
        value = values.get(name)
        required = name in values and (value is not None or name == "cpus")
        if required and not (is_number(value) and 0 < value <= MAX_COUNT):
            invalid.add(name)
            bound = "up to 2**63 - 1" if is_number(value) and MAX_COUNT < value < math.inf else "above 0"
            yield f"{name} is a number {bound}, got {brief(value)}"
    gpus, memory = values.get("gpus", 0), values.get("gpu_memory_gib")
    if not invalid.isdisjoint(("gpus", "gpu_memory_gib")):
        return
    if gpus and memory is None:
        yield f"nodes with gpus = {gpus} need gpu_memory_gib, the memory of one GPU"
    if not gpus and memory is not None:
        yield f"gpu_memory_gib = {memory:g} is given for nodes without gpus"


def _mistakes(document: Mapping[str, Any]) -> Iterator[str]:
    """All mistakes of a file, each with its place."""
    misspelled = set[str | None]()
    for key in document:
        if key != "nodes":
            misspelled.add(nearest(key, ["nodes"]))
            yield f"unknown key '{key}' at the top; {closest(key, ['nodes'])}"
    tables = document.get("nodes", [])
    if not isinstance(tables, list):
        yield "nodes is a list of tables, each under [[nodes]] with two brackets"
    elif not tables and "nodes" not in misspelled:
        yield "there is no [[nodes]] table"
    for i, table in enumerate(tables if isinstance(tables, list) else (), 1):
        yield from (f"table {i} of [[nodes]]: {mistake}" for mistake in _table_mistakes(table))


def _table_mistakes(table: Any) -> Iterator[str]:
    """The mistakes of a table; a misspelled key counts as the one that it is nearest to."""
    if not isinstance(table, dict):
        yield f"a table is needed, got {table!r}"
        return
    names, values = [entry.name for entry in fields(Nodes)], dict(table)
    for key in table:
        if key not in names:
            yield f"unknown key '{key}'; {closest(key, names)}"
            values.setdefault(nearest(key, names) or key, values.pop(key))
    yield from (f"the key '{key}' is missing" for key in ("count", "cpus") if key not in values)
    yield from _number_mistakes(values)
