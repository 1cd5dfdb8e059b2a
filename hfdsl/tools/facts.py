"""Plain facts about a program, which ``hfdsl diff`` compares.

A fact is a text under a subject and an aspect: of the subject ``role actor`` the aspect ``mesh`` is ``Mesh(dp=4)``.
Calls have their names and numbers, ``actor.update``, ``actor.update #2``; what they read is followed back through
operations that no process carries out, so ``repeat(prompts, times=4)`` is what a port reads, and no subject of its own.

This module also runs as a process, one for each of two targets: versions of a program have modules of the same names.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from hfdsl.check.findings import Finding
from hfdsl.check.report import CheckError
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.experiment import Experiment
from hfdsl.errors import HfError
from hfdsl.graph.columns import columns_of, result_type
from hfdsl.graph.networks import leaves
from hfdsl.graph.program import Constant, Derived, Graph, Input, MiniBatch, Node, Operand, Pack, Ref
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType, Signature
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.conditions import provisions_of, requirements_of
from hfdsl.tools.command_target import CommandTarget
from hfdsl.tools.importing import UsageError
from hfdsl.tools.target import load
from hfdsl.types.batches import Batch, schema
from hfdsl.types.numbers import byte_amount

NO_COLUMN = "(constant)"
"""In the place of a column, of a plain value: it is the same in every row."""


class Fact(NamedTuple):
    """A text about an aspect of a subject, such as ``mesh`` of ``role actor``."""

    subject: str
    aspect: str
    text: str


PARTS = ("program", "deployment", "plan")


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts about a program, by the ``PARTS`` that it has, each in its order.

    A dataflow alone has no deployment, and one that a check refuses no plan. ``summaries`` say in a few words what a
    subject is, for one that the other program does not have.
    """

    parts: Mapping[str, Sequence[Fact]]
    summaries: Mapping[str, str] = field(default_factory=dict)


def facts_of(target: CommandTarget) -> Facts:
    """The facts about a target, and about the dataflows that run beside it."""
    program, deployment, plan = _Described(), _Described(), _Described()
    for part in (target, *target.beside):
        program.of_graph(part.dataflow.trace(), f"{part.dataflow.body.__name__}: " if part is not target else "")
    parts = [program]
    if target.experiment is not None:
        deployment.of_places(target, target.experiment)
        parts.append(deployment)
        try:
            plans = target.plans("diff")
        except CheckError as error:
            deployment.of_findings(error.report.findings)
        else:
            deployment.of_findings(finding for compiled in plans for finding in compiled.report.findings)
            for i, compiled in enumerate(plans):
                plan.of_plan(compiled, f"{compiled.name}: " if i else "")
            parts.append(plan)
    summaries = {subject: text for part in parts for subject, text in part.summaries.items()}
    return Facts({name: list(part.facts) for name, part in zip(PARTS, parts, strict=False)}, summaries)


