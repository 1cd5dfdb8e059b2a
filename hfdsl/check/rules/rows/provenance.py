"""Provenance: do the values of a call have the same rows, and do their tokens belong to one sample?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import signature_of
from hfdsl.check.repair.suggestions import with_suggestions
from hfdsl.check.row_comparison import Comparison, Meeting, made_name, meetings, read_name
from hfdsl.check.sources import argument_span
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.program import Input, Node
from hfdsl.graph.reads import RowColumn
from hfdsl.graph.row_steps import FilterStep, PartStep
from hfdsl.graph.samples import is_token_column
from hfdsl.graph.values import MismatchKind

# -- rows that meet


def rows_that_meet_are_the_same(context: Context) -> Iterator[Finding]:
    """HF333 and HF334: values of one call, merge or record have the same rows, and tokens of one sample.

    Two samples may meet as a pair: then each comes with its own tokens, or both with the same columns. A column of one
    sample that has neither its tokens nor its counterpart beside it is taken for a column of the other one's tokens.
    """
    compare, tokens = Comparison(context), context.program.origins.tokens
    generated = any(value.calls or value.columns for value in tokens)
    miscounted = _with_miscounted_rows(context)
    for meeting in meetings(context):
        rows = compare.different_rows(meeting)
        if rows is not None and not miscounted.isdisjoint(column.node for column in rows):
            continue  # HF212 is the cause
        if rows is not None:
            yield _different_rows(context, meeting.node, *rows)
        elif generated:
            samples = _different_tokens(context, compare, meeting)
            if samples is not None:
                yield _different_samples(context, meeting.node, *samples)


def _with_miscounted_rows(context: Context) -> set[int]:
    """The nodes whose rows depend on a call of values with different numbers of rows, which is a finding of its own."""
    mismatches = (m for m in context.program.inference.mismatches if m.kind is MismatchKind.ROWS)
    miscounted = [m.node for m in mismatches if len(set(map(context.known, m.sizes))) > 1]
    return descendants(context.program.graph, miscounted)


def _different_rows(context: Context, node: Node, left: RowColumn, right: RowColumn) -> Finding:
    names = read_name(node, left), read_name(node, right)
    finding = Finding(
        "HF333",
        f"'{node.label}' combines '{names[0]}' and '{names[1]}', which have different rows",
        _label(context, node, right),
        (_maker_label(context, left, names[0]), _maker_label(context, right, names[1])),
    )
    return with_suggestions(context, finding, (), _rows_advice(context, left, right))


def _rows_advice(context: Context, left: RowColumn, right: RowColumn) -> str:
    origins = context.program.origins.of(left), context.program.origins.of(right)
    kinds = {type(step) for origin in origins if origin for step in origin.steps}
    if FilterStep in kinds:
        advice = "merge the values before they are filtered, or filter both by the same column"
    elif PartStep in kinds:
        advice = "merge the values before hf.minibatches, or loop over the mini-batches of both together"
    else:
        advice = "repeat, take or fill both in the same way"
    return f"{advice}; a function that pairs other rows on purpose declares rows=hf.Whole"


def _label(context: Context, node: Node, column: RowColumn) -> Label:
    return Label(argument_span(node.span, signature_of(node), column.port), f"these are {words(context, column)}")


def _maker_label(context: Context, column: RowColumn, name: str) -> Label:
    maker = context.program.graph.nodes[column.node]
    return Label(maker.span, f"'{name}' has the rows of {words(context, column)}")


def words(context: Context, column: RowColumn) -> str:
    """The origin of a column's rows."""
    origin = context.program.origins.of(column)
    if origin is None:
        return "unknown rows"
    return origin.words(f"'{context.program.graph.nodes[origin.source].label}'")


# -- tokens of one sample


@dataclass(frozen=True)
class SampleColumns:
    """The columns of a meeting that have a dim of tokens from one generating call or one input: a sample per row."""

    call: int
    columns: list[RowColumn]

    def has_tokens(self) -> bool:
        """Whether the tokens themselves are among them."""
        return any(is_token_column(column.spec) for column in self.columns)


