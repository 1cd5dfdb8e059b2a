"""The rows of a rank's call for messages: those of its argument, of the caller's input, and their prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hfdsl.graph.program import Ref
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.rows import RowTable, argument_rows
from hfdsl.plan.segments import Segment
from hfdsl.protocols.ranges import as_ranges
from hfdsl.runtime.queues.rows import input_rows


@dataclass(frozen=True, slots=True)
class CalledRows:
    """The rows that each rank of a segment is called with.

    ``prompts`` gives by input of the plan the prompts of the loader, by number, whose rows it has one after another;
    only where a stage dispatches or reads them in an order of its own.
    """

    plan: Plan
    segment: Segment
    table: RowTable
    prompts: Callable[[], Mapping[int, Sequence[int]]] = dict

    def of(self, rank: int) -> str:
        """The rows of a rank, and the caller's rows behind them; empty if the call got none."""
        of_steps = {step.label: self._of_step(step, rank) for step in self.segment.steps if rank in step.ranks}
        if len(set(of_steps.values())) == 1:
            return next(iter(of_steps.values()))
        return "; ".join(f"{rows} in '{label}'" for label, rows in of_steps.items() if rows)

    def _of_step(self, step: Step, rank: int) -> str:
        node = step.rows_from
        if node is None or step.node not in self.table.splits:
            return ""
        ranges = argument_rows(self.table, step, Ref(node), step.chunk_of[step.ranks.index(rank)])
        row_numbers = [row for start, stop in ranges for row in range(start, stop)]
        name = next(name for name, operand in step.arguments if isinstance(operand, Ref) and operand.node == node)
        text = f"{numbered('row', row_numbers)} of {self.table.rows[node]} of '{name}'"
        made_of = input_rows(self.plan, self.table, node, row_numbers)
        if made_of is None:
            return text
        source, rows = made_of
        if source != node:
            text += f", made of {numbered('row', rows)} of '{self.plan.node(source).label}'"
        if numbers := self.prompts().get(source):
            per_prompt = self.table.rows[source] // len(numbers)
            text += f", of {numbered('prompt', [numbers[row // per_prompt] for row in rows])} of the loader"
        return text


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Numbers for a message, each once, in order.

    >>> numbered("row", [4, 5, 6, 7, 7]), numbered("row", [9, 1, 2]), numbered("prompt", [3])
    ('rows 4 to 7', 'rows 1 to 2, 9', 'prompt 3')
    """
    ranges = as_ranges(sorted(set(numbers)))
    runs = [str(start) if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in ranges]
    return f"{noun}{'s' * (len(runs) != 1 or ' ' in runs[0])} {', '.join(runs) or 'none'}"
