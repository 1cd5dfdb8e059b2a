"""Wiring: does every value fit where it is used?"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hfdsl.check.constraints import filtered
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules import presence, shapes
from hfdsl.check.sources import argument_span, keyword_span, port_span, return_span
from hfdsl.check.subject import Subject, signature_of
from hfdsl.graph.infer import Mismatch, RecordValue
from hfdsl.graph.infer import MismatchKind as Kind
from hfdsl.graph.program import Constant, Input, Misuse, MisuseKind, Pack
from hfdsl.graph.signatures import ListType, RecordType
from hfdsl.graph.spans import NOWHERE, Span, definition_span
from hfdsl.graph.trace import SymbolicRole
from hfdsl.types.batches import closest, schema
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Answer

# kind of misuse -> code, message, help. Fields: {m} the misuse, {near} did you mean ...
MISUSES: dict[MisuseKind, tuple[str, str, str]] = {
    MisuseKind.NO_COLUMN: ("HF201", "'{m.subject}' has no column '{m.name}'", "{near}"),
    MisuseKind.NO_METHOD: ("HF202", "role '{m.subject}' has no registered method '{m.name}'", "{near}"),
    MisuseKind.NO_PORT: ("HF202", "'{m.subject}' has no port '{m.name}'", "{near}"),
    MisuseKind.TWICE: ("HF202", "'{m.subject}' is given its port '{m.name}' twice: by position and by name", ""),
    MisuseKind.MISSING_PORT: (
        "HF203",
        "'{m.subject}' is called without a value for {m.name}",
        "wire it: {m.subject}(..., {wires})",
    ),
    MisuseKind.KEYWORD_ONLY: ("HF202", "'{m.name}' of '{m.subject}' is keyword-only: write {m.name}=...", ""),
    MisuseKind.TOO_MANY: (
        "HF202",
        "'{m.subject}' is called with {m.name} positional arguments, more than it has ports",
        "its ports are: {listed}",
    ),
    MisuseKind.CONTROL: (
        "HF207",
        "'{m.name}' asks for the value of '{m.subject}', which is not there before the program runs",
        "{decide}",
    ),
    MisuseKind.COMPUTE: (
        "HF208",
        "'{operator}' on '{m.subject}': a dataflow passes values on and does not compute with them",
        "move it into a function decorated with @hf.function",
    ),
    MisuseKind.ASSIGN: (
        "HF206",
        "'{m.subject}.{m.name}' cannot be set: a record never changes",
        "build a new one: hf.merge(Record, ...) or Record({m.name}=..., ...)",
    ),
    MisuseKind.FOREIGN: (
        "HF209",
        "'{m.subject}' belongs to another trace: it was kept from an earlier check or another dataflow",
        "take it as a parameter of this dataflow, and keep no values outside of it",
    ),
    MisuseKind.BAD_COUNT: ("HF304", "{m.subject} takes a whole number of at least 1, got {m.name}", ""),
    MisuseKind.MERGE_MISSING: ("HF204", "'{m.subject}' is put together without its column '{m.name}'", "{makers}"),
    MisuseKind.MERGE_TWICE: (
        "HF205",
        "column '{m.name}' of '{m.subject}' comes from {both}",
        "pass only one of them",
    ),
    MisuseKind.DEFINITION: ("{m.name}", "{m.subject}", ""),
    MisuseKind.RAISED: ("HF610", "'{m.subject}' raised while it was traced: {m.name}", ""),
    MisuseKind.NOT_A_RESULT: (
        "HF603",
        "the dataflow returns {m.subject}, which is no value of the graph",
        "return records, metrics, or tuples of them",
    ),
    MisuseKind.CONTAINER: (
        "HF206",
        "a {m.subject} of values of the graph is wired to a call, whose ports take one value each",
        "give each of them a port of its own; columns of several records go into one with hf.merge",
    ),
    MisuseKind.NOT_A_RECORD: (
        "HF206",
        "{m.subject} takes a record of rows, got '{m.name}'",
        "give it the whole record, and read the column from what it makes",
    ),
    MisuseKind.NO_SYNC: ("HF707", "{m.subject}: {m.name}", ""),
    MisuseKind.VARIADIC: (
        "HF119",
        "parameter '{m.name}' of '{m.subject}' stands for any number of values: neither a record nor a role",
        "give every record and role a parameter of its own",
    ),
    MisuseKind.NOT_A_COLUMN: ("HF206", "hf.present takes a column of a record, got {m.subject}", ""),
    MisuseKind.PARAMETER: (
        "HF119",
        "parameter '{m.name}' of '{m.subject}' {m.candidates[0]}: neither a record nor a role",
        "{m.candidates[1]}",
    ),
    MisuseKind.ROLE: (
        "HF206",
        "'{m.name}' on the role '{m.subject}': a dataflow calls registered methods of {listed} and nothing else",
        "what a role knows stays in its workers: let a registered method give or change it",
    ),
    MisuseKind.OUTSIDER: (
        "HF607",
        "'{m.subject}': a worker of class {m.name} that is no parameter of the dataflow has no place to run",
        "take it as a parameter, annotated {m.name}, and call its methods on that",
    ),
}

DECIDE = {
    "": "decide inside a role or an hf.function; loops over hf.minibatches(x, n) and over plain Python values unroll",
    "len()": "a size is a dim: what depends on it goes into a role, an hf.function or @hf.requires",
    "iteration": "read columns by their names; rows are cut by hf.minibatches(x, n), whose loop unrolls",
    "formatting": "print(x) shows what it stands for; format the numbers of what a step has returned",
    "pickling": "return it from the dataflow, and save what a step has returned",
}
"""What to do instead, by what asks for a value."""
NAMES = (MisuseKind.NO_COLUMN, MisuseKind.NO_METHOD, MisuseKind.NO_PORT, MisuseKind.KEYWORD_ONLY)
"""The misuses that another name mends."""

OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
    "neg": "-",
    "pos": "+",
    "invert": "~",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
    "contains": "in",
    "getitem": "[...]",
    "setitem": "[...] =",
    "abs": "abs()",
    "round": "round()",
    "divmod": "divmod()",
    "floor": "math.floor()",
    "ceil": "math.ceil()",
    "trunc": "math.trunc()",
    "delitem": "del [...]",
    "enter": "with",
    "array": "a numpy function",
    "array_ufunc": "a numpy function",
    "torch_function": "a torch function",
}
"""What a user writes for the operators that a trace meets."""


def misuses(subject: Subject) -> Iterator[Finding]:
    """What the trace itself met."""
    for misuse in subject.graph.misuses:
        code, message, help_ = MISUSES[misuse.kind]
        fields = {
            "m": misuse,
            "operator": OPERATORS.get(misuse.name, misuse.name),
            "decide": DECIDE.get(misuse.name, DECIDE[""]),
            "near": closest(misuse.name, misuse.candidates) if "{near}" in help_ else "",
            "makers": _column_makers(subject, misuse) if "{makers}" in help_ else "",
            "wires": ", ".join(f"{name}=..." for name in misuse.name.split(", ")),
            "listed": ", ".join(misuse.candidates),
            "both": _both(misuse.candidates),
        }
        helped = help_.format(**fields)
        finding = Finding(
            code.format(**fields),
            message.format(**fields),
            Label(_misuse_span(misuse)),
            tuple(_misuse_related(subject, misuse)),
            help=(helped,) if helped else (),
        )
        yield _nearest(subject, finding, misuse) if misuse.kind in NAMES else finding


def _nearest(subject: Subject, finding: Finding, misuse: Misuse) -> Finding:
    if subject.trials is None:
        return finding
    from hfdsl.check.repair.fixes import named

    return named(subject.trials(), finding, misuse)


def _both(makers: Sequence[str]) -> str:
    """Two makers of one column, in words."""
    once = list(dict.fromkeys(makers))
    return f"two calls of {once[0]!r}" if len(once) == 1 else f"both {' and '.join(map(repr, once))}"


def _column_makers(subject: Subject, misuse: Misuse) -> str:
    """Where a missing column can be had; a column of a like name is what is meant only where nothing makes it."""
    for node, made in subject.made():
        if isinstance(node.op, Pack):
            continue  # a merge may be the very one that lacks it
        if misuse.name in schema(made.record).fields:
            return f"'{node.label}' gives a {made} with that column"
    return closest(misuse.name, misuse.candidates)


def _misuse_span(misuse: Misuse) -> Span:
    if misuse.kind is MisuseKind.NOT_A_RESULT:
        return return_span(misuse.span)
    if misuse.kind in (MisuseKind.NO_PORT, MisuseKind.TWICE):
        return keyword_span(misuse.span, misuse.name)
    return misuse.span


def _misuse_related(subject: Subject, misuse: Misuse) -> Iterator[Label]:
    if misuse.producer is not None and not isinstance(subject.graph.nodes[misuse.producer].op, Input):
        yield subject.produced(misuse.producer)
    if misuse.signature is not None:
        yield Label(misuse.signature.span, f"declared with ports {', '.join(p.name for p in misuse.signature.ports)}")
    if misuse.kind is MisuseKind.NO_METHOD and misuse.subject in {r.__name__ for r in subject.graph.roles.values()}:
        role = next(r for r in subject.graph.roles.values() if r.__name__ == misuse.subject)
        yield Label(definition_span(role), f"its registered methods: {', '.join(misuse.candidates) or 'none'}")


def mismatches(subject: Subject) -> Iterator[Finding]:
    """Every value that does not fit its port."""
    seen: set[tuple[Span, str, Kind]] = set()
    for mismatch in subject.inference.mismatches:
        # A value that grows in a loop differs in every round, each time by other numbers: the first tells it.
        place = subject.graph.nodes[mismatch.node].span, mismatch.port, mismatch.kind
        finding = _mismatch(subject, mismatch) if place not in seen else None
        if finding is not None:
            seen.add(place)
            yield finding


Told: TypeAlias = tuple[str, str, tuple[str, ...]]
"""The code, the message and the help of a finding."""


def _mismatch(subject: Subject, m: Mismatch) -> Finding | None:
    node = subject.graph.nodes[m.node]
    signature = signature_of(node)
    what = "column" if isinstance(node.op, Pack) else "port"
    primary = argument_span(node.span, signature, m.port)
    named = f"{what} '{m.port}' of '{node.label}'"
    if m.kind is Kind.ABSENT:
        told: Told | None = presence.absent(
            subject, m, f"{named} takes {m.formal} but is wired to {_actual(m)}", primary
        )
    else:
        told = _explain(subject, m, named)
    if told is None:
        return None
    code, message, help_ = told
    related = [subject.produced(m.source.node)] if m.source else []
    related = [label for label in related if label.span != primary]  # written inline: one place is enough
    maker = signature_of(subject.graph.nodes[m.source.node]) if m.source and m.kind is Kind.LIST else None
    if maker is not None and maker.registration is not None:
        related.append(Label(maker.span, f"registered with {maker.registration.name}"))
    if m.kind is Kind.ABSENT and m.source is not None:
        related += presence.presence(subject, m.source).places
    if signature is not None and signature.span != NOWHERE:
        related.append(Label(port_span(signature, m.port), f"declared {m.formal}"))
    finding = Finding(code, message, Label(primary, f"this is {_actual(m)}"), tuple(related), shapes.notes(m), help_)
    return _repeated(subject, finding, m) if code == "HF212" else finding


def _actual(m: Mismatch) -> str:
    if not isinstance(m.actual, Constant):
        return str(m.actual)
    value = m.actual.value
    if isinstance(value, SymbolicRole):
        return f"the role '{value._name}'"
    return "None" if value is None else f"the {type(value).__name__} {reprlib.repr(value)}"


def _explain(subject: Subject, m: Mismatch, port: str) -> Told | None:
    """What is to be said of a mismatch of types or sizes; None where known sizes settle it."""
    facts = dict(m.detail)
    wired = f"{port} takes {m.formal} but is wired to {_actual(m)}"
    match m.kind:
        case Kind.RECORD:
            return "HF204", wired, _makers(subject, m)
        case Kind.VALUE:
            return "HF206", wired, _makers(subject, m)
        case Kind.LIST if isinstance(m.formal, ListType) and _takes_entries(subject, m):
            told = f"{port} is declared {m.formal}, but each rank is given its own entry of the list: {m.formal.inner}"
            return "HF401", told, (f"declare the port {m.formal.inner}",)
        case Kind.LIST:
            return "HF401", wired, _to_list(m)
        case Kind.DTYPE:
            return shapes.dtypes(wired, m)
        case Kind.RAGGED:
            return "HF214", wired, _ragged(m)
        case Kind.RANK:
            return shapes.ranks(wired, m)
        case Kind.DIM:
            why = f" ({facts['want']} was bound by port '{facts['origin']}')" if facts["origin"] else ""
            differs = f"dim {facts['position']} is {facts['have']} where {facts['want']} is needed"
            return "HF210", f"{wired}: {differs}{why}", ()
        case Kind.UNSOLVED:
            unsolved = f"'{facts['want']}' cannot be solved for from '{facts['have']}'"
            return (
                "HF213",
                f"{port} takes {m.formal}: {unsolved}",
                ("leave one name open in it, as x in Mul[x, Literal[2]]",),
            )
        case _:
            return _rows(subject, m, port, facts)


def _ragged(m: Mismatch) -> tuple[str, ...]:
    if isinstance(m.formal, ColumnSpec) and m.formal.ragged:
        return ("cut its rows where it is made, and declare it so there: Ragged[...], from a list with a tensor a row",)
    return (
        "pad its rows in an @hf.function, torch.nn.utils.rnn.pad_sequence(x.rows, True); or take it as Ragged[...]",
    )


def _takes_entries(subject: Subject, m: Mismatch) -> bool:
    """Whether a port is declared as a list where its protocol gives every rank one entry of a list already."""
    signature = signature_of(subject.graph.nodes[m.node])
    port = signature.port(m.port) if signature is not None and signature.per_rank else None
    return port is not None and port.type == m.formal


def _to_list(m: Mismatch) -> tuple[str, ...]:
    if isinstance(m.formal, ListType):
        return ("make it with a protocol that gives one value a rank, such as ONE_TO_ALL",)
    return ("take one entry or reduce it in an @hf.function; or collect with a protocol that joins rows",)


def _rows(subject: Subject, m: Mismatch, port: str, facts: dict[str, str]) -> Told | None:
    if m.expected is None or m.found is None:
        return None
    want, have = subject.known(m.expected), subject.known(m.found)
    if want == have:
        return None  # the sizes that were given make them equal
    if want.equals(have) is Answer.UNKNOWN and not (filtered(want) or filtered(have)):
        open_ = ", ".join(f"{atom.__name__}: ..." for atom in (want - have).atoms)
        message = f"cannot decide before launch whether {port} gets as many rows as it needs"
        beside = f"'{facts['origin']}' beside it has {want}" if facts["origin"] else f"{want} are needed"
        return "HF319", f"{message}: it gets {have}, {beside}", (f"give the sizes: dims={{{open_}}}",)
    known = (str(want), str(have)) != (facts["want"], facts["have"])
    numbers = f" ({have} and {want} with the given sizes)" if known else ""
    other = f"'{facts['origin']}' beside it has {facts['want']}"
    needed = other if facts["origin"] else f"{facts['want']} are needed"
    return "HF212", f"{port} gets {facts['have']} rows where {needed}{numbers}", ()


def _repeated(subject: Subject, finding: Finding, m: Mismatch) -> Finding:
    """Where one side has a whole number of times the rows of the other, the other can be repeated."""
    if subject.trials is None or m.expected is None or m.found is None:
        return finding
    from hfdsl.check.repair.fixes import repeated

    want, have = subject.known(m.expected), subject.known(m.found)
    factor = (have / want).value if len(want.terms) == 1 else None
    if factor is not None and factor.denominator == 1:
        return repeated(subject.trials(), finding, m, dict(m.detail)["origin"], factor.numerator)
    if factor is not None and factor.numerator == 1:
        return repeated(subject.trials(), finding, m, m.port, factor.denominator)
    return finding


def _makers(subject: Subject, m: Mismatch) -> tuple[str, ...]:
    """Which nodes make the record that is missing."""
    if not isinstance(m.formal, RecordType):
        return ()
    wanted = m.formal.record
    makers = [node.label for node, made in subject.made() if issubclass(made.record, wanted) and node.id < m.node]
    if makers:
        return (f"values of type {wanted.__name__}: {', '.join(dict.fromkeys(makers))}",)
    if not isinstance(m.actual, RecordValue):
        return ()
    fields, given = schema(wanted).fields, schema(m.actual.type.record).fields
    lacking = [name for name in fields if name not in given and name not in schema(wanted).spare]
    if lacking:
        return (f"it lacks {', '.join(lacking)}",)
    uncertain = [f"{n}=hf.present(...)" for n in fields if n in given and given[n].optional and not fields[n].optional]
    if uncertain:
        return (f"records are nominal: build {wanted.__name__}({', '.join([*uncertain, '...'])}) from its columns",)
    return (f"records are nominal: convert with hf.merge({wanted.__name__}, ...)",)


def unused(subject: Subject) -> Iterator[Finding]:
    """A record that a role makes and nobody reads: time on rented GPUs for nothing."""
    read = {ref.node for node in subject.graph.nodes for ref in node.refs}
    read |= {ref.node for ref in subject.graph.output.refs()}
    for node in subject.graph.calls if not subject.graph.misuses else ():
        value = subject.inference.values[node.id]
        if node.id not in read and isinstance(value, RecordValue) and value.rows is not None:
            yield Finding(
                "HF602",
                f"'{node.label}' makes {value}, which nobody reads",
                Label(node.span),
                help=("return it or remove the call",),
            )
