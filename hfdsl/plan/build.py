"""Compilation: from a checked program to its plan.

A worked example, 320 rows in groups of 5. The actor has ``Mesh(dp=4, tp=2)``, the reward two ranks with ``DP_PROTO``::

    call               runs on             chunks  its result is on
    actor.generate     actor ranks 0 to 7  4       the actor ranks with tp = 0: 0, 2, 4, 6
    reward.score       reward ranks 0, 1   2       both
    group_advantages   reward ranks 0, 1   2       both, since 10 divides the 320 rows: each chunk has whole groups
    actor.update       actor ranks 0 to 7  4       as generate

A function goes where most of its input is. ``repeat``, mini-batches and records of columns are no steps: readers look
through them (``reading.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.offloads import SharedGpus
from hfdsl.check.program import Program
from hfdsl.check.report import CheckError, Report
from hfdsl.check.rules.dataflow.presence import provided
from hfdsl.check.run import build_context, build_report
from hfdsl.check.sizes.demands import proportional
from hfdsl.check.sizes.multiple_sizes import refuse_multiple_sizes
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, ProcessGroup, process_groups
from hfdsl.deploy.value_bytes import has_no_rows, value_bytes
from hfdsl.errors import WiringError
from hfdsl.graph.columns import columns_read, origins, row_bytes
from hfdsl.graph.first_syncs import first_syncs
from hfdsl.graph.infer import infer
from hfdsl.graph.program import FunctionCall, Graph, Node, Ref, RoleCall
from hfdsl.graph.row_weights import row_weights_read
from hfdsl.graph.signatures import VALUE, ListType, PortType, RecordType, Signature
from hfdsl.graph.stages import Stage, split, stages
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.edges import edges
from hfdsl.plan.optimize import Optimize
from hfdsl.plan.overlaps import with_levels
from hfdsl.plan.plan import DRIVER, Balance, Plan, Step, ValueLayout
from hfdsl.plan.queues import decides
from hfdsl.plan.scheduling import scheduled
from hfdsl.plan.sizes import rows_in
from hfdsl.protocols.dispatch import Execute
from hfdsl.types.batches import schema
from hfdsl.types.columns import ColumnSpec, MetricSpec, ObjSpec
from hfdsl.types.dims import Answer, Dim, Sizes
from hfdsl.types.numbers import brief
from hfdsl.types.rows import WholeRows


def compile_dataflow(
    body: Callable[..., Any],
    deployment: Deployment,
    dims: Mapping[type[Dim], Sizes],
    cluster: Cluster | None = None,
    optimize: Optimize | None = None,
) -> CompiledPlan:
    """The plan of a dataflow.

    Raises:
        CheckError: where the check finds errors.
        DefinitionError: where a declaration that the program names has no meaning.
        WiringError: HF206 if ``optimize`` is not an ``Optimize``.
    """
    start = perf_counter()
    if optimize is not None and not isinstance(optimize, Optimize):
        raise WiringError("HF206", f"compile: optimize= takes an hf.Optimize, got {brief(optimize)}")
    switches = optimize or Optimize()
    context = replace(build_context(body, deployment, dims, cluster), offload=switches.offload)
    several = context.alternatives
    report = (
        Report(context.program.graph.name, (refuse_multiple_sizes(context),))
        if several
        else build_report(context, start)
    )
    if not report.ok:
        raise CheckError(report)
    return plan_of(context, report, switches)


def plan_of(context: Context, report: Report, switches: Optimize) -> CompiledPlan:
    """The plan of a checked program that is placed."""
    plan = _plan(context, report, switches)
    if not plan.split.queues:
        return plan
    if decides(plan):
        stage_plans = compile_stages(plan)
        balanced = {
            stage.nodes[step.node] for stage, of_stage in stage_plans for step in of_stage.steps if step.balance
        }
        steps = (step if step.node in balanced else replace(step, balance=None) for step in plan.steps)
        plan = _with_levels_and_edges(replace(plan, steps=tuple(steps), stage_plans=stage_plans))
    return replace(plan, first_syncs=_first_syncs(plan))


def with_graph(plan: Plan, graph: Graph) -> CompiledPlan:
    """The plan of another ``graph``, with the same deployment, sizes and switches.

    Raises:
        WiringError: HF742 if a queue is dynamic, and a value goes around one.
    """
    return plan_of(context_of(plan, graph), plan.report, plan.optimize)


def compile_stages(plan: Plan) -> tuple[tuple[Stage, CompiledPlan], ...]:
    """The stages of a compiled program, each with its own plan on the same processes.

    No process has all rows of a queue, so these do not balance calls. Where weights arrive in flight, rows are at their
    ranks before any call has ended, so no calls of the stage in front are balanced either.

    Raises:
        WiringError: HF742 if a value goes around a queue.
    """
    compiled = []
    in_flight = any(plan.loads_in_flight(step) for step in plan.steps)
    for stage in stages(plan.graph, plan.inference):
        queues = frozenset(node.id for node in stage.graph.inputs if node.label in stage.reads)
        optimize = replace(plan.optimize, balance=False) if in_flight and stage.feeds else plan.optimize
        compiled.append((stage, _plan(context_of(plan, stage.graph), plan.report, optimize, queues)))
    return tuple(compiled)


def _first_syncs(plan: Plan) -> CompiledPlan | None:
    """The plan of what a stream sends before its first dispatch; None if that is nothing."""
    graph = first_syncs(plan.graph)
    return None if graph is None else _plan(context_of(plan, graph), plan.report, plan.optimize)


def context_of(plan: Plan, graph: Graph) -> Context:
    """The context of another ``graph``, with the deployment, sizes and switches of a plan."""
    program = Program(graph, infer(graph), plan.deployment)
    return replace(Context.of(program, dict(plan.dims)), offload=plan.optimize.offload)


def _plan(context: Context, report: Report, switches: Optimize, queues: frozenset[int] = frozenset()) -> CompiledPlan:
    """The plan of a program; of a stage, ``queues`` are the inputs that come from queues."""
    deployment = context.program.deployment
    if deployment is None:
        raise TypeError(context)
    groups = process_groups(deployment)
    builder = _StepBuilder(context, groups, queues)
    steps = _numbered([builder.step(node) for node in context.program.graph.calls])
    steps = _balanced(steps, context, queues) if switches.balance else steps
    stage_of = split(context.program.graph).of
    steps.sort(key=lambda step: stage_of[step.node])  # stable, so without queues nothing moves
    steps = scheduled(steps, context.program.graph, deployment, groups, switches.bucket_bytes, deltas=switches.deltas)
    layouts = builder.layouts | {step.node: step.layout for step in steps}
    gpus = SharedGpus(context)
    plan = CompiledPlan(
        graph=context.program.graph,
        inference=context.program.inference,
        deployment=deployment,
        dims=dict(context.sizes),
        groups=groups,
        steps=tuple(steps),
        edges=(),  # derived from the other fields
        layouts=layouts,
        report=report,
        presence=provided(context),
        value_bytes={
            node.id: value_bytes(node, deployment) for node in context.program.graph.nodes if has_no_rows(node.result)
        },
        optimize=switches,
        offloads=gpus.idle_periods,
        resident=tuple(resident for resident, _ in gpus.fullest),
    )
    return _with_levels_and_edges(plan)


def _with_levels_and_edges(plan: CompiledPlan) -> CompiledPlan:
    """The plan with what follows from its other fields."""
    plan = replace(plan, steps=with_levels(plan))
    return replace(plan, edges=edges(plan))


# -- steps


def _numbered(steps: list[Step]) -> list[Step]:
    """Several calls of one method get numbers: ``actor.update#1``, ``actor.update#2``."""
    total, numbers = Counter(step.label for step in steps), Counter[str]()
    numbered = []
    for step in steps:
        numbers[step.label] += 1
        label = f"{step.label}#{numbers[step.label]}" if total[step.label] > 1 else step.label
        numbered.append(replace(step, label=label))
    return numbered


