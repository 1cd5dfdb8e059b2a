"""State declarations: do a role's reads, writes, exports and loads match, so that rules can follow the weights?

A worked example, in which one letter hides that an engine samples from old weights::

    class Trainer(hf.Worker):
        @hf.writes("polciy")                # trains a state that no method reads, loads or exports
        def update(self, rollout): ...
        @hf.exports("policy")               # HF709: hands on a state that nothing trains
        def weights(self): ...

The rule judges a role's class as a whole, whichever methods a dataflow calls. A state that the class exports is one
that it writes or loads, a state that it loads is one that it reads or exports, and a method that overrides another has
its effects. A class that writes nothing at all is a frozen model, whose weights others may load. Of two methods that
load or export a state, a sync calls one. A method that takes a step of an optimizer of the role's parameters writes a
state, whatever it declares.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hfdsl.check.bodies.optimizers import steps_for_certain
from hfdsl.check.bodies.role_code import code_of
from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.check.sources import span_of
from hfdsl.graph.misuses import MisuseKind
from hfdsl.graph.program import Node, RoleCall
from hfdsl.graph.signatures import RecordType, StaticType
from hfdsl.graph.spans import definition_span
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import Effect, effects_of, methods_with
from hfdsl.types.batches import schema
from hfdsl.types.similar_names import nearest


def states_are_declared(context: Context) -> Iterator[Finding]:
    """HF709: the effects that a role's methods declare say where its weights come from, and who uses them."""
    called: dict[type, list[tuple[Node, RoleCall]]] = {}
    for node in context.program.graph.calls:
        if isinstance(node.op, RoleCall):
            called.setdefault(context.program.graph.roles[node.op.role], []).append((node, node.op))
    nodes, misuses = context.program.graph.nodes, context.program.graph.misuses
    unsynced = any(misuse.kind is MisuseKind.NO_SYNC for misuse in misuses)  # HF707 names the states already
    synced = {
        number
        for sync in context.program.syncs
        for number in (sync.export, sync.load)
        if nodes[sync.export].span == nodes[sync.load].span  # one call of hf.sync makes both
    }
    for role, calls in called.items():
        node, dropped = calls[0][0], list(_dropped(role))
        for method, effect, base in dropped:
            yield Finding(
                "HF709",
                f"'{role.__name__}.{method}' overrides a method that {effect.kind} '{effect.state}', and does not "
                "declare it",
                Label(definition_span(getattr(role, method)), f"has no @hf.{effect.kind}"),
                (
                    Label(definition_span(getattr(base, method)), f"{effect.kind} '{effect.state}'"),
                    Label(node.span, "called here"),
                ),
                notes=(f'declare @hf.{effect.kind}("{effect.state}") on it too: an override inherits no effects',),
            )
        yield from _ambiguous(role, calls, synced)
        yield from _undeclared(role, calls)
        if not dropped and not unsynced:
            yield from _unconnected(role, calls)


def _ambiguous(role: type, calls: Sequence[tuple[Node, RoleCall]], by_sync: Collection[int]) -> Iterator[Finding]:
    """A method that hands on or loads a state beside another one, which is the one that a sync calls."""
    called = {op.signature.name for _, op in calls}
    synced_at = {op.signature.name: node for node, op in reversed(calls) if node.id in by_sync}
    for kind in ("exports", "loads"):
        for state, synced in methods_with(role, kind).items():
            others = [
                name
                for name in registered_methods(role)
                if name != synced
                and any((effect.kind, effect.state) == (kind, state) for effect in effects_of(getattr(role, name)))
            ]
            if synced in synced_at and others and called.isdisjoint(others):
                yield Finding(
                    "HF709",
                    f"'{role.__name__}.{others[0]}' and '{synced}' both {kind[:-1]} '{state}', and hf.sync calls "
                    f"'{synced}' alone",
                    Label(definition_span(getattr(role, others[0])), f"{kind} '{state}'"),
                    (
                        Label(definition_span(getattr(role, synced)), f"{kind} '{state}'"),
                        Label(synced_at[synced].span, "called here"),
                    ),
                    notes=(f"leave @hf.{kind} to the method that a sync is to call",),
                )


