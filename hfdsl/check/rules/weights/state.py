"""State: does every role that holds a copy of trained weights get them, and in time?

The dataflow is one step of a loop. The rule simulates its calls for a few steps, and counts the updates of every
trained state, and how many of them every copy has. The updates that a copy lacks when a method reads it are its
staleness.

In front of a queue, a call is dispatched between two steps of the stage that updates and syncs, and the lag counts from
the version at that time. So the call's copy must be up to date at the end of a step, wherever the program reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.role_links import linked_roles, role_links
from hfdsl.graph.ancestry import ancestors
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.samples import is_float_column
from hfdsl.protocols.state import Effect, effects_of, methods_with

Holder: TypeAlias = tuple[str, str]
"""A role and the name of a state that it holds."""

Behind: TypeAlias = tuple[int, Holder]
"""By how many steps a copy is behind, and behind which state."""


@dataclass
class _WeightVersions:
    """The dataflow in a loop. ``updates[trained]``: the steps of its updates; ``copies[copy]``: how many it has."""

    updates: dict[Holder, list[int]]
    copies: dict[Holder, dict[Holder, int]] = field(default_factory=dict)
    exported: dict[int, dict[Holder, int]] = field(default_factory=dict)

    def has(self, holder: Holder) -> dict[Holder, int]:
        """The number of updates that a role's state has of each trained state."""
        if holder in self.updates:
            return {holder: len(self.updates[holder])}
        return self.copies.get(holder, {})

    def staleness(self, holder: Holder) -> Behind:
        """The number of steps by which a copy is stale, and its trained state; its own state if it has none."""
        late = ((len(set(self.updates[of][n:])), of) for of, n in self.has(holder).items())
        return max(late, default=(0, holder))


def weights_are_fresh(context: Context) -> Iterator[Finding]:
    """A copy of trained weights is loaded, and read no later than the reading method allows."""
    if context.program.graph.misuses:
        return  # a call that is not there may be the one that loads
    calls = [(node, effect) for node in context.program.graph.calls for effect in _effects(node)]
    trained = {(node.role, effect.state): node for node, effect in calls if effect.kind == "writes"}
    loaded = {(node.role, effect.state): node for node, effect in calls if effect.kind == "loads"}
    late = _staleness(context, calls, trained, len(loaded) + 1)  # a step hands weights on by one copy at least
    reported: set[Holder] = set()
    for node, effect in calls:
        holder = (node.role, effect.state)
        if effect.kind != "reads" or holder in trained or holder in reported:
            continue
        if holder not in loaded:
            finding = _never(context, node, effect, trained)
        elif late[node.id, effect.state][1] == holder:
            finding = _untrained(context, node, effect, trained, calls)
        else:
            steps, of = late[node.id, effect.state]
            if _in_other_stages(context, node, trained[of]):
                in_flight = getattr(loaded[holder].op, "during", None) is not None  # then HF753 reports it
                is_late = steps > 0 and not in_flight
                finding = _dispatched_late(node, effect, loaded[holder], trained[of]) if is_late else None
            else:
                finding = _late(node, effect, steps, loaded[holder], trained[of]) if steps > effect.staleness else None
        if finding is not None:
            reported.add(holder)
            yield finding


def _staleness(
    context: Context, calls: list[tuple[Node, Effect]], trained: dict[Holder, Node], steps: int
) -> dict[tuple[int, str], Behind]:
    """The age of every state when it is read, in the last of ``steps`` steps; further steps repeat it."""
    behind = _exports_behind(context, {node.id for node, effect in calls if effect.kind == "exports"})
    loop = _WeightVersions({holder: [] for holder in trained})
    late: dict[tuple[int, str], Behind] = {}
    order = ("reads", "exports", "loads", "writes")  # of one call: it reads before it writes
    for step in range(steps):
        for node, effect in sorted(calls, key=lambda call: (call[0].id, order.index(call[1].kind))):
            holder = (node.role, effect.state)
            match effect.kind:
                case "reads":
                    late[node.id, effect.state] = loop.staleness(holder)
                case "exports":
                    loop.exported[node.id] = loop.has(holder)
                case "loads":
                    loop.copies[holder] = _oldest([loop.exported.get(source, {}) for source in behind[node.id]])
                case "writes":
                    loop.updates[holder].append(step)
    for node, effect in calls:
        if effect.kind == "reads":
            _, of = late[node.id, effect.state]
            if of in trained and _in_other_stages(context, node, trained[of]):
                late[node.id, effect.state] = loop.staleness((node.role, effect.state))
    return late


def _in_other_stages(context: Context, reader: Node, writer: Node) -> bool:
    """Whether queues separate two calls."""
    split = context.program.split
    return not split.around and split.of[reader.id] != split.of[writer.id]


