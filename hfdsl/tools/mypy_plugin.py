"""A mypy plugin: ``plugins = ["hfdsl.tools.mypy_plugin"]`` in mypy's configuration.

Plain mypy compares dims as they are written. With the plugin it compares their normal forms, as a check does, leaves
row dims to the check, which alone follows them, and reports wrong wiring with hfdsl's messages and codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import mypy.types  # noqa: F401  # first: mypy's modules import each other in a ring
from mypy import errorcodes
from mypy.errorcodes import ErrorCode
from mypy.expandtype import expand_type
from mypy.messages import format_type_bare
from mypy.nodes import CallExpr, Context, MemberExpr, NameExpr, OverloadedFuncDef, RefExpr, TypeInfo, Var
from mypy.plugin import (
    AnalyzeTypeContext,
    CheckerPluginInterface,
    FunctionSigContext,
    MethodContext,
    MethodSigContext,
    Plugin,
    ReportConfigContext,
)
from mypy.subtypes import is_subtype
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    NoneType,
    ProperType,
    Type,
    TypeOfAny,
    TypeVarId,
    TypeVarType,
    UnionType,
    get_proper_type,
    get_proper_types,
)

import hfdsl
from hfdsl.check.codes import CODES
from hfdsl.tools.mypy_dims import (
    COLUMN,
    DIMS,
    OPERATIONS,
    Named,
    Names,
    Normal,
    OpaqueError,
    column_spec,
    normal,
    variable,
    write,
)
from hfdsl.types.columns import ColumnSpec
from hfdsl.types.dims import Answer, Size, atom_size, solve

RECORD, KIND = "hfdsl.types.batches.Batch", "hfdsl.protocols.kinds._Many"
FIELDS = (COLUMN, "hfdsl.types.columns.Obj", "hfdsl.types.columns.Metric")
MERGE, SCATTER = "hfdsl.graph.operations.merge", "hfdsl.protocols.register._Scatter.__call__"
OURS = (COLUMN, RECORD, KIND)
FOREIGN = ("builtins.", "typing.", "collections.", "torch.", "numpy.", "hfdsl.types.", "hfdsl.protocols.")

REPORTED = {
    # Parts of arg-type: an ignore or an option that names that holds with the plugin and without it.
    code: ErrorCode(code, CODES[code].title, "hfdsl", sub_code_of=errorcodes.ARG_TYPE)
    for code in ("HF101", "HF204", "HF205", "HF210", "HF213", "HF220", "HF401")
}

SigContext: TypeAlias = FunctionSigContext | MethodSigContext


def analyze(context: AnalyzeTypeContext, named: Named) -> Type:
    """``Add[R, P]`` is read as ``Add[P, R]``, so that equal dims compare equal everywhere in mypy."""
    written, api = context.type, context.api
    name = written.name.rpartition(".")[2]
    if len(written.args) != 2:
        api.fail(f"{name} takes two dims, as in {name}[P, R]", context.context, code=REPORTED["HF101"])
        return AnyType(TypeOfAny.from_error)
    normalized = normal(named(DIMS + name, [api.analyze_type(argument) for argument in written.args]), named)
    normalized.set_line(context.context)
    return normalized


def _is(base: str, typ: Type) -> bool:
    proper = get_proper_type(typ)
    return isinstance(proper, Instance) and proper.type.has_base(base)


def _ours(typ: Type) -> bool:
    """Whether a type is a column, a record or a list of them, or may be one."""
    proper = get_proper_type(typ)
    if isinstance(proper, Instance):
        return any(map(proper.type.has_base, OURS))
    return isinstance(proper, UnionType) and any(map(_ours, proper.items))


def _items(typ: Type) -> list[ProperType]:
    proper = get_proper_type(typ)
    return get_proper_types(proper.items) if isinstance(proper, UnionType) else [proper]


def _column(typ: Type) -> Instance | None:
    """The column in ``f32[B, R]``, in what a record's constructor takes for one, and in an optional one."""
    columns = [item for item in _items(typ) if isinstance(item, Instance) and _is(COLUMN, item)]
    return columns[0] if len(columns) == 1 else None