class _Described:
    """Collects facts; each subject and aspect once."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], str] = {}
        self.summaries: dict[str, str] = {}

    @property
    def facts(self) -> Iterator[Fact]:
        return (Fact(subject, aspect, text) for (subject, aspect), text in self.known.items())

    def add(self, subject: str, aspect: str, text: str) -> None:
        self.known.setdefault((subject, aspect), text)

    # -- the dataflow

    def of_graph(self, graph: Graph, part: str) -> None:
        """Add inputs, roles, calls with their reads, results, and the records of all these."""
        names, records = call_names(graph), dict[type[Batch], None]()
        for node in graph.inputs:
            self.add(f"{part}input {names[node.id]}", "record", str(node.result))
        for name, role in graph.roles.items():
            self.add(f"{part}role {name}", "annotation", role.__name__)
        for node, signature in graph.bodies:
            self._of_call(f"{part}call {names[node.id]}", graph, node, signature, names)
        for place, value in leaves(graph.output, ""):
            subject = f"{part}{place if place.startswith('result') else f'result {place}'.rstrip()}"
            kind = result_type(graph, value) if isinstance(value, Ref) else None
            for column in columns_of(kind, value) if kind is not None and isinstance(value, Ref) else ():
                self.add(subject, f"column {column}", expression(graph, names, value, column))
        for kind in (port.type for _, signature in graph.bodies for port in signature.ports):
            records |= _records(kind)
        for node in graph.nodes:
            records |= _records(node.result)
        for record in records:
            for column, spec in schema(record).fields.items():
                self.add(f"record {record.__name__}", f"column {column}", str(spec))
            self.summaries[f"record {record.__name__}"] = ", ".join(schema(record).fields)

    def _of_call(self, subject: str, graph: Graph, node: Node, signature: Signature, names: Mapping[int, str]) -> None:
        registration = signature.registration
        declared = {"returns": str(signature.result), "rows": str(signature.rows)}
        if registration is not None:
            declared |= {"protocol": registration.name, "execute": registration.execute_mode.name}
            options = {name: getattr(registration, name) for name in ("blocking", "pad", "leaves", "balance")}
            declared |= {name: stable(value) for name, value in options.items() if value not in (None, ())}
        conditions = map(str, (*requirements_of(signature.body), *provisions_of(signature.body)))
        self.summaries[subject] = f"{declared.get('protocol', 'function')}, returns {declared['returns']}"
        for aspect, text in declared.items():
            self.add(subject, aspect, text)
        for condition in conditions:
            self.add(subject, f"condition {condition}", "declared")
        for port, operand in node.arguments:
            if isinstance(operand, Constant):
                for aspect, text in _settings(port, operand.value):
                    self.add(subject, aspect, text)
                continue
            formal = signature.port(port)
            columns = columns_of(formal.type, operand) if formal is not None and isinstance(operand, Ref) else ()
            for column in columns:
                self.add(subject, f"reads {port}.{column}", expression(graph, names, operand, column))

    # -- the deployment

    def of_places(self, target: CommandTarget, experiment: Experiment) -> None:
        """Add the placements of roles, the pools, and the sizes of dims."""
        for name, placement in experiment.deployment.placements.items():
            subject = f"role {name}"
            self.summaries[subject] = f"{placement.role.__name__} on {placement.pool} {placement.mesh}"
            for aspect, value in _place(placement):
                self.add(subject, aspect, value)
        for pool in experiment.deployment.pools:
            subject, parent = f"pool {pool.name}", pool.part_of
            self.summaries[subject] = str(pool)
            self.add(subject, "processes", f"{list(pool.processes)} {'GPUs' if pool.use_gpu else 'CPU processes'}")
            if parent is not None:
                self.add(subject, "part of", f"{parent[0].name} from slot {parent[1]}")
            if pool.parts:
                self.add(subject, "merged from", ", ".join(part.name for part in pool.parts))
        for part in (target, *target.beside):
            of = f" of {part.dataflow.body.__name__}" if part is not target else ""
            for dim, size in part.dims.items():
                self.add(f"size {dim.__name__}{of}", "", stable(size))
        if target.cluster is not None:
            self.add("cluster", "nodes", stable(target.cluster))

    def of_findings(self, findings: Iterable[Finding]) -> None:
        """Add the findings of the check."""
        for finding in findings:
            self.add(f"{finding.severity.value} {finding.code}", finding.message, "found")
            self.summaries.setdefault(f"{finding.severity.value} {finding.code}", finding.message)

    def of_plan(self, plan: CompiledPlan, part: str) -> None:
        """Add the transfers of each edge and in total, and the peak memory of each process group."""
        names, moved = call_names(plan.graph), 0
        for edge in plan.edges:
            subject = f"{part}edge {names[edge.source]} -> {names[edge.target]}"
            amount = "unknown size" if edge.bytes is None else byte_amount(edge.bytes)
            among = "" if edge.moved in (None, 0, edge.bytes) else f", {byte_amount(edge.moved or 0)} of it moved"
            self.add(subject, "", f"{amount} {edge.transport}{among}")
            if not isinstance(plan.node(edge.source).op, Input):
                moved += edge.moved or 0
        self.add(f"{part}plan", "bytes between processes", byte_amount(moved))
        pools = {group.name: group.pool.name for group in plan.groups}
        for peak in plan.peaks:
            self.add(f"{part}plan", f"most in a process of {pools[peak.process[0]]}", byte_amount(peak.bytes))


def _place(placement: Placement[Any]) -> Iterator[tuple[str, str]]:
    yield "class", placement.role.__name__
    yield "pool", placement.pool.name
    yield "mesh", str(placement.mesh)
    options = {"colocate": placement.colocate, "gpu memory": placement.gpu_memory, "transport": placement.transport}
    yield from ((name, stable(value)) for name, value in {**options, "offload": placement.offload}.items())
    for name, value in _arguments(placement).items():
        yield from _settings(name, value)


def _arguments(placement: Placement[Any]) -> Mapping[str, Any]:
    """The arguments of a role's constructor by name."""
    try:
        return inspect.signature(placement.role).bind_partial(*placement.args, **placement.kwargs).arguments
    except (TypeError, ValueError):  # which the check reports
        return {**{str(i): value for i, value in enumerate(placement.args)}, **placement.kwargs}