def _exports_behind(context: Context, exporting: set[int]) -> list[frozenset[int]]:
    """For every node the exports that its value derives from."""
    if not exporting:
        return [frozenset()] * len(context.program.graph.nodes)
    behind: list[frozenset[int]] = []
    for node in context.program.graph.nodes:
        exports = {node.id} if node.id in exporting else set()
        behind.append(frozenset(exports.union(*(behind[ref.node] for ref in node.refs))))
    return behind


def _oldest(states: list[dict[Holder, int]]) -> dict[Holder, int]:
    """The updates of a mixture of states: of each trained state, those of the part with the fewest."""
    holders = {holder for state in states for holder in state}
    return {holder: min(state[holder] for state in states if holder in state) for holder in holders}


def _never(context: Context, node: Node, effect: Effect, trained: dict[Holder, Node]) -> Finding | None:
    """HF510, for a role that can load what another one trains."""
    role, roles = node.role, context.program.graph.roles
    writer = next((maker for (_, state), maker in trained.items() if state == effect.state), None)
    if writer is None or effect.state not in methods_with(roles[role], "loads"):
        return None  # no role trains it, or the role keeps separate weights
    source = writer.role
    exported = effect.state in methods_with(roles[source], "exports")
    fix = f"hf.sync({source}, {role}) after '{writer.label}'"
    separate = (
        f"or, if another dataflow refreshes '{role}' now and then, give its weights a state of another name, which "
        f"'{source}' exports by a second method"
    )
    return Finding(
        "HF510",
        f"'{node.label}' reads '{effect.state}', which '{writer.label}' trains, but '{role}' never loads it",
        Label(node.span, f"uses the weights that '{role}' was built with"),
        (Label(writer.span, "trains them"),),
        notes=(
            fix
            if exported
            else f"give {context.program.graph.roles[source].__name__} a method with @hf.exports, then {fix}",
            separate,
        ),
    )


def _untrained(
    context: Context, node: Node, effect: Effect, trained: dict[Holder, Node], calls: list[tuple[Node, Effect]]
) -> Finding | None:
    """HF510: a copy of weights that nothing trains, while the weights trained on its outputs reach no reader.

    A second engine may well hold frozen weights, such as a teacher's. Here no other role reads the trained ones, and
    the update reads numbers of what is sampled, such as advantages: to imitate a teacher takes its tokens alone.
    """
    readers = {call.role for call, of in calls if of.kind == "reads" and of.state == effect.state}
    loading = next(call for call, of in calls if of.kind == "loads" and call.role == node.role)
    for (role, state), writer in trained.items():
        exporters = {
            call.role: call for call, of in calls if (of.kind, of.state) == ("exports", state) and call.role != role
        }
        sent = any((of.kind, of.state) == ("exports", state) and call.role == role for call, of in calls)
        if state != effect.state or role in readers or (sent and len(readers) > 1) or not exporters:
            continue
        if node.id not in ancestors(context.program.graph, [ref.node for ref in writer.refs]):
            continue  # it does not learn from what is read here
        if not any(is_float_column(column.spec) for column in context.program.origins.columns(writer.id)):
            continue  # it imitates
        source, call = next(iter(exporters.items()))
        if role in linked_roles(role_links(context.program), source):
            continue  # it may have trained weights from a method that does not say so
        return Finding(
            "HF510",
            f"'{node.label}' reads '{state}', which '{writer.label}' trains, but '{node.role}' loads that of "
            f"'{source}', which nothing trains",
            Label(node.span, f"uses the weights of '{source}'"),
            (Label(writer.span, "trains them"), Label(loading.span, f"loads what '{call.label}' exports")),
            notes=(f"hf.sync({role}, {node.role}) after '{writer.label}'",),
        )
    return None


def _late(node: Node, effect: Effect, late: int, loading: Node, writer: Node) -> Finding:
    """HF701: a state is older than the method which reads it allows."""
    allowed = f"it allows {effect.staleness}" if effect.staleness else "it must be up to date"
    return Finding(
        "HF701",
        f"'{node.label}' reads '{effect.state}' {late} step{'s' if late > 1 else ''} old: {allowed}",
        Label(node.span, "reads it"),
        (Label(loading.span, f"'{node.role}' loads it"), Label(writer.span, f"'{writer.label}' changes it")),
        notes=(f"load it after '{writer.label}', or declare @hf.reads({effect.state!r}, staleness={late})",),
    )


def _dispatched_late(node: Node, effect: Effect, loading: Node, writer: Node) -> Finding:
    """HF701: in front of a queue, a state is older than the version of the dispatch, from which the lag counts."""
    return Finding(
        "HF701",
        f"'{node.label}' reads '{effect.state}' older than the version under which a queue counts its rows: "
        f"'{node.role}' loads it before '{writer.label}' changes it",
        Label(node.span, "its rows are older than the lag says"),
        (Label(loading.span, f"'{node.role}' loads it"), Label(writer.span, f"'{writer.label}' changes it")),
        notes=(f"call hf.sync after '{writer.label}'",),
    )


def _effects(node: Node) -> tuple[Effect, ...]:
    return effects_of(node.op.signature.body) if isinstance(node.op, RoleCall) else ()
