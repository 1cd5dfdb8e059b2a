"""The label that explains ``kept1`` in messages: the number of rows that a filter keeps, known only at run time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program
from hfdsl.graph.program import Filter
from hfdsl.types.dims import KeptGroups

_NAME = re.compile(r"\bkept\d+\b")


class KeptRows:
    """The filters of a program, for messages that name the kept rows."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def explained(self, finding: Finding) -> Finding:
        """The finding with the name at each filter whose rows its texts name."""
        if not self._labels:
            return finding
        texts = (finding.message, *(label.text for label in (finding.primary, *finding.related)), *finding.notes)
        names = dict.fromkeys(name for text in texts for name in _NAME.findall(text))
        related = list(finding.related)
        for name in names:
            label = self._labels.get(name)
            if label is None or label.span == finding.primary.span:
                continue
            at_filter = [place for place, candidate in enumerate(related) if candidate.span == label.span]
            if not at_filter:
                related.append(label)
            elif not any(name in related[place].text for place in at_filter):
                place = at_filter[0]
                related[place] = replace(related[place], text=f"{related[place].text}: {name}")
        return replace(finding, related=tuple(related))

    @cached_property
    def _labels(self) -> Mapping[str, Label]:
        return dict(reversed(list(self._first_filters())))  # the first of those that keep the same

    def _first_filters(self) -> Iterator[tuple[str, Label]]:
        for node in self._program.graph.nodes:
            rows = self._program.inference.rows(node.id)
            if isinstance(node.op, Filter) and rows is not None:
                unit = "rows" if node.op.group == 1 else f"groups of {node.op.group} rows"
                for atom in rows.atoms:
                    if isinstance(atom, KeptGroups):
                        yield atom.__name__, Label(node.span, f"{atom.__name__}: the number of {unit} that this keeps")
