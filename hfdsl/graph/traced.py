"""The graph of a traced dataflow, as users see it: it prints itself and converts to a networkx graph.

``hfdsl.graph.program`` has the data, which everything else reads; so none of that needs to import this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfdsl.graph.networks import node_names, to_networkx
from hfdsl.graph.program import Graph
from hfdsl.types.html import table

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True, repr=False)
class TracedGraph(Graph):
    """The result of ``flow.trace()``. ``print(graph)`` lists its nodes."""

    def to_networkx(self) -> nx.MultiDiGraph:
        """The graph for networkx: nodes by name, an edge for each value that a node reads, by the name of its port.

        Nodes have ``kind`` (input, call, function, operation or result), ``role``, ``method``, ``protocol``, ``type``,
        ``columns``, ``dtypes`` and ``shapes``, the plain values among their arguments as ``constant_NAME``, and the
        ``file`` and ``line`` where they are written. Edges have the columns that are read. All attributes are texts and
        numbers; several entries of one are separated by ``"; "``.

        Raises:
            PackageError: HF990 if networkx is not installed.

        >>> from hfdsl.rl.dataflows.remax import remax
        >>> network = remax.trace().to_networkx()
        >>> network.nodes["reward.score#1"]["shapes"], sorted(network.predecessors("advantages_over"))
        ('B', ['actor.generate#1', 'kl_penalized_rewards', 'reward.score#2'])
        """
        return to_networkx(self)

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"graph of '{self.name}'", *(f"  {line}" for line in lines)])

    def __repr__(self) -> str:
        return f"<graph of '{self.name}': {len(self.nodes)} nodes, {len(self.calls)} of them calls>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return table(f"graph of '{self.name}'", ("node", "type", "reads"), self._rows())

    def _rows(self) -> list[tuple[str, str, str]]:
        """For each node its name, its type and its reads: columns of other nodes, or whole values."""
        names = node_names(self)
        rows = []
        for node in self.nodes:
            columns: dict[int, list[str]] = {}
            for ref in node.refs:
                columns.setdefault(ref.node, []).extend([ref.column] if ref.column else [])
            listed = {source: f" ({', '.join(names)})" if names else "" for source, names in columns.items()}
            reads = [f"{names[source]}{text}" for source, text in listed.items()]
            rows.append((names[node.id], str(node.result), ", ".join(reads)))
        return rows
