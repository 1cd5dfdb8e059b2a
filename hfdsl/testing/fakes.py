"""Fakes: roles that return random values of their declared types, so a graph runs at its true shapes.

A fake derives from its role: it takes the same place and passes the same check. It needs no model and no GPU.
"""

from __future__ import annotations

import functools
import time
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from hfdsl.check.constructor_types import parameters
from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import WiringError
from hfdsl.graph.signatures import VALUE, PortType, RecordType, Signature, StaticType, role_signatures
from hfdsl.plan.reading import from_columns, to_columns
from hfdsl.protocols.call import Call, running_call
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.worker import Worker
from hfdsl.testing.arguments import named_of, refused, role_of, seed_of, sizes_of
from hfdsl.testing.values import Draw, sample
from hfdsl.types.batches import Batch, rebuild, schema
from hfdsl.types.columns import ColumnSpec, FieldSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Dim, Size, constant, solve
from hfdsl.types.similar_names import closest

__tracebackhide__ = True  # pytest shows the user's own lines

W = TypeVar("W", bound=Worker)
BatchT = TypeVar("BatchT", bound=Batch)

Seconds: TypeAlias = float | Callable[[int], float]
"""The duration of a method: seconds, or a function of the rows that a rank receives."""

Columns: TypeAlias = Mapping[str, Callable[[tuple[int, ...]], Any] | None]
"""Values of a column instead of random ones: a function of its shape, or None for an optional column that is absent."""

NOTHING: Mapping[Any, Any] = MappingProxyType({})


def fake(
    role: type[W],
    /,
    *,
    dims: Mapping[Any, int] = NOTHING,
    seconds: Mapping[str, Seconds] = NOTHING,
    columns: Columns = NOTHING,
    seed: int | None = None,
) -> type[W]:
    """A role class that takes the place of ``role`` and answers with random values of the declared types.

    Its constructor takes the same arguments and runs nothing. Shapes follow from what a method receives; ``dims`` gives
    the sizes that nothing determines, such as that of responses. Values are drawn row by row from the stream of
    ``hf.current_call()`` (with ``seed`` from another one), so that they do not depend on how rows are split. Whole
    numbers are 0 to 127, truth values are true up to a random length, as masks of padded rows are. ``columns`` gives
    what a column of that name holds instead. ``seconds`` says how long each method takes.

    Raises:
        WiringError: HF202 if ``seconds`` names no method, HF201 if ``columns`` names none of a result. In a call
            HF213, if nothing determines a size; HF516 for arguments that the constructor does not take.
        DefinitionError: HF921 for what is not a role class, and for an option of another kind.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class R(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Answers(hf.Batch):
    ...     ids: hf.i64[B, R]
    >>> class Model(hf.Worker):
    ...     def __init__(self, path: str) -> None: ...
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def answer(self, questions: Questions) -> Answers: ...
    >>> model = fake(Model, dims={R: 512})("a/large/model")
    >>> model.answer(Questions(text=["6*7", "1+1"])).ids.tensor.shape
    torch.Size([2, 512])
    """
    real: type = role_of("fake", role)
    _check_column_names(f"fake({real.__name__})", columns, _results(real))
    seed = None if seed is None else seed_of("fake", seed)
    return _fake_class(role, sizes_of("fake", dims), seconds, columns, seed)


def _fake_class(
    role: type[W], dims: Mapping[Any, int], seconds: Mapping[str, Seconds], columns: Columns, seed: int | None
) -> type[W]:
    real: type = role
    methods, signatures = registered_methods(real), role_signatures(real)
    for name, duration in named_of("fake", "seconds=", seconds, 'seconds={"generate": 0.5}').items():
        if name not in methods:
            raise WiringError("HF202", f"role '{role.__name__}' has no method '{name}'; {closest(name, list(methods))}")
        if not callable(duration) and not (isinstance(duration, (int, float)) and duration >= 0):
            raise refused("fake", f"seconds= of '{name}'", "a number of at least 0, or a function of rows", duration)
    answer = functools.partial(_answer, dims=dims, columns=dict(columns), seed=seed)
    members: dict[str, Any] = {
        name: _body(getattr(role, name), signatures[name], seconds.get(name, 0.0), answer) for name in methods
    }
    if role.__init__ is not object.__init__:
        members["__init__"] = _silent(role)
    if callable(getattr(role, "state", None)):
        members |= {"state": lambda self: {}, "load_state": lambda self, state: None}
    fake_class: type[W] = types.new_class(
        f"Fake{role.__name__}", (role,), exec_body=lambda names: names.update(members, __module__=role.__module__)
    )
    return fake_class


