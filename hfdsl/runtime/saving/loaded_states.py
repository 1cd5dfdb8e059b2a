"""States that a role loads and that no copy of a run holds, since the role has no ``state()``.

A worked example, in which ``engine`` has a copy of the actor's policy and no ``state()``::

    1  rollout = engine.generate(prompts)      reads the policy that engine loaded in the step before
    2  metrics = actor.update(rollout)
    3  hf.sync(actor, engine)                  engine.load(actor.weights())

An engine that is built again within step 5, or that continues from a checkpoint of step 5, has the policy that its
constructor gives it, and call 1 would read that: the run would continue with other values, and say nothing. So it is
refused. With the sync before call 1, each step loads what it reads, and nothing has to be kept.

A call that declares no effect may read all that its role holds. Before a stream's first dispatch the syncs of
``first_syncs`` run, so what they load is new by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import NamedTuple

from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import CheckpointError
from hfdsl.graph.first_syncs import first_syncs
from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.graph.stages import HeldState, effects, queues_of, syncs
from hfdsl.plan.plan import Plan
from hfdsl.protocols.state import methods_with
from hfdsl.runtime.saving.state_files import needs_state, writing


class Unsaved(NamedTuple):
    """A role with a state that a copy of all states would not have, and the message about it."""

    role: str
    message: str


def check_loaded_states(plans: Sequence[Plan], launched: Iterable[Plan], source: str) -> None:
    """Refuse ``plans`` that read a state from an earlier step which a role has loaded and does not keep.

    Every plan that was ``launched`` on the same workers may load it. ``source`` would miss the state.

    Raises:
        CheckpointError: HF908 naming the role, the state and the call.
    """
    for plan in plans:
        _refuse(_lost([plan.graph], [other.graph for other in launched], plan.deployment, source))


def check_copied_states(plans: Sequence[Plan]) -> None:
    """Refuse plans with a loaded state that a copy of ``hf.Retries`` would miss; in a stream, with any loaded state.

    Raises:
        CheckpointError: HF908 naming the role.
    """
    for plan in plans:
        if plan.steps_in_flight:
            check_loads_of_stream(plan)
    check_loaded_states(plans, plans, "the copy of states of hf.Retries")


def check_loads_of_stream(plan: Plan) -> None:
    """Refuse a role that a stream's syncs load and that keeps no state: a copy would restore its constructor's state.

    Raises:
        CheckpointError: HF908 naming the role.
    """
    _refuse(_lost_by_stream(plan.graph, plan.deployment))


def unsaved_states(graphs: Sequence[Graph], deployment: Deployment) -> Iterator[Unsaved]:
    """The roles because of which a run of these dataflows could save no checkpoint, as far as their classes show."""
    for graph in graphs:
        if queues_of(graph):
            yield from _lost_by_stream(graph, deployment)
        for role in graph.roles:
            kind = deployment[role].role
            written = methods_with(kind, "writes")
            if written and not _is_kept(kind):
                yield Unsaved(role, needs_state(role, kind, writing(written)))
    yield from _lost(graphs, graphs, deployment, "a checkpoint")


def _refuse(unsaved: Iterable[Unsaved]) -> None:
    for _, message in unsaved:
        raise CheckpointError("HF908", message)


def _lost_by_stream(graph: Graph, deployment: Deployment) -> Iterator[Unsaved]:
    """The roles that a stream's syncs load and that keep no state."""
    for sync in syncs(graph):
        role, held = sync.target
        kind = deployment[role].role
        if not _is_kept(kind):
            text = f"role '{role}' ({kind.__name__}) loads '{held}' once a step, and samples the next one with it"
            yield Unsaved(role, f"{text}: for a checkpoint or retries, give it state() and load_state(state)")


def _lost(graphs: Iterable[Graph], launched: Iterable[Graph], deployment: Deployment, source: str) -> Iterator[Unsaved]:
    """The roles with a state that one of ``launched`` loads, that ``graphs`` read in a later step, and none keeps."""
    loaded = {holder for graph in launched for holder in _loaded(graph)}
    unkept = {holder for holder in loaded if not _is_kept(deployment[holder.role].role)}
    for graph in graphs:
        for holder, node in _reads_before_loads(graph, unkept):
            kind = deployment[holder.role].role.__name__
            yield Unsaved(
                holder.role,
                f"role '{holder.role}' ({kind}) loads '{holder.state}', and '{node.label}' reads it in a later step of "
                f"'{graph.name}' ({node.span}), but {source} would not have it: give {kind} state() and "
                f"load_state(state), or call hf.sync before '{node.label}' in each step",
            )


def _is_kept(role: type) -> bool:
    return all(callable(getattr(role, name, None)) for name in ("state", "load_state"))


def _loaded(graph: Graph) -> set[HeldState]:
    return {holder for node in graph.calls for holder, effect in effects(node) if effect.kind == "loads"}


def _reads_before_loads(graph: Graph, holders: Set[HeldState]) -> Iterator[tuple[HeldState, Node]]:
    """The calls that read one of these states from an earlier step."""
    missing = set(holders)
    before = first_syncs(graph)
    if before is not None:
        missing -= _loaded(before)
    for node in graph.calls:
        declared = list(effects(node))
        read_states = {holder for holder, effect in declared if effect.kind != "loads"}
        if not declared and isinstance(node.op, RoleCall):
            read_states = {holder for holder in missing if holder.role == node.op.role}
        yield from ((holder, node) for holder in sorted(missing & read_states))
        missing -= {holder for holder, effect in declared if effect.kind == "loads"}
