"""The syncs of a program, with the parameters and layouts that both sides declare.

A class may inherit a declaration and build another model than its base class does. So a declaration counts only while
no derived class overrides the constructor, or the method that exports or loads, of the class that declares it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.graph.signatures import Signature, StaticType
from hfdsl.protocols import role_facts
from hfdsl.protocols.dispatch import Execute
from hfdsl.protocols.layouts import Layout, Parameter, Replicas
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.state import Effect, EffectKind, effects_of
from hfdsl.protocols.worker import Worker


@dataclass(frozen=True)
class SyncSide:
    """One side of a sync: the call that exports or loads, and the place of its role."""

    node: Node
    role: str
    method: str
    placement: Placement[Any]
    effect: Effect

    @cached_property
    def entries(self) -> tuple[object, ...] | None:
        """The entries that the role states for the state, also where they are no parameters.

        None if only a base class states any, or none does.
        """
        place = self.placement
        if self.overridden is not None:
            return None
        return role_facts.state_parameters.of(place).get(self.effect.state)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that the role states for the state; none if it states none, or something else among them."""
        entries = self.entries or ()
        parameters = tuple(entry for entry in entries if isinstance(entry, Parameter))
        return parameters if len(parameters) == len(entries) else ()

    @property
    def overridden(self) -> str | None:
        """The method that makes the inherited parameters unknown, since the role's class has another one."""
        names = ("__init__", self.method)
        return next((name for name in names if overrides(self.placement.role, name, "state_parameters")), None)

    @cached_property
    def _computed(self) -> tuple[object, Exception | None]:
        """The layout that is declared, or that the role's function returns; or the exception that it raises."""
        declared, place = self.effect.layout, self.placement
        if declared is None or isinstance(declared, Layout):
            return Replicas() if declared is None else declared, None
        try:
            return declared(place.mesh, *place.args, **place.kwargs), None
        except Exception as error:  # noqa: BLE001  # whatever the function does, perhaps with arguments of another class
            return None, error

    @property
    def has_other_arguments(self) -> bool:
        """Whether a base class declares the layout by a function of other arguments than those of the constructor."""
        return overrides(self.placement.role, "__init__", stated_by=self.method) and self._computed[1] is not None

    def layout(self) -> Layout | None:
        """The layout of the ranks: as declared, else whole parameters; None if the role's function returns None.

        Also None where the function takes the arguments of another constructor.

        Raises:
            DefinitionError: HF739 if the role's function returns something else.
            Exception: any that the function raises.
        """
        layout, error = self._computed
        if error is not None and not self.has_other_arguments:
            raise error
        if layout is None or isinstance(layout, Layout):
            return layout
        raise DefinitionError("HF739", f"the layout of '{self.node.label}' must be a Layout or None, got {layout!r}")


@dataclass(frozen=True, slots=True)
class WeightSync:
    """The transfer of a state from the role that exports it to one that loads it."""

    source: SyncSide
    target: SyncSide

    @property
    def state(self) -> str:
        """The name of the state."""
        return self.target.effect.state

    @property
    def declared(self) -> bool:
        """Whether a side declares its layout."""
        return self.source.effect.layout is not None or self.target.effect.layout is not None

    def pairs(self, source: Layout, target: Layout) -> Iterator[tuple[Parameter, Parameter]]:
        """The loaded parameters, each after the exported one with its name, or tied to it.

        Where one side alone states parameters, those are the other's too.
        """
        exported, loaded = self.source.parameters, self.target.parameters
        by_name = {parameter.name: parameter for parameter in exported or loaded}
        for parameter in loaded or exported:
            name = next((name for name in (parameter.name, source.stored_as(parameter.name)) if name in by_name), None)
            if name is not None:
                yield by_name[name], parameter


def unscheduled(sync: WeightSync, load: Node) -> str | None:
    """Why a call that loads the weights of a sync cannot get them in parts, by a schedule; None if it can.

    Raises:
        Exception: any that the function of a layout raises.
    """
    signatures = [node.op.signature for node in (sync.source.node, load) if isinstance(node.op, RoleCall)]
    exporting, loading = signatures
    unknown = next((side for side in (sync.source, sync.target) if side.layout() is None), None)
    if unknown is not None:
        return f"the layout of '{unknown.node.label}' is not known"
    if not sync.declared:
        return "no side declares a layout"
    if not isinstance(exporting.returns, StaticType) or _has_functions(exporting):
        return f"'{sync.source.node.label}' returns no dict from every rank"
    if _has_functions(loading) or not _all_get_the_same(loading, sync.target.placement.mesh):
        return f"'{load.label}' does not give its argument to all ranks, as Dispatch.ONE_TO_ALL does"
    if len(load.arguments) != 1:
        return f"'{load.label}' gets other arguments beside the weights"
    if not (sync.source.parameters or sync.target.parameters):
        return f"neither '{sync.source.role}' nor '{sync.target.role}' states the parameters of '{sync.state}'"
    return None


def _has_functions(signature: Signature) -> bool:
    """Whether its protocol is a pair of functions."""
    registration = signature.registration
    return registration is None or (signature.protocol is None and registration.execute_mode is Execute.ALL)


def _all_get_the_same(signature: Signature, mesh: Mesh) -> bool:
    """Whether every rank runs it, with the whole of its arguments."""
    protocol = signature.protocol
    if protocol is None:
        return mesh.world_size == 1  # rank 0 alone runs it
    return protocol.takes == "whole" and protocol.chunk_count(mesh) == 1


def weight_syncs(graph: Graph, deployment: Deployment | None) -> Iterator[WeightSync]:
    """List the syncs between placed roles, each once: the call that loads takes the result of the call that exports."""
    seen = set[tuple[str, ...]]()
    for node in graph.calls if deployment else ():
        for target in sides(deployment, node, "loads"):
            for ref in node.refs:
                for source in sides(deployment, graph.nodes[ref.node], "exports"):
                    key = (source.role, source.method, target.role, target.method, target.effect.state)
                    if source.effect.state == target.effect.state and key not in seen:
                        seen.add(key)
                        yield WeightSync(source, target)


def sides(deployment: Deployment | None, node: Node, kind: EffectKind) -> Iterator[SyncSide]:
    """The call of a placed role as a side of syncs: for each state that it exports, or loads."""
    if isinstance(node.op, RoleCall) and deployment is not None and node.op.role in deployment.placements:
        place, method = deployment.placements[node.op.role], node.op.signature.name
        for effect in effects_of(getattr(place.role, method, node.op.signature.body)):
            if effect.kind == kind:
                yield SyncSide(node, node.op.role, method, place, effect)


def overrides(role: type, name: str, stated_by: str) -> bool:
    """Whether a class below the one that defines ``stated_by`` overrides what that one has or inherits as ``name``."""
    declarer: type = next((base for base in role.__mro__ if stated_by in vars(base)), object)
    defining = [base for base in role.__mro__ if name in vars(base) and base not in (Worker, object)]
    inherited = [base for base in defining if issubclass(declarer, base)]
    return bool(inherited) and defining[0] is not inherited[0]