def faked(
    deployment: Deployment,
    dims: Mapping[Any, int] = NOTHING,
    *,
    seconds: Mapping[str, Seconds] = NOTHING,
    columns: Columns = NOTHING,
    seed: int | None = None,
) -> Deployment:
    """The deployment with a fake in the place of every role; ``seconds`` is by node, as ``{"actor.update": 0.5}``.

    The others are as for ``fake``.

    Raises:
        WiringError: HF202 if ``seconds`` names no role or method, HF201 if ``columns`` names none of any result.
        DefinitionError: HF921 for what is no deployment, and for an option of another kind.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> class Judge(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def score(self, scores: Scores) -> Scores: ...
    >>> @hf.dataflow
    ... def judged(scores: Scores, judge: Judge) -> Scores:
    ...     return judge.score(scores)
    >>> judges = hf.ResourcePool([2], use_gpu=False, name="judges")
    >>> deployment = hf.Deployment(judge=hf.place(Judge, pool=judges))
    >>> with judged.compile(faked(deployment), {B: 4}).launch("local") as running:
    ...     running.step(fake_batch(Scores, {B: 4})).reward.tensor.shape
    torch.Size([4])
    """
    if not isinstance(deployment, Deployment):
        raise refused("faked", "deployment", "an hf.Deployment", deployment)
    sizes = sizes_of("faked", dims)
    seed = None if seed is None else seed_of("faked", seed)
    _check_column_names(
        "faked", columns, {name for place in deployment.placements.values() for name in _results(place.role)}
    )
    by_role: dict[str, dict[str, Seconds]] = {}
    for node, duration in named_of("faked", "seconds=", seconds, 'seconds={"actor.update": 0.5}').items():
        role, _, method = node.partition(".")
        if role not in deployment.placements:
            raise WiringError("HF202", f"no role '{role}' is placed; {closest(role, list(deployment))}")
        by_role.setdefault(role, {})[method] = duration
    fakes = Deployment(
        **{
            name: replace(
                place,
                role=_fake_class(place.role, sizes, by_role.get(name, {}), columns, seed),
            )
            for name, place in deployment.placements.items()
        }
    )
    fakes.span = deployment.span
    return fakes


def _results(role: type) -> set[str]:
    """The columns that the methods of a role give."""
    return {
        name
        for role_signature in role_signatures(role).values()
        for name in _fields(role_signature.returns)
        if name != VALUE
    }


def _check_column_names(subject: str, columns: Columns, names: Collection[str]) -> None:
    for name, maker in named_of(
        subject, "columns=", columns, 'columns={"score": lambda shape: torch.ones(shape)}'
    ).items():
        if name not in names:
            raise WiringError("HF201", f"{subject} makes no column '{name}'; {closest(name, sorted(names))}")
        if maker is not None and not callable(maker):
            raise refused(subject, f"columns= of '{name}'", "a function of the column's shape, or None", maker)


def fake_batch(
    record: type[BatchT], dims: Mapping[type[Dim], int], *, columns: Columns = NOTHING, seed: int = 0
) -> BatchT:
    """A record of random values, as fakes return them, to step a dataflow with.

    Raises:
        WiringError: HF213 if ``dims`` lacks a size, HF201 if ``columns`` names none of the record.
        DefinitionError: HF921 for what is not a record class, and for an option of another kind.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Scores(hf.Batch):
    ...     reward: hf.f32[B]
    >>> len(fake_batch(Scores, {B: 3}))
    3
    """
    if not (isinstance(record, type) and issubclass(record, Batch)):
        raise refused("fake_batch", "record", "a class derived from hf.Batch", record)
    seed = seed_of("fake_batch", seed)
    subject, draw = f"fake_batch({record.__name__}, dims)", Draw(Call(seed, 0, 0, 0), None)
    sizes = {atom: constant(number) for atom, number in sizes_of("fake_batch", dims).items()}
    _check_column_names(subject, columns, schema(record).fields)
    values = _columns(RecordType(record), sizes, draw, columns, {}, lambda dim: f"{subject} needs dims={{{dim}: ...}}")
    return rebuild(record, values)


def _silent(role: Any) -> Any:
    signature = parameters(role)

    @functools.wraps(role.__init__)
    def __init__(self: Worker, *args: Any, **kwargs: Any) -> None:  # noqa: N807  # it is one
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WiringError("HF516", f"fake({role.__name__}) cannot be built: {error}") from None

    return __init__


def _body(real: Any, signature: Signature, seconds: Seconds, answer: Callable[..., Any]) -> Any:
    @functools.wraps(real)
    def body(self: Worker, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip((port.name for port in signature.ports), args, strict=False)) | kwargs
        subject = f"fake({type(self).__mro__[1].__name__}).{signature.name}"
        _fits(subject, signature, args, arguments)
        if seconds:
            time.sleep(seconds if not callable(seconds) else seconds(_rows(arguments) or 0))
        return answer(subject, signature, arguments)

    body.__isabstractmethod__ = False  # type: ignore[attr-defined]  # copied from a role that only declares it
    return body


