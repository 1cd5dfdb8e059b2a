"""Exported parts: does everyone who reads weights that ranks export in parts get all of them?

A worked example, a trainer on ``tp=2`` whose method returns half of each weight on each rank::

    class Trainer(hf.Worker):
        @register(Dispatch.ONE_TO_ALL)
        @hf.exports("policy", layout=Slices(0))
        def weights(self) -> dict[str, Tensor]: ...

    weights = trainer.weights()
    engine.load(weights)                # gets its parts from both ranks, by the layouts of both methods
    size = norm(weights)                # HF403: gets what one rank returned

A value that one reader cannot get in parts goes as a whole to all readers, so the rule reports it once for each such
reader. It does not report a role with ``held_weights``, which may return whole weights from its method.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.rules.weights.stated_parameters import stated_problem
from hfdsl.check.rules.weights.unused_layouts import stating
from hfdsl.deploy.weight_syncs import SyncSide, WeightSync, sides, unscheduled, weight_syncs
from hfdsl.graph.columns import result_origins
from hfdsl.graph.program import Node, RoleCall
from hfdsl.protocols.boxes import whole
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.layouts import Composed, Cut, Layout, Parameter, Tied, holdings, rank_boxes
from hfdsl.protocols.mesh import Mesh

JOINED_BY_LOADS = (
    "a sync alone joins parts; export whole weights for other readers, by a method of rank 0: "
    "(Dispatch.ONE_TO_ALL, Execute.RANK_ZERO)"
)


def parts_are_joined(context: Context) -> Iterator[Finding]:
    """HF403: a reader of weights that ranks export in parts would get those of one rank."""
    graph, deployment = context.program.graph, context.program.deployment
    syncs = list(weight_syncs(graph, deployment))
    misfitting = {number for number, _ in context.program.inference.misfits}
    returned = {origin for ref in graph.output.refs() for origin, _ in result_origins(graph, ref)}
    for node in graph.calls:
        for side in sides(deployment, node, "exports"):
            parameters = side.parameters or next(
                (sync.target.parameters for sync in syncs if sync.source.role == side.role), ()
            )
            if not exports_parts(side, parameters):
                continue
            for reader in graph.calls:
                if any(ref.node == node.id for ref in reader.refs) and reader.id not in misfitting:
                    yield from _loses_parts(side, reader, syncs)
            if node.id in returned:
                yield _finding(side, "the caller of the dataflow", JOINED_BY_LOADS, node)


def parts_of_unknown(sync: WeightSync) -> bool:
    """Whether HF403 says that a sync of parts needs parameters, which no role states."""
    return not (sync.source.parameters or sync.target.parameters) and exports_parts(sync.source, ())


def exports_parts(side: SyncSide, parameters: Sequence[Parameter]) -> bool:
    """Whether a method certainly returns less than all of some parameter on some rank."""
    registration = side.node.op.signature.registration  # type: ignore[union-attr]  # a call
    runs_on_all = registration is not None and registration.execute_mode is Execute.ALL
    if side.effect.layout is None or not runs_on_all or hasattr(side.placement.role, "held_weights"):
        return False
    with suppress(Exception):  # the rule on layouts reports it
        return holds_parts(side, parameters)
    return False


def holds_parts(side: SyncSide, parameters: Sequence[Parameter]) -> bool:
    """Whether some rank certainly holds less than all of some parameter, or all of it in another order.

    Raises:
        Exception: any that the function of a layout raises, or a layout that cannot cut a parameter.
    """
    layout, mesh = side.layout(), side.placement.mesh
    if layout is not None and parameters:
        return not all(_on_all_ranks(layout, parameter, mesh) for parameter in parameters if 0 not in parameter.shape)
    return layout is not None and _cuts_all(layout, mesh)


def _on_all_ranks(layout: Layout, parameter: Parameter, mesh: Mesh) -> bool:
    """Whether every rank holds all of a parameter, in its own order or another one."""
    all_of_it = (whole(parameter.shape),)
    if rank_boxes(layout, parameter, mesh, 0) != all_of_it:
        return False  # as of most layouts, without a look at a thousand ranks
    held = holdings(layout, parameter, mesh)
    return (
        all(holding.boxes == all_of_it for holding in held)
        and sum(len(holding.ranks) for holding in held) == mesh.world_size
    )


def _cuts_all(layout: Layout, mesh: Mesh) -> bool:
    """Whether a layout cuts parameters whatever they are."""
    match layout:
        case Cut():
            return layout.parts(mesh) > 1
        case Composed():
            return any(_cuts_all(part, mesh) for part in layout.layouts)
        case Tied():
            return _cuts_all(layout.layout, mesh)
    return False


def _loses_parts(side: SyncSide, reader: Node, syncs: Sequence[WeightSync]) -> Iterator[Finding]:
    loading = [
        sync
        for sync in syncs
        if (sync.source.role, sync.source.method) == (side.role, side.method)
        and isinstance(reader.op, RoleCall)
        and (sync.target.role, sync.target.method) == (reader.role, reader.op.signature.name)
    ]
    if not loading:
        yield _finding(side, f"'{reader.label}'", JOINED_BY_LOADS, reader)
    for sync in loading:
        with suppress(Exception):  # as above
            obstacle, is_stated = unscheduled(sync, reader), sync.source.parameters or sync.target.parameters
            places = sync.source.placement, sync.target.placement
            if obstacle is not None and (is_stated or not any(map(stated_problem, places))):  # else HF739
                note = f"parts cannot be joined for it: {obstacle}" if is_stated else stating(side)
                yield _finding(side, f"'{reader.label}'", note, reader)


def _finding(side: SyncSide, reader: str, note: str, at: Node) -> Finding:
    mesh, state = side.placement.mesh, side.effect.state
    return Finding(
        "HF403",
        f"'{side.node.label}' exports '{state}' in parts, one on each rank of {mesh}, and {reader} would get those of "
        "one rank",
        Label(at.span, "gets the weights of one rank"),
        (
            Label(side.node.op.signature.span, f"declares a layout of '{state}'"),  # type: ignore[union-attr]  # a call
            Label(side.placement.span, f"'{side.role}' has {mesh}"),
        ),
        notes=(note,),
    )