class _StepBuilder:
    """Builds the steps of a program in program order; inputs in ``queues`` come from queues.

    ``layouts`` has the values so far, since a function runs where its input is.
    """

    def __init__(self, context: Context, groups: tuple[ProcessGroup, ...], queues: frozenset[int]) -> None:
        self._context, self._groups, self._queues = context, groups, queues
        self._program = context.program
        self.layouts = {node.id: ValueLayout(DRIVER, (0,)) for node in context.program.graph.inputs}

    def step(self, node: Node) -> Step:
        """The step of a call."""
        if isinstance(node.op, RoleCall):
            step = self._role_step(node, node.op)
        elif isinstance(node.op, FunctionCall):
            step = self._function_step(node, node.op)
        else:
            raise TypeError(node)
        self.layouts[node.id] = step.layout
        return step

    def _role_step(self, node: Node, op: RoleCall) -> Step:
        placement = self._program.placement(node)
        registration = op.signature.registration
        if placement is None or registration is None:
            raise TypeError(node)
        group = next(group for group in self._groups if op.role in group.roles)
        mesh, world = placement.mesh, tuple(range(placement.mesh.world_size))
        base = Step(  # of a method with a custom protocol; the others replace what differs
            node=node.id,
            label=node.label,
            group=group.name,
            role=op.role,
            signature=op.signature,
            call=op.call,
            ranks=world,
            chunks=1,
            chunk_of=(0,) * len(world),
            per_rank=False,
            arguments=node.arguments,
            layout=ValueLayout(DRIVER, (0,)),
            pad=registration.pad,
            rows_from=self._rows_from(node),
        )
        if registration.execute_mode is Execute.RANK_ZERO:
            return replace(base, ranks=(0,), chunk_of=(0,), layout=ValueLayout(group.name, (0,)))
        protocol = op.signature.protocol
        if protocol is None:
            return replace(base, custom=registration.functions)
        per_rank, holders = protocol.takes == "per_rank", protocol.collected(mesh)
        gives_list = op.signature.gives != "whole"
        # A joined value that was not split is the same on every rank that is collected: one copy of it is the value.
        is_in_parts = gives_list or protocol.splits or registration.cuts
        return replace(
            base,
            chunks=1 if per_rank else protocol.chunk_count(mesh),
            chunk_of=protocol.chunk_of(mesh),
            per_rank=per_rank,
            layout=ValueLayout(group.name, holders if is_in_parts else holders[:1], lists=gives_list),
        )

    def _function_step(self, node: Node, op: FunctionCall) -> Step:
        """A function runs where most of its input is, on as many of its holders as its rows may be split over."""
        home = self._home(node)
        holders = home.holders if self._may_split(op.signature, node, home) else home.holders[:1]
        count = len(holders)
        sources = dict.fromkeys(source for source, _ in columns_read(self._program.graph, node.id))
        return Step(
            node=node.id,
            label=node.label,
            group=home.group,
            role=None,
            signature=op.signature,
            call=op.call,
            ranks=holders,
            chunks=count,
            chunk_of=tuple(range(count)),
            per_rank=False,
            arguments=node.arguments,
            layout=ValueLayout(home.group, holders),
            rows_from=self._rows_from(node),
            follows=tuple(source for source in sources if self.layouts[source] == home),
        )

    def _may_split(self, signature: Signature, node: Node, home: ValueLayout) -> bool:
        rows, *others = self._program.argument_rows[node.id].values() or [None]
        if rows is None or isinstance(signature.rows, WholeRows) or home.lists:
            return False
        if any(not proportional(size, rows) for size in others if size is not None):
            return False  # which of their rows belong together is unknown
        if any(isinstance(port.type, ListType) for port in signature.ports) or not _has_rows_only(signature.returns):
            return False
        demands = [
            (rows, home.chunks * signature.group_size),
            *((size, home.chunks) for size in others if size is not None),
        ]
        return all(self._context.known(size).divisible_by(divisor) is Answer.PROVED for size, divisor in demands)

    def _home(self, node: Node) -> ValueLayout:
        """The group that holds most of the input; for rows from a queue, that of a role of the reading stage.

        In the processes of another stage a call would wait for what they do for later steps.
        """
        split = self._program.split
        bytes_read: dict[ValueLayout, int] = {}
        from_queue = False
        for ref, name in columns_read(self._program.graph, node.id):
            layout = self.layouts[ref]
            if split.of[ref] != split.of[node.id] or ref in self._queues:
                from_queue = True
            elif layout.group != DRIVER:
                row_size = row_bytes(self._program.graph, ref, name, self._context.sizes)
                bytes_read[layout] = bytes_read.get(layout, 0) + (row_size or 1)
        if bytes_read:
            return max(bytes_read, key=lambda layout: bytes_read[layout])
        for call in split.calls(split.of[node.id]) if from_queue else ():
            if isinstance(call.op, RoleCall):
                layout = self._role_step(call, call.op).layout
                if layout.group != DRIVER:
                    return layout
        return ValueLayout(DRIVER, (0,))

    def _rows_from(self, node: Node) -> int | None:
        for _, operand in node.arguments:
            if isinstance(operand, Ref) and rows_in(self._program.inference.values[operand.node]) is not None:
                return operand.node
        return None


def _has_rows_only(result_type: PortType) -> bool:
    """Whether the results of parts of the rows join to the whole: metrics of parts are not the metrics of all rows."""
    if isinstance(result_type, RecordType):
        return not any(isinstance(spec, MetricSpec) for spec in schema(result_type.record).fields.values())
    return isinstance(result_type, (ColumnSpec, ObjSpec))


def _balanced(steps: list[Step], context: Context, queues: frozenset[int]) -> list[Step]:
    """Steps with their row weights, unless a queue has these; steps with the same weights share a partition."""
    graph, first = context.program.graph, dict[Ref, int]()

    def balance(step: Step) -> Balance | None:
        weights = row_weights_read(graph, graph.nodes[step.node]) if step.chunks > 1 else None
        if weights is None or any(node in queues for node, _ in origins(graph, weights.node, weights.column or VALUE)):
            return None
        return Balance(first.setdefault(weights, step.node), weights)

    return [replace(step, balance=balance(step)) for step in steps]
