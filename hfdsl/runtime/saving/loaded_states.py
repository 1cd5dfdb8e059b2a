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

from hfdsl.errors import CheckpointError
from hfdsl.graph.program import Graph, Node, RoleCall
from hfdsl.graph.stages import HeldState, effects, syncs
from hfdsl.plan.plan import Plan
from hfdsl.protocols.state import methods_with
from hfdsl.runtime.saving.state_files import without_state, writing


def check_loaded_states(plans: Iterable[Plan], launched: Iterable[Plan], source: str) -> None:
    """Refuse ``plans`` that read a state from an earlier step which a role has loaded and does not keep.

    Every plan that was ``launched`` on the same workers may load it. ``source`` would miss the state.

    Raises:
        CheckpointError: HF908 naming the role, the state and the call.
    """
    loaded = {holder for plan in launched for holder in _unkept(plan)}
    for plan in plans:
        for holder, node in _reads_before_loads(plan, loaded):
            role = plan.deployment[holder.role].role.__name__
            raise CheckpointError(
                "HF908",
                f"role '{holder.role}' ({role}) loads '{holder.state}', and '{node.label}' reads it in a later step of "
                f"'{plan.name}' ({node.span}), but {source} would not have it: give {role} state() and "
                f"load_state(state), or call hf.sync before '{node.label}' in each step",
            )


def check_copied_states(plans: Sequence[Plan]) -> None:
    """Refuse plans with a loaded state that a copy of ``hf.Retries`` would miss; in a stream, with any loaded state.

    Raises:
        CheckpointError: HF908 naming the role.
    """
    for plan in plans:
        if plan.steps_in_flight:
            check_loads_of_stream(plan)
    check_loaded_states(plans, plans, "the copy of states of hf.Retries")


def check_saved_states(plans: Sequence[Plan]) -> None:
    """Refuse plans of which no checkpoint could be saved, as far as the classes of their roles show.

    Raises:
        CheckpointError: HF908 naming the role.
    """
    for plan in plans:
        if plan.split.queues:
            check_loads_of_stream(plan)
        for role in plan.graph.roles:
            kind = plan.deployment[role].role
            written = methods_with(kind, "writes")
            if written and not _is_kept(kind):
                raise without_state(role, kind, writing(written))
    check_loaded_states(plans, plans, "a checkpoint")


def check_loads_of_stream(plan: Plan) -> None:
    """Refuse a role that a stream's syncs load and that keeps no state: a copy would restore its constructor's state.

    Raises:
        CheckpointError: HF908 naming the role.
    """
    for sync in syncs(plan.graph):
        role, held = sync.target
        kind = plan.deployment[role].role
        if not _is_kept(kind):
            text = f"role '{role}' ({kind.__name__}) loads '{held}' once a step, and samples the next one with it"
            raise CheckpointError(
                "HF908", f"{text}: for a checkpoint or retries, give it state() and load_state(state)"
            )


def _unkept(plan: Plan) -> set[HeldState]:
    """The states that a plan loads into roles without ``state()`` and ``load_state()``."""
    return {holder for holder in _loaded(plan.graph) if not _is_kept(plan.deployment[holder.role].role)}


def _is_kept(role: type) -> bool:
    return all(callable(getattr(role, name, None)) for name in ("state", "load_state"))


def _loaded(graph: Graph) -> set[HeldState]:
    return {holder for node in graph.calls for holder, effect in effects(node) if effect.kind == "loads"}


def _reads_before_loads(plan: Plan, holders: Set[HeldState]) -> Iterator[tuple[HeldState, Node]]:
    """The calls that read one of these states from an earlier step."""
    missing = set(holders)
    if plan.first_syncs is not None:
        missing -= _loaded(plan.first_syncs.graph)
    for node in plan.graph.calls:
        declared = list(effects(node))
        read_states = {holder for holder, effect in declared if effect.kind != "loads"}
        if not declared and isinstance(node.op, RoleCall):
            read_states = {holder for holder in missing if holder.role == node.op.role}
        yield from ((holder, node) for holder in sorted(missing & read_states))
        missing -= {holder for holder, effect in declared if effect.kind == "loads"}