def _fits(subject: str, signature: Signature, args: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that the real method does not take: nothing else checks a fake that is called by hand."""
    names = [port.name for port in signature.ports]
    if len(args) > len(names):
        raise WiringError("HF202", f"{subject} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    for name in arguments:
        if name not in names:
            raise WiringError("HF202", f"{subject} has no parameter '{name}'; {closest(name, names)}")
    for port in signature.ports:
        if port.name not in arguments:
            if port.required:
                raise WiringError("HF203", f"{subject} is called without '{port.name}'")
        elif isinstance(port.type, RecordType) and not isinstance(arguments[port.name], port.type.record):
            got = type(arguments[port.name]).__name__
            raise WiringError("HF206", f"'{port.name}' of {subject} takes {port.type.record.__name__}, got {got}")


def _rows(arguments: Mapping[str, Any]) -> int | None:
    records = (
        value for value in arguments.values() if isinstance(value, Batch) and schema(type(value)).row is not None
    )
    return next((len(record) for record in records), None)


def _answer(
    subject: str,
    signature: Signature,
    arguments: Mapping[str, Any],
    *,
    dims: Mapping[type[Dim], int],
    columns: Columns,
    seed: int | None,
) -> Any:
    """The result of a fake."""
    call = running_call() or Call(seed or 0, 0, 0, 0)
    call = call if seed is None else replace(call, seed=seed)
    sizes = _solved(signature, arguments)
    sizes = {atom: constant(number) for atom, number in dims.items()} | sizes
    rows = call.rows if call.row_count is not None else range(_rows(arguments) or 0)
    kind = signature.returns
    if isinstance(kind, StaticType):
        return sample(kind.annotation, f"the result of {subject}")
    objects = {
        name: raw
        for value in arguments.values()
        if isinstance(value, Batch)
        for name, raw in to_columns(value).items()
        if isinstance(raw, list)
    }
    needs = f"{subject} makes {signature.returns}, and nothing that it takes says how large"
    raw_columns = _columns(
        kind, sizes, Draw(call, rows), columns, objects, lambda dim: f"{needs} {dim} is: dims={{{dim}: ...}}"
    )
    return from_columns(kind, raw_columns)


def _solved(signature: Signature, arguments: Mapping[str, Any]) -> dict[Any, Size]:
    """The sizes that arguments have."""
    pending = [
        (dim, constant(raw.shape[i] if hasattr(raw, "shape") else len(raw)))
        for port in signature.ports
        if port.name in arguments
        for name, spec in _fields(port.type).items()
        if (raw := to_columns(arguments[port.name]).get(name)) is not None
        for i, dim in enumerate(spec.dims)
        if not (isinstance(spec, ColumnSpec) and spec.ragged and i == 1)  # a bound is not a size
    ]
    sizes: dict[Any, Size] = {}
    for dim, length in sorted(pending, key=lambda pair: len(pair[0].atoms)):  # plain dims first
        sizes |= {atom: size for atom, size in (solve(dim, length, sizes) or {}).items() if atom not in sizes}
    return sizes


def _fields(kind: PortType) -> Mapping[str, FieldSpec]:
    if isinstance(kind, RecordType):
        return schema(kind.record).fields
    return {VALUE: kind} if isinstance(kind, (ColumnSpec, ObjSpec, MetricSpec)) else {}


def _columns(
    kind: PortType,
    sizes: Mapping[Any, Size],
    draw: Draw,
    columns: Columns,
    objects: Mapping[str, list[Any]],
    unknown: Callable[[Any], str],
) -> dict[str, Any]:
    """Raw columns of a value; of objects those that were given under the same name are handed on."""
    raw_columns: dict[str, Any] = {}
    for number, (name, spec) in enumerate(_fields(kind).items()):
        if isinstance(spec, MetricSpec):
            raw_columns[name] = draw.metric(number, spec)
            continue
        shape = tuple(_length(dim, sizes, unknown) for dim in spec.dims)
        if name in columns:
            maker = columns[name]
            raw_columns[name] = None if maker is None else maker(shape)
        elif isinstance(spec, ObjSpec):
            mine = objects.get(name)
            raw_columns[name] = (
                mine if mine is not None and len(mine) == shape[0] else draw.objects(number, name, spec, shape[0])
            )
        else:
            raw_columns[name] = draw.column(number, spec, shape)
    return to_columns(kind.record(**raw_columns)) if isinstance(kind, RecordType) else raw_columns


def _length(dim: Size, sizes: Mapping[Any, Size], unknown: Callable[[Any], str]) -> int:
    for atom in dim.atoms:
        if atom not in sizes:
            raise WiringError("HF213", unknown(atom.__name__))
    return int(dim.substitute(sizes).value or 0)