@dataclass
class _RoleCall:
    """The ports of one call, matched from left to right as a check does it, but for the row dim.

    A static type has the rows that a record declares. ``hf.repeat`` and roles change them, and only a check follows
    that.
    """

    name: str
    api: CheckerPluginInterface
    free: Mapping[Any, TypeVarId]
    names: Names = field(default_factory=dict)
    rows: dict[Any, Size] = field(default_factory=dict)
    bound: dict[Any, Size] = field(default_factory=dict)
    bound_by: dict[Any, str] = field(default_factory=dict)
    broken: bool = False

    def report(self, code: str, message: str, place: Context) -> Type:
        self.broken = True
        self.api.fail(message, place, code=REPORTED[code])
        return AnyType(TypeOfAny.from_error)

    def match(self, port: str, formal: Type, argument: Type, place: Context) -> Type:
        """The type for mypy to compare the argument with: its own if it fits, ``Any`` if its mistake is reported."""
        takes: Type | None = _column(formal)
        actual = get_proper_type(argument)
        if isinstance(takes, Instance) and isinstance(actual, Instance) and _is(COLUMN, actual):
            if not self.free and is_subtype(actual, takes):
                return actual  # as it is written; mypy is faster
            try:
                wanted, wired = column_spec(takes, self.names), column_spec(actual, self.names)
            except OpaqueError:
                return formal
            mistake = self.column(port, wanted, wired)
            if mistake is None:
                return actual
            code, why = mistake
            return self.report(code, f"{port} of '{self.name}' takes {wanted} but is wired to {wired}{why}", place)
        code_of_kind = None if isinstance(actual, AnyType) or is_subtype(actual, formal) else _kind(formal, actual)
        if code_of_kind is None:
            return formal
        takes = takes or next((item for item in _items(formal) if _is(KIND, item)), formal)
        wants, has = (format_type_bare(t, self.api.options) for t in (takes, actual))
        return self.report(code_of_kind, f"{port} of '{self.name}' takes {wants} but is wired to {has}", place)

    def column(self, port: str, wanted: ColumnSpec, wired: ColumnSpec) -> tuple[str, str] | None:
        """The code and reason of a mismatch, or None; binds the free type variables of the port."""
        if wanted.dtype is not wired.dtype:
            return "HF220", ""
        if len(wanted.dims) != len(wired.dims):
            return "HF210", ": the number of dims differs"
        row = wanted.dims[0]
        self.rows |= solve(row, wired.dims[0], self._fixed(row, self.rows)) or {}
        for position, (want, have) in enumerate(zip(wanted.dims[1:], wired.dims[1:], strict=True), 1):
            if want == have and self.free.keys().isdisjoint(want.atoms):
                continue
            fixed = self._fixed(want, self.bound)
            solved = solve(want, have, fixed)
            if solved is None:
                return "HF213", f": '{want}' cannot be solved for from '{have}'"
            self.bound |= solved
            self.bound_by |= dict.fromkeys(solved, port)
            needed = want.substitute(self.bound)
            if needed.equals(have) is not Answer.PROVED:
                first = next((self.bound_by[atom] for atom in want.atoms if atom in self.bound_by), None)
                why = f" ({needed} was bound by {first})" if first else ""
                return "HF210", f": dim {position} is {have} where {needed} is needed{why}"
        return None

    def _fixed(self, want: Size, bound: Mapping[Any, Size]) -> dict[Any, Size]:
        return {a: bound.get(a, atom_size(a)) for a in want.atoms if a in bound or a not in self.free}


def _kind(formal: Type, actual: ProperType) -> str | None:
    """The code of a list where a whole value is taken, or the reverse, and of another record."""
    kinds = {item.type for item in _items(formal) if isinstance(item, Instance) and _is(KIND, item)}
    takes_record, is_record = _is(RECORD, formal), _is(RECORD, actual)
    if isinstance(actual, Instance) and _is(KIND, actual):
        listed = actual.type not in kinds and bool(kinds or takes_record or _column(formal))
    else:
        listed = bool(kinds) and (is_record or _is(COLUMN, actual))
    return "HF401" if listed else "HF204" if takes_record and is_record else None


def _callee_name(context: SigContext) -> str:
    callee = context.context.callee if isinstance(context.context, CallExpr) else None
    if isinstance(callee, MemberExpr) and isinstance(callee.expr, NameExpr):
        return f"{callee.expr.name}.{callee.name}"
    return callee.name if isinstance(callee, (NameExpr, MemberExpr)) else "call"


def _overloaded(context: SigContext, method: str) -> bool:
    """Whether mypy tries several signatures, each of which comes here: what does not fit one may fit the next."""
    callee = context.context.callee if isinstance(context.context, CallExpr) else None
    node = callee.node if isinstance(callee, RefExpr) else None
    if isinstance(context, MethodSigContext):
        receiver = get_proper_type(context.type)
        symbol = receiver.type.get(method) if isinstance(receiver, Instance) else None
    else:
        symbol = node.get("__init__") if isinstance(node, TypeInfo) else None
    return isinstance(symbol.node if symbol else node, OverloadedFuncDef)


