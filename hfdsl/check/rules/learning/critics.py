"""Critics: does anything train the values that a policy learns from?

A worked example, PPO without the line that is easily lost::

    values = critic.values(rollout)
    estimates = generalized_advantages(rollout, rewards, values)     # advantages, and the returns a critic learns
    actor.update(...)                                                # critic.update(...) is missing

The values stay those of a new critic, and advantages have no baseline. A role is such a critic if its class can train
the state that it reads, if it gives numbers of single tokens, if a policy learns from what depends on them, and if the
dataflow computes all numbers that its training method reads, some of them from its values. Neither a frozen teacher or
opponent, which samples tokens, nor a reward model, which learns from preferences, is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.check.context import Context
from hfdsl.check.dependences import updates_after
from hfdsl.check.findings import Finding, Label
from hfdsl.check.program import Program, signature_of
from hfdsl.graph.ancestry import descendants
from hfdsl.graph.program import Input, Node, RoleCall
from hfdsl.graph.samples import is_float_column, is_token_column
from hfdsl.graph.signatures import PortType, RecordType, role_signature
from hfdsl.protocols.register import registered_methods
from hfdsl.protocols.state import effects_of, methods_with
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec


def critics_learn(context: Context) -> Iterator[Finding]:
    """HF728: a critic whose values a policy learns from is trained."""
    program = context.program
    if program.graph.misuses:
        return
    changed = {
        (node.role, effect.state)
        for node in program.graph.calls
        if isinstance(node.op, RoleCall)
        for effect in effects_of(node.op.signature.body)
        if effect.kind in ("writes", "loads")
    }
    reported = set[str]()
    for node in program.graph.calls:
        if not isinstance(node.op, RoleCall) or node.role in reported:
            continue
        for effect in effects_of(node.op.signature.body):
            kind = program.graph.roles[node.role]
            training = methods_with(kind, "writes").get(effect.state) if effect.kind == "reads" else None
            if training is None or (node.role, effect.state) in changed or not values_tokens(node, kind):
                continue
            update = next((update for update in updates_after(program, node) if update.role != node.role), None)
            targets = _targets(program, node, kind, training)
            if update is not None and targets:
                reported.add(node.role)
                yield _finding(node, training, update, targets)


def _finding(values: Node, training: str, update: Node, targets: list[tuple[str, Node]]) -> Finding:
    name, maker = targets[0]
    return Finding(
        "HF728",
        f"'{update.label}' learns from '{values.label}', and nothing trains '{values.role}': its values stay as they "
        "were at the start",
        Label(values.span, "values of a critic that never learns"),
        (Label(maker.span, f"makes '{name}', which only '{values.role}.{training}' would learn"), Label(update.span)),
        notes=(f"call {values.role}.{training} on these rows; to freeze a critic, place a class without that method",),
    )


def values_tokens(node: Node, kind: type) -> bool:
    """Whether a call gives numbers of single tokens, and no method of its role samples tokens."""
    signature = signature_of(node)
    methods = [role_signature(kind, method) for method in registered_methods(kind)]
    samples = any(
        is_token_column(spec) and len(spec.dims) > 1 for method in methods for spec in _columns(method.returns)
    )
    return not samples and signature is not None and bool(list(_numbers(signature.returns)))


def _targets(program: Program, values: Node, kind: type, training: str) -> list[tuple[str, Node]]:
    """The numbers that the training method reads and that are made of the values; none if it would lack a number."""
    method, values_signature = role_signature(kind, training), signature_of(values)
    read_names = {name for port in method.ports for name in _numbers(port.type, port.name)}
    results = [(name, node) for node, signature in program.graph.bodies for name in _numbers(signature.returns)]
    inputs = {
        name for node in program.graph.inputs if isinstance(node.op, Input) for name in schema(node.op.record).fields
    }
    if not read_names <= {name for name, _ in results} | inputs:
        return []
    after = descendants(program.graph, [values.id]) - {values.id}
    targets = read_names - set(_numbers(values_signature.returns) if values_signature is not None else ())
    return [(name, node) for name, node in results if name in targets and node.id in after]


def _numbers(kind: PortType, name: str = "") -> Iterator[str]:
    """The names of the columns of numbers of tokens in a type; a column that is no record's has the name given."""
    if isinstance(kind, ColumnSpec):
        yield from [name] if is_float_column(kind) and len(kind.dims) > 1 else []
    elif isinstance(kind, RecordType):
        for column, spec in schema(kind.record).fields.items():
            if is_float_column(spec) and len(spec.dims) > 1:
                yield column


def _columns(kind: PortType) -> Iterator[ColumnSpec]:
    specs = schema(kind.record).fields.values() if isinstance(kind, RecordType) else [kind]
    yield from (spec for spec in specs if isinstance(spec, ColumnSpec))
