"""Misuses: what a dataflow must not do during a trace, and names that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from inspect import getattr_static

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.losses.names import LOG_PROB, REFERENCE
from hfdsl.check.repair.suggestions import Suggestion, with_suggestions
from hfdsl.check.sources import argument_span, is_while, keyword_span, parameter_span, port_span, return_span, unpacks
from hfdsl.errors import DefinitionError
from hfdsl.graph.misuses import Misuse, MisuseKind
from hfdsl.graph.program import Input, Node, Pack
from hfdsl.graph.signatures import RecordType, Signature, role_signature
from hfdsl.graph.spans import Span, definition_span
from hfdsl.protocols.register import registered_methods, registration_of
from hfdsl.types.batches import schema
from hfdsl.types.similar_names import closest, nearest

_BOUNDS = "'{m.name}' of '{m.subject}' must be {m.candidates[0]}, and {m.candidates[1]}"

# kind of misuse -> code, message, advice. Fields: {m} the misuse, {near} did you mean ...
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
        "'{m.subject}' takes {takes}, but is called with {m.name}",
        "its ports: {listed}",
    ),
    MisuseKind.CONTROL: (
        "HF207",
        "'{m.name}' needs the value of '{m.subject}', which does not exist before the program runs",
        "{decide}",
    ),
    MisuseKind.COMPUTE: (
        "HF208",
        "'{operator}' on '{m.subject}'{inside}: a dataflow passes values on and does not compute with them",
        "{decorate}",
    ),
    MisuseKind.ITEM: (
        "HF208",
        "'[{m.name!r}]' on '{m.subject}': the columns of a record are its attributes",
        "write .{m.name} in place of [{m.name!r}]",
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
    MisuseKind.BAD_COUNT: ("HF304", "{m.subject} takes {m.candidates[0]}, got {m.name}", ""),
    MisuseKind.MERGE_MISSING: ("HF204", "'{m.subject}' is built without its column '{m.name}'", "{source}"),
    MisuseKind.MERGE_TWICE: ("HF205", "{columns} of '{m.subject}' {comes} from {both}", "pass {once}"),
    MisuseKind.DEFINITION: ("{m.name}", "{m.subject}", ""),
    MisuseKind.RAISED: ("HF610", "'{m.subject}' raised while it was traced: {m.name}", ""),
    MisuseKind.NOT_A_RESULT: (
        "HF603",
        "the dataflow returns {m.subject}, which is not a value of the graph",
        "return records, metrics, or tuples of them",
    ),
    MisuseKind.CONTAINER: (
        "HF206",
        "a {m.subject} of values of the graph is wired to a call, whose ports take one value each",
        "give each of them a port of its own; columns of several records go into one with hf.merge",
    ),
    MisuseKind.NOT_A_RECORD: (
        "HF206",
        "hf.{m.subject} takes a record of rows, got '{m.name}'",
        "give it the whole record, and read the column of what it returns",
    ),
    MisuseKind.NOT_ROWS: (
        "HF206",
        "hf.{m.subject} takes a record of rows, got {m.name}",
        "give it a record that is a parameter of the dataflow or the result of a call{none}",
    ),
    MisuseKind.LIST_OF_ROWS: (
        "HF206",
        "hf.{m.subject} takes a record of rows, got {m.name}",
        "register its method with a protocol that joins the rows of the ranks, such as Dispatch.DP_PROTO",
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
    MisuseKind.ARGUMENT: (
        "{m.candidates[0]}",
        "parameter '{m.name}' of '{m.subject}' takes {m.candidates[1]} but is wired to {m.candidates[2]}",
        "",
    ),
    MisuseKind.RETURNED: (
        "HF603",
        "'{m.subject}' is annotated to return {m.candidates[0]} and returns {m.candidates[1]}",
        "return what the annotation says, or change the annotation",
    ),
    MisuseKind.BOUNDS: ("HF940", _BOUNDS, "{m.candidates[2]}"),
    MisuseKind.GROUP: ("HF314", _BOUNDS, "{m.candidates[2]}"),
    MisuseKind.ROLE: (
        "HF206",
        "'{m.name}' on the role '{m.subject}': a dataflow calls registered methods of {listed} and nothing else",
        "a role's attributes live in its workers: read or change them in a registered method",
    ),
    MisuseKind.OUTSIDER: (
        "HF607",
        "'{m.subject}': a worker of class {m.name} that is not a parameter of the dataflow has no place to run",
        "take it as a parameter, annotated {m.name}, and call its methods on that",
    ),
}


DECIDE = {
    "": "decide inside a role or an hf.function; loops over hf.minibatches(x, n) and over plain Python values unroll",
    "len()": "a size is a dim: what depends on it goes into a role, an hf.function or @hf.requires",
    "iteration": "read columns by their names; rows are cut by hf.minibatches(x, n), whose loop unrolls",
    "formatting": "print(x) shows what it stands for; format the numbers of what a step has returned",
    "**": "wire every column by its name: column=record.column",
    "pickling": "return it from the dataflow, and save what a step has returned",
}
"""The advice, by the operation that needs a value."""


NAMES = (MisuseKind.NO_COLUMN, MisuseKind.NO_METHOD, MisuseKind.NO_PORT, MisuseKind.KEYWORD_ONLY)
"""The misuses that another name repairs."""


ARGUMENTS = (MisuseKind.ARGUMENT, MisuseKind.BOUNDS, MisuseKind.GROUP)
"""The misuses that are of one argument of a call."""


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
"""How users write the operators that a trace records."""


def misuses(context: Context) -> Iterator[Finding]:
    """The dataflow uses symbolic values only as a trace allows."""
    for misuse in map(_reclassified, context.program.graph.misuses):
        code, message, advice = MISUSES[misuse.kind]
        several = "', '" in misuse.name  # columns of a merge
        fields = {
            "m": misuse,
            "operator": OPERATORS.get(misuse.name, misuse.name),
            "decide": DECIDE.get(misuse.name, DECIDE[""]),
            "inside": f" in '{misuse.candidates[0]}'" if misuse.candidates else "",
            "decorate": _decoration(misuse),
            "near": _unregistered(context, misuse) or closest(misuse.name, misuse.candidates),
            "source": _missing_column(context, misuse) if "{source}" in advice else "",
            "wires": ", ".join(f"{name}=..." for name in misuse.name.split(", ")),
            "listed": ", ".join(misuse.candidates) or "none",
            "takes": _arguments(misuse),
            "none": "; a call or a helper that returns nothing gives None" if misuse.name == "None" else "",
            "both": _both(*misuse.candidates) if "{both}" in message else "",
            "columns": f"column{'s' * several} '{misuse.name}'",
            "comes": "come" if several else "comes",
            "once": "it once" if misuse.candidates[2:] else "only one of them",
        }
        finding = Finding(
            code.format(**fields),
            message.format(**fields),
            Label(_misuse_span(misuse)),
            tuple(_misuse_related(context, misuse)),
        )
        yield with_suggestions(context, finding, _suggestions(context, misuse), advice.format(**fields), most=1)


def _reclassified(misuse: Misuse) -> Misuse:
    """Name what the user wrote: unpacking with ``**`` makes Python ask for ``keys``, and ``while`` for a truth."""
    if misuse.kind is MisuseKind.CONTROL and misuse.name == "if" and is_while(misuse.span):
        return replace(misuse, name="while")
    by_python = misuse.kind is MisuseKind.NO_COLUMN and misuse.name == "keys"
    unpacked = unpacks(misuse.span) if by_python else None
    return replace(misuse, kind=MisuseKind.CONTROL, name="**", subject=unpacked) if unpacked else misuse


def _suggestions(context: Context, misuse: Misuse) -> Iterator[Suggestion]:
    """The changes that may repair a misuse."""
    from hfdsl.check.repair import fixes  # late: most programs need none

    if misuse.kind in NAMES:
        yield from fixes.nearest_names(misuse)
    elif misuse.kind is MisuseKind.NO_SYNC:
        yield from fixes.reversed_sync(misuse.span)
    elif misuse.kind is MisuseKind.MERGE_MISSING:
        for node, record in _producers(context, misuse):
            yield from fixes.merged(misuse.span, node, str(record))


def _decoration(misuse: Misuse) -> str:
    """The advice on what computes: a function that does needs a decorator."""
    if misuse.candidates:
        return f"decorate '{misuse.candidates[0]}' with @hf.function, or move what computes into a function that is"
    return "move it into a function decorated with @hf.function"


def _both(first: str, second: str, same: str = "") -> str:
    """Two producers of one column, in words; ``same`` if they are one value."""
    if same:
        return f"{first!r}, which is merged twice"
    return f"two calls of {first!r}" if first == second else f"both {first!r} and {second!r}"


def _producers(context: Context, misuse: Misuse) -> Iterator[tuple[Node, RecordType]]:
    """The nodes that give a record with the column that a merge lacks."""
    for node, record in context.program.record_producers:
        if isinstance(node.op, Pack):
            continue  # a merge may be the very one that lacks it
        if misuse.name in schema(record.record).fields and record.record.__name__ != misuse.subject:
            yield node, record


def _missing_column(context: Context, misuse: Misuse) -> str:
    """Where a record gets its missing column from: a value, a call, or a column of another name."""
    for node, record in _producers(context, misuse):
        return f"'{node.label}' (line {node.span.line}) gives {record}, which has that column"
    for label, record in _returned_by(context, misuse.name):
        return f"'{label}' returns {record}, which has that column: call it"
    if near := nearest(misuse.name, misuse.candidates):
        return f"did you mean '{near}'? Give both columns one name, since a merge goes by names"
    if REFERENCE.fullmatch(misuse.name) and LOG_PROB.fullmatch(misuse.name):
        return (
            "a reference computes it: take a role with the policy's first weights as a parameter, such as Reference of "
            "hfdsl.rl.workers, and call its log_probs on the responses"
        )
    advice = "no value of the dataflow has it: call what computes it first"
    if misuse.candidates:
        return f"{advice}, or rename a column that '{misuse.subject}' does not have: {', '.join(misuse.candidates)}"
    return advice


def _returned_by(context: Context, column: str) -> Iterator[tuple[str, RecordType]]:
    """The methods of the dataflow's roles that return a record with a column."""
    for role, kind in context.program.graph.roles.items():
        for method in registered_methods(kind):
            with suppress(DefinitionError):  # of a method that is not called
                result = role_signature(kind, method).result
                if isinstance(result, RecordType) and column in schema(result.record).fields:
                    yield f"{role}.{method}", result


