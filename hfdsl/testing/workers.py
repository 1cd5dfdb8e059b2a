"""``check_worker``: whether a role's method gives the same rows under any split and on any mesh that it claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hfdsl.deploy.deployment import Deployment, place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import DefinitionError, HfError, WiringError
from hfdsl.graph.dataflow import Dataflow, dataflow
from hfdsl.graph.signatures import ListType, RecordType, Signature, role_signatures, type_hints
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.testing.code import as_code
from hfdsl.testing.differing import difference
from hfdsl.types.batches import Batch, closest

RANKS = 4
"""The largest meshes that are tried where nobody says which."""


class BrokenWorker(AssertionError):  # noqa: N818  # that it is an error is in its base
    """A method gives other values on some meshes than on one rank."""


def check_worker(
    role: type[Worker],
    method: str,
    *batches: Batch,
    init: Sequence[Any] = (),
    meshes: Iterable[Mesh] | None = None,
    tolerance: float = 0.0,
    steps: int = 1,
    **given: Any,
) -> None:
    """Hold a method of a role to this: on every mesh it gives what it gives on one rank, within ``tolerance``.

    ``batches`` are its records in their order, ``given`` its plain arguments, ``init`` those of the role's constructor.
    The meshes, by default all of up to 4 ranks in every numbering, are those that the role's requirements allow and
    over which the rows divide: others are refused by the check before launch. A method that keeps state can be called
    for several ``steps``.

    Raises:
        BrokenWorker: with the first value that differs, for each mesh on which one does.
        CheckError: where not even one rank can run it.
        WiringError: HF202 for a method that the role does not have.
        DefinitionError: HF105 for a method that does not take records and plain values, or gives a list.

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

    cls: type = role
    signatures = role_signatures(cls)
    if method not in signatures:
        raise WiringError("HF202", f"role '{role.__name__}' has no method '{method}'; {closest(method, [*signatures])}")
    flow = _one_call(role, signatures[method], given)

    def steps_on(mesh: Mesh) -> list[Any]:
        return _steps(flow, _placed(role, init, mesh), batches, steps)

    meant = steps_on(Mesh())
    every = meshes_up_to(RANKS) if meshes is None else meshes
    tried = [mesh for mesh in every if flow.check(_placed(role, init, mesh)).ok]
    faults = {mesh: _fault(steps_on, mesh, meant, tolerance) for mesh in tried}
    ran = [mesh for mesh, found in faults.items() if found is not REFUSED]
    if steps < 1 or all(mesh.world_size == 1 for mesh in ran):
        raise DefinitionError(
            "HF105",
            f"{role.__name__}.{method} ran on no mesh of several ranks: {len(tried)} pass the check, and of those none "
            "divides these rows; give more rows, or meshes=",
        ) from None
    wrong = {mesh: found for mesh, found in faults.items() if found is not None and found is not REFUSED}
    if wrong:
        of = f"{len(wrong)} of {len(ran)} mesh{'es' if len(ran) > 1 else ''}"
        head = f"{role.__name__}.{method} gives other values on {of} than on one rank"
        raise BrokenWorker("\n".join([head, *(f"  {as_code(mesh)}: {found}" for mesh, found in wrong.items())]))


def _one_call(role: type[Worker], signature: Signature, given: Mapping[str, Any]) -> Dataflow[..., Any]:
    """A dataflow of this one call; its inputs are the method's records."""
    label = f"{role.__name__}.{signature.name}"
    if isinstance(signature.result, ListType):
        raise DefinitionError("HF105", f"{label} gives a list, one value a rank: there is no whole to compare")
    inputs = [port for port in signature.ports if port.name not in given and port.required]
    for port in inputs:
        if not isinstance(port.type, RecordType):
            raise DefinitionError("HF105", f"'{port.name}' of {label} is no record: check_worker(..., {port.name}=...)")
    names = [port.name for port in inputs]
    calls = ", ".join(f"{name}={name}" for name in names)
    source = f"def one_call({', '.join([*names, 'role'])}):\n    return role.{signature.name}({calls}, **given)\n"
    space: dict[str, Any] = {"given": dict(given)}
    exec(source, space)  # noqa: S102  # a dataflow names its inputs one by one, and the method has those
    body = space["one_call"]
    body.__annotations__ = {port.name: port.type.record for port in inputs if isinstance(port.type, RecordType)}
    body.__annotations__ |= {"role": role, "return": type_hints(signature.body, label)["return"]}
    return dataflow(body)


def _placed(role: type[Worker], init: Sequence[Any], mesh: Mesh) -> Deployment:
    return Deployment(role=place(role, *init, pool=ResourcePool([mesh.world_size], name="pool"), mesh=mesh))


def _steps(flow: Dataflow[..., Any], deployment: Deployment, batches: Sequence[Batch], steps: int) -> list[Any]:
    with flow.compile(deployment).launch(backend="local") as running:
        return [running.step(*batches) for _ in range(steps)]


def _fault(steps_on: Any, mesh: Mesh, meant: Sequence[Any], tolerance: float) -> str | None:
    try:
        got = steps_on(mesh)
    except HfError as error:
        return REFUSED if error.code in ROWS else str(error)
    for number, (one, other) in enumerate(zip(got, meant, strict=True)):
        wrong = difference(one, other, tolerance)
        if wrong is not None:
            return wrong if len(meant) == 1 else f"step {number}: {wrong}"
    return None


REFUSED = "refused"
ROWS = ("HF303", "HF310", "HF313", "HF319")
"""Rows that a mesh does not divide, which a run refuses in words."""
