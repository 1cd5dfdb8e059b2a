"""The result of a body: checked against its signature, and converted to raw columns for other roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.body_checks import check_result, check_widths
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType, optional_columns
from hfdsl.plan.plan import Plan, Step
from hfdsl.plan.reading import to_columns
from hfdsl.plan.rows import RowTable
from hfdsl.protocols.conditions import provisions_of
from hfdsl.runtime.messages import SegmentResult
from hfdsl.types.batches import Batch, schema, upcast
from hfdsl.types.columns import ColumnSpec, MetricSpec
from hfdsl.types.dims import Size, atom_size, constant
from hfdsl.types.joining import all_present
from hfdsl.types.ragged import Jagged


def result_columns(
    step: Step,
    index: int,
    table: RowTable,
    presence: Mapping[str, bool],
    arguments: Mapping[str, Any],
    result: Any,
    planned: Mapping[Any, Size],
) -> dict[str, Any]:
    """The columns of a result from the rank ``step.ranks[index]`` for these arguments, without pad rows.

    ``presence`` says which optional columns the step is declared to return; ``planned`` has the widths of its columns,
    by dim.

    Raises:
        WiringError: HF805 if it returned anything other than it declares.
    """
    rank = step.ranks[index]
    collected = rank in step.layout.holders
    # Outputs of ranks that are not collected are never looked at, whatever they are.
    if step.custom is not None or collected or step.layout.group != step.group:
        check_result(step.label, step.signature.returns, result, f"on rank {rank}")
    if step.custom is None and collected:
        check_widths(step.label, step.signature, arguments, result, f"on rank {rank}", planned)
    if isinstance(result, Batch) and isinstance(step.signature.returns, RecordType):
        result = upcast(result, step.signature.returns.record)
    columns = detached(to_columns(result))
    if step.custom is not None:
        return columns
    for name, present in presence.items():
        if collected and (columns[name] is not None) is not present:
            raise WiringError("HF805", f"{_wrong_presence(step, name, present)} on rank {rank}")
    return _real_rows(step, index, table, columns) if collected else columns


def planned_widths(plan: Plan, step: Step) -> Mapping[Any, Size]:
    """The sizes that a plan has for the dims in a step's result, as its call binds them."""
    kind, bound = step.signature.returns, plan.inference.bindings[step.node]
    specs = schema(kind.record).fields.values() if isinstance(kind, RecordType) else (kind,)
    dims = {atom for spec in specs if isinstance(spec, ColumnSpec) for dim in spec.dims[1:] for atom in dim.atoms}
    sizes = {dim: constant(size) for dim, size in plan.dims.items()}
    widths = {dim: bound.get(dim, atom_size(dim)).substitute(sizes) for dim in dims}
    return {dim: size for dim, size in widths.items() if size.value is not None}


def _wrong_presence(step: Step, name: str, present: bool) -> str:
    provisions = provisions_of(step.signature.body)
    provision = next(provision for provision in provisions if name in (provision.columns or (VALUE,)))
    subject = f"column '{name}'" if name else "its result"
    declared, returned = ("there", "left it out") if present else ("absent", "gave it")
    return f"'{step.label}' is declared {provision}, by which {subject} is {declared}, and {returned}"


def _real_rows(step: Step, index: int, table: RowTable, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns without pad rows, after a check of their row count."""
    rank = step.ranks[index]
    rows, bounds, row_split = table.rows.get(step.node), table.bounds.get(step.node), table.splits.get(step.node)
    if rows is None or not bounds:
        return columns  # it has no rows, or each entry of a list has rows of its own
    part = step.layout.holders.index(rank)
    real = expected = bounds[part + 1] - bounds[part]  # ``expected`` counts pad rows, too
    input_rows = row_split.chunk_size if row_split else 0
    if input_rows and step.rows_from is not None and step.layout.chunks == step.chunks:
        expected = input_rows * rows // table.rows[step.rows_from]
    why = f"its {input_rows} input rows make {expected}" if input_rows else f"the program has {expected} there"
    returns = step.signature.returns
    with_rows = columns_with_rows(returns, columns)
    for value in with_rows.values():
        if len(value) != expected:
            raise WiringError(
                "HF805", f"'{step.label}' returned {_row_count(value)} of {returns} on rank {rank}, where {why}"
            )
    return columns if real == expected else columns | {name: value[:real] for name, value in with_rows.items()}


def check_collected_rows(step: Step, table: RowTable, columns: Mapping[str, Any]) -> None:
    """Refuse a collected value whose number of rows differs from the one that its readers expect.

    Raises:
        WiringError: HF805 naming the step, and its place in the source.
    """
    rows, returns = table.rows.get(step.node), step.signature.returns
    if rows is None or isinstance(returns, ListType):  # each entry of a list has rows of its own
        return
    for value in columns_with_rows(returns, columns).values():
        if len(value) != rows:
            returned = f"the collect function of '{step.label}' returned {_row_count(value)} of {returns}"
            raise WiringError("HF805", f"{returned}, where the program has {rows} there ({step.signature.span})")


def columns_with_rows(kind: PortType, columns: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a value except metrics, which have no rows, and absent columns."""
    kinds = schema(kind.record).fields if isinstance(kind, RecordType) else {VALUE: kind}
    return {
        name: value for name, value in columns.items() if not isinstance(kinds[name], MetricSpec) and value is not None
    }


def _row_count(value: Any) -> str:
    return "1 row" if len(value) == 1 else f"{len(value)} rows"


def detached(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors over the same memory, without autograd history, that can be trained on.

    Between separate processes, neither a history nor the mark of ``torch.inference_mode`` crosses from role to role, so
    neither may do so within one process.
    """
    return {name: _detached(value) for name, value in columns.items()}


def _detached(value: Any) -> Any:
    if isinstance(value, Jagged):
        return Jagged(_detached(value.values), _detached(value.offsets)) if value.is_inference() else value
    if getattr(value, "requires_grad", False):
        return value.detach()
    if hasattr(value, "untyped_storage") and value.is_inference():
        return value.new_empty(0).set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
    return value


def check_same_presence(plan: Plan, results: Iterable[SegmentResult]) -> None:
    """Refuse a value if only some ranks have an optional column, even if no reader has seen more than one part.

    Raises:
        WiringError: HF810 naming the column and the ranks.
    """
    steps = {
        step.label: step
        for step in plan.steps
        if step.custom is None and not step.layout.lists and optional_columns(step.signature.returns)
    }
    if not steps:
        return
    absent: dict[str, dict[int, tuple[str, ...]]] = {label: {} for label in steps}
    for call in (call for result in results for call in result.calls if call.label in steps):
        absent[call.label][call.rank] = call.absent
    for label, step in steps.items():
        holders = sorted(absent[label].keys() & frozenset(step.layout.holders))
        for name in optional_columns(step.signature.returns):
            subject = f"column '{name}' of '{label}'" if name else f"the result of '{label}'"
            parts = [None if name in absent[label][rank] else name for rank in holders]
            try:
                all_present(subject, parts, [f"rank {rank}" for rank in holders])
            except WiringError as error:
                raise WiringError(error.code, f"{error.message} ({plan.body_span(step)})") from None
