"""Balancing: does the column in ``balance=`` have a weight for each row?"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.graph.program import Node
from hfdsl.graph.row_weights import balancing, weighs
from hfdsl.graph.signatures import VALUE, RecordType, Signature
from hfdsl.types.batches import schema
from hfdsl.types.similar_names import closest

ROW_WEIGHTS = (
    "the weight of a row is the sum of its booleans or integers in that column (a token mask, or a number of tokens), "
    "or its length if the column is ragged"
)


def balance_columns_weigh_rows(context: Context) -> Iterator[Finding]:
    """``balance=`` names one column of one argument, and that column has a weight for each row."""
    first: dict[int, tuple[Node, Signature, str]] = {}
    for node, signature in context.program.graph.bodies:
        registration = signature.registration
        if registration is not None and registration.balance is not None:
            first.setdefault(id(signature), (node, signature, registration.balance))
    for node, signature, name in first.values():
        if (wrong := _wrong(signature, name)) is not None:
            message, notes = wrong
            called = Label(node.span, "called here")
            yield Finding(
                "HF425", f"'{node.label}' is balanced by {message}", Label(signature.span), (called,), notes=notes
            )


def _wrong(signature: Signature, name: str) -> tuple[str, tuple[str, ...]] | None:
    """Describe the defect of a ``balance=`` declaration, with advice; None if it is valid."""
    columns = list(balancing(signature))
    if not columns:
        ports = ", ".join(f"{port.name}: {port.type}" for port in signature.ports) or "none"
        return f"'{name}', and has no such column in its arguments ({ports}); {_near(signature, name)}", ()
    if len(columns) > 1:
        qualified = " or ".join(f'"{port.name}.{name}"' for port, _, _ in columns)
        owners = ", ".join(f"'{port.name}'" for port, _, _ in columns)
        return f"'{name}', which several of its arguments have: {owners}", (f"say which: balance={qualified}",)
    [(port, column, spec)] = columns
    if not weighs(spec):
        where = f"column '{column}' of argument '{port.name}'" if column else f"argument '{port.name}'"
        return f"{where}, and {spec} does not weigh a row", (ROW_WEIGHTS,)
    return None


def _near(signature: Signature, name: str) -> str:
    names: dict[str, None] = {}
    for port in signature.ports:
        fields = schema(port.type.record).fields if isinstance(port.type, RecordType) else {VALUE: port.type}
        names |= {column or port.name: None for column, spec in fields.items() if weighs(spec)}
    return closest(name.rpartition(".")[2], list(names))