def _undeclared(role: type, calls: Sequence[tuple[Node, RoleCall]]) -> Iterator[Finding]:
    """A method that trains and declares only what it reads, or nothing, where another one declares that it writes."""
    code = code_of(role)
    written = {
        optimizer: effect.state
        for method in registered_methods(role)
        for effect in effects_of(getattr(role, method))
        if effect.kind == "writes"
        for _, _, optimizer in steps_for_certain(code, method)
    }
    for method, node in {op.signature.name: node for node, op in reversed(calls)}.items():
        effects = effects_of(getattr(role, method))
        read = [effect.state for effect in effects if effect.kind == "reads"]
        for function, step, optimizer in steps_for_certain(code, method):
            state = written.get(optimizer) or next(iter(read), None)
            if state is not None and all(effect.kind == "reads" for effect in effects):
                yield Finding(
                    "HF709",
                    f"'{role.__name__}.{method}' trains, and declares "
                    + (f'only @hf.reads("{read[0]}")' if read else "no effect"),
                    Label(span_of(definition_span(function.body).file, step), f"a step of 'self.{optimizer}'"),
                    (Label(node.span, "called here"),),
                    notes=(f"let '{method}' declare @hf.writes(\"{state}\"): queues and syncs then count its updates",),
                )
                break


def _dropped(role: type) -> Iterator[tuple[str, Effect, type]]:
    """The effects that a method of a class above declares on a method, and the override here does not."""
    for method in registered_methods(role):
        own = {(effect.kind, effect.state) for effect in effects_of(getattr(role, method))}
        for base in role.__mro__[1:]:
            above = effects_of(vars(base)[method]) if method in vars(base) and not own else ()
            if above:
                yield method, above[0], base
                break


def _unconnected(role: type, calls: Sequence[tuple[Node, RoleCall]]) -> Iterator[Finding]:
    """A state that a class exports without training or loading it, or that it loads without using it."""
    methods: dict[str, dict[str, str]] = {kind: {} for kind in ("writes", "loads", "reads", "exports")}
    for method in registered_methods(role):
        for effect in effects_of(getattr(role, method)):
            methods[effect.kind].setdefault(effect.state, method)
    trained, loaded, read, exported = (set(methods[kind]) for kind in ("writes", "loads", "reads", "exports"))
    unchanged = sorted(exported - trained - loaded)
    training = {
        methods["writes"][state]: f"writes '{state}', which no method of it reads or exports"
        for state in sorted(trained - exported - read)
    }
    if not trained:
        training = {
            op.signature.name: "takes rows and returns none, as an update does" for _, op in calls if _may_train(op)
        }
    if unchanged and training:
        exports = methods["exports"][unchanged[0]], f"exports '{unchanged[0]}', which no method of it writes or loads"
        name, why = next(iter(training.items()))
        yield _finding(role, calls[0][0], exports, (name, why), f"let '{name}' declare @hf.writes(\"{unchanged[0]}\")")
        return
    works = any({effect.kind for effect in effects_of(op.signature.body)} <= {"reads"} for _, op in calls)
    for state in sorted(loaded - trained - read - exported) if works else ():
        others = sorted(read - trained - loaded)
        close = nearest(state, others) or (others[0] if len(others) == 1 else None)
        loads = methods["loads"][state], f"loads '{state}', which no method of it reads"
        reads = (methods["reads"][close], f"reads '{close}', which no method of it loads") if close else None
        advice = f'@hf.reads("{state}") on the method that uses the weights lets the check see whether they are too old'
        if close:
            advice = f"if both are the same weights, give them one name; if not, {advice}"
        yield _finding(role, calls[0][0], loads, reads, advice)


def _may_train(op: RoleCall) -> bool:
    """Whether a method that declares no effects takes rows and returns at most metrics."""
    signature = op.signature
    takes = any(isinstance(port.type, RecordType) for port in signature.ports)
    match signature.returns:
        case RecordType(record=record):
            rows = schema(record).row is not None
        case StaticType(annotation=annotation):
            rows = annotation not in (None, type(None))
        case _:
            rows = True
    return takes and not rows and not effects_of(signature.body)


def _finding(role: type, node: Node, first: tuple[str, str], second: tuple[str, str] | None, advice: str) -> Finding:
    method, why = first
    related = [Label(node.span, "called here")]
    if second is not None:
        related.insert(0, Label(definition_span(getattr(role, second[0])), second[1]))
    return Finding(
        "HF709",
        f"'{role.__name__}.{method}' {why}" + (f"; '{second[0]}' {second[1]}" if second is not None else ""),
        Label(definition_span(getattr(role, method)), "declared here"),
        tuple(related),
        notes=(advice,),
    )