def _settings(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value of a configuration, field by field: ``config.optimizer.lr``."""
    if is_dataclass(value) and not isinstance(value, type):
        yield f"argument {name}", type(value).__name__
        for entry in fields(value):
            yield from _settings(f"{name}.{entry.name}", getattr(value, entry.name))
    else:
        yield f"argument {name}", stable(value)


def _records(kind: PortType) -> dict[type[Batch], None]:
    inner = kind.inner if isinstance(kind, ListType) else kind
    return {inner.record: None} if isinstance(inner, RecordType) else {}


# -- names and values


def call_names(graph: Graph) -> dict[int, str]:
    """The names of inputs and calls; of calls with one name, the second and later ones have numbers."""
    seen, names = Counter[str](), dict[int, str]()
    for node in (*graph.inputs, *graph.calls):
        seen[node.label] += 1
        names[node.id] = f"{node.label} #{seen[node.label]}" if seen[node.label] > 1 else node.label
    return names


def expression(graph: Graph, names: Mapping[int, str], operand: Operand, column: str) -> str:
    """The origin of a column: ``actor.generate``, or with the operations on the way, ``repeat(prompts, times=4)``.

    A column that has another name there is named.
    """
    text, stored = _origin(graph, names, operand, column)
    return text if stored in (column, VALUE, NO_COLUMN) else f"{text}.{stored}"


def _origin(graph: Graph, names: Mapping[int, str], operand: Operand, column: str) -> tuple[str, str]:
    """The origin as an expression of values, and the column of the stored value."""
    if not isinstance(operand, Ref):
        return (stable(operand.value) if isinstance(operand, Constant) else "?"), NO_COLUMN
    node, column = graph.nodes[operand.node], operand.column or column
    if not isinstance(node.op, Derived):
        return names[node.id], column
    if isinstance(node.op, Pack):
        return _origin(graph, names, node.op.source(node.arguments, column), column)
    (_, batch), *others = node.arguments
    text, stored = _origin(graph, names, batch, column)
    if stored == NO_COLUMN:
        return text, stored
    if isinstance(node.op, MiniBatch):
        return f"minibatches({text}, {node.op.count})[{node.op.index}]", stored
    numbers = [(entry.name, getattr(node.op, entry.name)) for entry in fields(node.op)]
    written = [f"{name}={stable(value)}" for name, value in numbers if value is not None]
    written += [f"{name}={expression(graph, names, argument, VALUE)}" for name, argument in others]
    return f"{type(node.op).__name__.lower()}({', '.join([text, *written])})", stored


def stable(value: Any) -> str:
    """A value as text, without parts that differ between processes.

    >>> stable(int), stable([object()])
    ('int', '[<object object>]')
    """
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__qualname__", value))
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


# -- the other process


def main() -> None:
    """Answer with the facts about a target on stdout; what the program itself prints goes to stderr."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    (target, *sizes), cluster = json.loads(sys.argv[1]), sys.argv[2]
    try:
        facts = facts_of(load(target, sizes, cluster or None))
    except UsageError as error:
        json.dump({"failure": str(error)}, answer)
    except HfError as error:
        json.dump({"failure": f"{target}: {error.code}: {error.message}"}, answer)
    else:
        json.dump({"parts": facts.parts, "summaries": facts.summaries}, answer)
    answer.close()


if __name__ == "__main__":
    main()
