"""``check_worker``: does a role's method return the same rows under any split and on any mesh that it supports?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any

from hfdsl.deploy.deployment import Deployment, place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import HfError, WiringError
from hfdsl.graph.annotations import type_hints
from hfdsl.graph.dataflow import Dataflow, dataflow
from hfdsl.graph.signatures import ListType, RecordType, Signature, StaticType, role_signatures
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.testing.arguments import given_of, meshes_of, nothing, number_of, refused, role_of, tolerance_of
from hfdsl.testing.code import as_code
from hfdsl.testing.compare import first_difference
from hfdsl.types.batches import Batch
from hfdsl.types.similar_names import closest

__tracebackhide__ = True  # pytest shows the user's own lines

MAX_RANKS = 4
"""Ranks of the largest mesh that is tried by default."""

MAX_SHOWN = 4
"""Meshes that a report shows; each larger one repeats their mistake in most cases."""

REFUSED = "refused"
UNEVEN_SPLIT_CODES = ("HF303", "HF310", "HF313", "HF319")
"""Codes of errors about rows that do not split evenly over a mesh."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


class BrokenWorker(AssertionError):  # noqa: N818  # that it is an error is in its base
    """A method gives other values on some meshes than on one rank."""


def check_worker(
    role: type[Worker],
    method: str,
    *batches: Batch,
    given: Mapping[str, Any] = NOTHING,
    init: Sequence[Any] = (),
    meshes: Iterable[Mesh] | None = None,
    tolerance: float = 0.0,
    steps: int = 1,
) -> None:
    """Hold a method of a role to this: on every mesh it gives what it gives on one rank, within ``tolerance``.

    ``batches`` are its records in their order, ``given`` its plain arguments by name, and ``init`` those of the role's
    constructor. The meshes, by default all of up to 4 ranks in every numbering, are those that the role's requirements
    allow and over which the rows divide: others are refused by the check before launch. A method that keeps state can
    be called for several ``steps``.

    Raises:
        BrokenWorker: with the first value that differs, for the smallest meshes on which one does, or in a second run
            on one rank.
        CheckError: where not even one rank can run it.
        HfError: what a run on one rank raises.
        WiringError: HF202 for an unknown method or parameter, HF203 for a parameter without a value.
        DefinitionError: HF921 for an option of another kind, HF922 for a method that gives nothing or a list, and where
            no mesh of several ranks is left to compare.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Questions(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Numbered(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def answer(self, questions: Questions) -> Questions:
    ...         return Questions(text=[f"{i}. {text}" for i, text in enumerate(questions.text.objects)])
    >>> check_worker(Numbered, "answer", Questions(text=["6*7", "1+1"]), meshes=[hf.Mesh(dp=2)])
    Traceback (most recent call last):
    hfdsl.testing.workers.BrokenWorker: Numbered.answer gives other values on 1 of 1 mesh than on one rank
      hf.Mesh(dp=2): column 'text', row 1 is '0. 1+1' instead of '1. 1+1'
    """
    from hfdsl.testing.laws.check import meshes_up_to

    signature = _signature(role_of("check_worker", role), method)
    every = meshes_of("check_worker", meshes) or meshes_up_to(MAX_RANKS)
    tolerance, steps = tolerance_of("check_worker", tolerance), number_of("check_worker", "steps=", steps)
    if not isinstance(init, (list, tuple)):
        raise refused("check_worker", "init=", "the arguments of the constructor in a tuple", init)
    label = f"{role.__name__}.{method}"
    given = given_of("check_worker", f"'{label}'", given, [port.name for port in signature.ports])
    flow = _one_call(role, signature, label, given)

    def steps_on(mesh: Mesh) -> list[Any]:
        return _steps(flow, _deployment(flow, role, init, mesh), batches, steps)

    on_one_rank = steps_on(Mesh())
    if again := _fault(steps_on, Mesh(), on_one_rank, tolerance):
        reason = "it keeps state outside its object, or has a random stream of its own"
        raise BrokenWorker(f"{label} is not deterministic: {reason}\n  a second run on one rank: {again}")
    valid_meshes = [mesh for mesh in every if flow.check(_deployment(flow, role, init, mesh)).ok]
    faults = {mesh: _fault(steps_on, mesh, on_one_rank, tolerance) for mesh in valid_meshes}
    ran = [mesh for mesh, fault in faults.items() if fault is not REFUSED]
    if all(mesh.world_size == 1 for mesh in ran):
        several = sum(mesh.world_size > 1 for mesh in valid_meshes)
        reason = f"of {several} larger that the check allows none divides these rows" if several else "none is larger"
        raise nothing("check_worker", f"{label} ran on meshes of one rank alone; {reason}: give other rows, or meshes=")
    differing = {mesh: fault for mesh, fault in faults.items() if fault is not None and fault is not REFUSED}
    if differing:
        of = f"{len(differing)} of {len(ran)} mesh{'es' if len(ran) > 1 else ''}"
        head = f"{label} gives other values on {of} than on one rank"
        shown = [f"  {as_code(mesh)}: {fault}" for mesh, fault in islice(differing.items(), MAX_SHOWN)]
        more = [f"  and on {len(differing) - MAX_SHOWN} more"] if len(differing) > MAX_SHOWN else []
        raise BrokenWorker("\n".join([head, *shown, *more]))