def _different_tokens(
    context: Context, compare: Comparison, meeting: Meeting
) -> tuple[Any, RowColumn, RowColumn] | None:
    """A dim, and two columns in which it counts the tokens of different samples."""
    origins, by_dim = context.program.origins, dict[Any, dict[tuple[int, int], SampleColumns]]()
    if origins.have_one_sample(meeting.node, meeting.reads):
        return None
    for column in origins.columns(meeting.node.id, meeting.reads):
        if compare.is_blamed(column):
            continue
        rows = id(origins.of(column))  # most are one object
        for dim, call in origins.samples(column).items():
            of_rows = by_dim.setdefault(dim, {})
            if (call, rows) in of_rows:
                of_rows[call, rows].columns.append(column)
            else:
                of_rows[call, rows] = SampleColumns(call, [column])
    for dim, of_rows in by_dim.items():
        samples: list[SampleColumns] = []
        for columns in of_rows.values():
            _add(compare, samples, columns)
        pair = _adrift(context, samples)
        if pair is not None:
            compare.blamed.add(meeting.node.id)
            return dim, *pair
    return None


def _add(compare: Comparison, samples: list[SampleColumns], added: SampleColumns) -> None:
    """Put columns of one origin to those of their sample: of the same call, and not certainly of other rows of it."""
    column, call = added.columns[0], added.call
    origin = compare.origin(column)
    for sample in samples:
        first = sample.columns[0]
        first_origin = compare.origin(first)
        if sample.call == call and (
            origin is None
            or first_origin is None
            or origin is first_origin
            or not compare.differ(first, first_origin, column, origin, call)
        ):
            sample.columns.extend(added.columns)
            return
    samples.append(added)


def _adrift(context: Context, samples: list[SampleColumns]) -> tuple[RowColumn, RowColumn] | None:
    """A column of a sample that is the counterpart of none, after the column whose tokens it is taken for."""
    if len(samples) < 2:
        return None
    for sample in reversed(samples):
        others = [
            other_sample
            for other_sample in samples
            if other_sample is not sample and not _are_inputs(context, sample, other_sample)
        ]
        names = {made_name(context.program.graph, column) for column in sample.columns}
        counterparts = {
            made_name(context.program.graph, column) for other_sample in others for column in other_sample.columns
        }
        if others and not sample.has_tokens() and names.isdisjoint(counterparts):
            with_tokens = [other_sample for other_sample in others if other_sample.has_tokens()] or others
            tokens = [column for column in with_tokens[0].columns if is_token_column(column.spec)]
            return (tokens or with_tokens[0].columns)[0], sample.columns[0]
    return None


def _are_inputs(context: Context, *samples: SampleColumns) -> bool:
    """Whether two samples are inputs, which may be columns of one data set."""
    return all(isinstance(context.program.graph.nodes[sample.call].op, Input) for sample in samples)


def _different_samples(context: Context, node: Node, dim: Any, left: RowColumn, right: RowColumn) -> Finding:
    names = read_name(node, left), read_name(node, right)
    finding = Finding(
        "HF334",
        f"'{node.label}' combines '{names[1]}' with '{names[0]}', which belong to different samples: their {dim} "
        "counts different tokens",
        Label(argument_span(node.span, signature_of(node), right.port), _generated(context, dim, right)),
        (
            Label(argument_span(node.span, signature_of(node), left.port), _generated(context, dim, left)),
            *_generators(context, dim, left, right),
        ),
    )
    advice = (
        f"columns with {dim} belong to one sample: compute '{names[1]}' from the rollout of '{names[0]}'; "
        "a function that pairs samples on purpose takes both with their tokens, or declares rows=hf.Whole"
    )
    return with_suggestions(context, finding, (), advice)


def _generated(context: Context, dim: Any, column: RowColumn) -> str:
    source = context.program.graph.nodes[context.program.origins.samples(column)[dim]]
    if isinstance(source.op, Input):
        return f"of the tokens of '{source.label}'"
    return f"of the tokens that '{source.label}' generates on line {source.span.line}"


def _generators(context: Context, dim: Any, *columns: RowColumn) -> Iterator[Label]:
    calls = dict.fromkeys(context.program.origins.samples(column)[dim] for column in columns)
    for call in calls:
        node = context.program.graph.nodes[call]
        yield Label(
            node.span, f"'{node.label}' has its own" if isinstance(node.op, Input) else f"'{node.label}' generates"
        )