def _role(context: Context, misuse: Misuse) -> type:
    """The class of a role whose method does not exist."""
    classes = (kind for role in context.program.graph.roles.values() for kind in role.__mro__)
    return next(kind for kind in classes if kind.__name__ == misuse.subject)


def _unregistered(context: Context, misuse: Misuse) -> str:
    """The advice to register a method that the role does have."""
    if misuse.kind is not MisuseKind.NO_METHOD or not callable(getattr(_role(context, misuse), misuse.name, None)):
        return ""
    member = getattr_static(_role(context, misuse), misuse.name)
    if isinstance(member, (staticmethod, classmethod)) and registration_of(member.__func__) is not None:
        return f"a registered method takes self: write '{misuse.name}' without @{type(member).__name__}"
    return f"'{misuse.name}' is not registered: write @register(Dispatch.DP_PROTO), or another protocol, above it"


def _arguments(misuse: Misuse) -> str:
    """How many arguments its callee takes by position, in words."""
    names, kind = misuse.candidates, ""
    if misuse.signature is not None and misuse.signature.port_names.keyword_only:
        names, kind = misuse.signature.port_names.positional, "positional "
    return f"{len(names) or 'no'} {kind}argument{'s' * (len(names) != 1)}"


def _ports(signature: Signature) -> str:
    names = [port.name for port in signature.ports]
    return f"port{'s' * (len(names) > 1)} {', '.join(names)}" if names else "no ports"