def call(context: SigContext, method: str, named: Named) -> CallableType:
    """Match the columns, records and lists that are wired to a call."""
    signature = context.default_signature
    ours = [_ours(typ) for typ in signature.arg_types]
    if True not in ours or _overloaded(context, method):
        return signature
    free = {variable(v.name, v.id): v.id for v in signature.variables if isinstance(v, TypeVarType)}
    matched = _RoleCall(_callee_name(context), context.api, free)
    kind = "column" if signature.is_type_obj() and _is(RECORD, signature.ret_type) else "port"
    formals = list(signature.arg_types)
    for i, arguments in enumerate(context.args):
        if ours[i] and len(arguments) == 1 and not signature.arg_kinds[i].is_star():
            port = f"{kind} '{signature.arg_names[i]}'"
            formals[i] = matched.match(port, formals[i], context.api.get_expression_type(arguments[0]), arguments[0])
    if not free:
        return signature.copy_modified(arg_types=formals)
    env: dict[Any, Type] = {free[a]: write(s, matched.names, named) for a, s in (matched.rows | matched.bound).items()}
    if matched.broken:  # what a mistake would have bound is not known
        env = {**dict.fromkeys(free.values(), AnyType(TypeOfAny.from_error)), **env}
    result = expand_type(signature.ret_type, env).accept(Normal(named))
    return signature.copy_modified(arg_types=[expand_type(t, env) for t in formals], ret_type=result)


def _columns(record: TypeInfo) -> dict[str, Type]:
    symbols = {name: symbol.node for info in reversed(record.mro) for name, symbol in info.names.items()}
    typed = {name: node.type for name, node in symbols.items() if isinstance(node, Var) and node.type is not None}
    return {name: t for name, t in typed.items() if any(_is(base, item) for item in _items(t) for base in FIELDS)}


def merge(context: FunctionSigContext) -> CallableType:
    """``hf.merge``: each column of the record comes from the one part that has it."""
    signature, place = context.default_signature, context.context
    record = get_proper_type(context.api.get_expression_type(context.args[0][0])) if context.args[0] else None
    built = get_proper_type(record.ret_type) if isinstance(record, CallableType) and record.is_type_obj() else None
    parts = [(part, get_proper_type(context.api.get_expression_type(part))) for part in context.args[1]]
    sources = [(part, t.type) for part, t in parts if isinstance(t, Instance) and _is(RECORD, t)]
    starred = not isinstance(place, CallExpr) or any(kind.is_star() for kind in place.arg_kinds)
    if not isinstance(built, Instance) or starred or len(sources) != len(parts):
        return signature
    matched = _RoleCall(built.type.name, context.api, {})
    for name, formal in _columns(built.type).items():
        owners = [(part, owner) for part, owner in sources if name in _columns(owner)]
        if len(owners) == 1:
            [(part, owner)] = owners
            matched.match(f"column '{name}'", formal, _columns(owner)[name], part)
        elif owners:
            both = " and ".join(f"'{owner.name}'" for _, owner in owners)
            matched.report("HF205", f"column '{name}' of '{built.type.name}' comes from both {both}", place)
        elif not any(isinstance(item, NoneType) for item in _items(formal)):
            matched.report("HF204", f"'{built.type.name}' is built without its column '{name}'", place)
    return signature


def scatter(context: MethodContext, named: Named) -> Type:
    """A method that takes one value a rank keeps the names and the defaults of its parameters."""
    method = get_proper_type(context.arg_types[0][0])
    if not isinstance(method, CallableType):
        return context.default_return_type
    many, first = partial(named, "hfdsl.protocols.kinds.PerRank"), method.arg_types[:1]
    lists = [UnionType([many([t]), named("builtins.list", [t])]) for t in method.arg_types[1:]]
    return method.copy_modified(arg_types=[*first, *lists], ret_type=many([method.ret_type]))


class HfdslPlugin(Plugin):
    """The hooks; each may run for any call of any module, and first asks whether it belongs to hfdsl."""

    def instance(self, fullname: str, arguments: list[Type]) -> Instance:
        """The type of a class of hfdsl or of builtins, which mypy has read before it calls a hook that needs it.

        Raises:
            LookupError: where it has not.
        """
        symbol = self.lookup_fully_qualified(fullname)
        if symbol is None or not isinstance(symbol.node, TypeInfo):
            raise LookupError(fullname)
        return Instance(symbol.node, arguments)

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """``Add``, ``Mul``, ``Div``."""
        return partial(analyze, named=self.instance) if fullname in OPERATIONS else None

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], CallableType] | None:
        """Functions and the constructors of records."""
        if fullname.startswith(FOREIGN):
            return None
        return merge if fullname == MERGE else partial(call, method="", named=self.instance)

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], CallableType] | None:
        """The methods of roles, and dataflows."""
        if fullname.startswith(FOREIGN):
            return None
        return partial(call, method=fullname.rpartition(".")[2], named=self.instance)

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """``register(Dispatch.ALL_TO_ALL)``."""
        return partial(scatter, named=self.instance) if fullname == SCATTER else None

    def report_config_data(self, ctx: ReportConfigContext) -> object:
        """Normal forms are in mypy's cache: another release of hfdsl reads everything again."""
        return hfdsl.__version__


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls.

    >>> from mypy.options import Options
    >>> hooks = plugin("1.18.2")(Options())
    >>> hooks.get_method_signature_hook("hfdsl.graph.dataflow.Dataflow.check") is None
    False
    >>> hooks.get_method_signature_hook("torch.nn.modules.module.Module.eval") is None
    True
    """
    return HfdslPlugin