def _signature(role: type[Worker], method: str) -> Signature:
    cls: type = role  # a role may be abstract, which is no ``type[Worker]`` to a type checker
    signatures = role_signatures(cls)
    if not isinstance(method, str):
        raise refused("check_worker", "method", "the name of a method of the role", method)
    if method not in signatures:
        raise WiringError("HF202", f"role '{role.__name__}' has no method '{method}'; {closest(method, [*signatures])}")
    signature = signatures[method]
    if isinstance(signature.result, ListType):
        raise nothing("check_worker", f"{role.__name__}.{method} gives a list, one value per rank, and no whole")
    if isinstance(signature.result, StaticType) and signature.result.annotation in (None, type(None)):
        raise nothing("check_worker", f"{role.__name__}.{method} gives nothing")
    return signature


def _one_call(role: type[Worker], signature: Signature, label: str, arguments: Mapping[str, Any]) -> Dataflow[..., Any]:
    """A dataflow of this one call; its inputs are the method's records."""
    inputs = [port for port in signature.ports if port.name not in arguments and port.required]
    for port in inputs:
        if not isinstance(port.type, RecordType):
            how = f"check_worker(..., given={{{port.name!r}: ...}})"
            raise WiringError("HF203", f"'{port.name}' of {label} takes {port.type}, which is not a record: {how}")
    names = [port.name for port in inputs]
    role_name, arguments_name = _free(role.__name__, names), _free("given", [*names, role.__name__])
    calls = ", ".join([*(f"{name}={name}" for name in names), f"**{arguments_name}"])
    source = f"def one_call({', '.join([*names, role_name])}):\n    return {role_name}.{signature.name}({calls})\n"
    space: dict[str, Any] = {arguments_name: dict(arguments)}
    exec(source, space)  # noqa: S102  # a dataflow names its inputs one by one, and the method has those
    body = space["one_call"]
    body.__name__ = label  # so that messages name the method
    body.__annotations__ = {port.name: port.type.record for port in inputs if isinstance(port.type, RecordType)}
    body.__annotations__ |= {role_name: role, "return": type_hints(signature.body, label)["return"]}
    return dataflow(body)


def _free(name: str, names: Sequence[str]) -> str:
    """The name, or one like it that no input has."""
    return _free(f"{name}_", names) if name in names else name


def _deployment(flow: Dataflow[..., Any], role: type[Worker], init: Sequence[Any], mesh: Mesh) -> Deployment:
    [name] = flow.trace().roles
    return Deployment(**{name: place(role, *init, pool=ResourcePool([mesh.world_size], name="pool"), mesh=mesh)})


def _steps(flow: Dataflow[..., Any], deployment: Deployment, batches: Sequence[Batch], steps: int) -> list[Any]:
    try:
        with flow.compile(deployment).launch(backend="local") as running:
            return [running.step(*batches) for _ in range(steps)]
    except HfError as error:
        raise error.with_traceback(None) from None  # show the body, not the run around it


def _fault(steps_on: Any, mesh: Mesh, on_one_rank: Sequence[Any], tolerance: float) -> str | None:
    try:
        got = steps_on(mesh)
    except HfError as error:
        return REFUSED if error.code in UNEVEN_SPLIT_CODES else str(error)
    for number, (value, expected) in enumerate(zip(got, on_one_rank, strict=True)):
        difference = first_difference(expected, value, tolerance)
        if difference is not None:
            return difference.message if len(on_one_rank) == 1 else f"step {number}: {difference.message}"
    return None