def _misuse_span(misuse: Misuse) -> Span:
    if misuse.kind in (MisuseKind.NOT_A_RESULT, MisuseKind.RETURNED):
        return return_span(misuse.span)
    if misuse.kind is MisuseKind.BOUNDS and misuse.signature is None:
        return parameter_span(misuse.span, misuse.name)  # an option of the dataflow
    if misuse.kind in ARGUMENTS:
        return argument_span(misuse.span, misuse.signature, misuse.name)
    return keyword_span(misuse.span, misuse.name)


def _misuse_related(context: Context, misuse: Misuse) -> Iterator[Label]:
    if misuse.producer is not None and not isinstance(context.program.graph.nodes[misuse.producer].op, Input):
        yield context.program.producer_label(misuse.producer)
    if misuse.kind is MisuseKind.ARGUMENT and misuse.signature is not None:
        yield Label(port_span(misuse.signature, misuse.name), f"declared {misuse.candidates[1]}")
    elif misuse.kind in ARGUMENTS and misuse.signature is not None:
        yield Label(port_span(misuse.signature, misuse.name), "declared here")
    elif misuse.signature is not None:
        yield Label(misuse.signature.span, f"declared with {_ports(misuse.signature)}")
    if misuse.kind is MisuseKind.NO_METHOD:
        yield Label(
            definition_span(_role(context, misuse)), f"its registered methods: {', '.join(misuse.candidates) or 'none'}"
        )
