"""One dataflow under many placements: the same values everywhere, or the name of the first node that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hfdsl.deploy.deployment import Deployment
from hfdsl.errors import HfError, WiringError
from hfdsl.graph.dataflow import Dataflow
from hfdsl.graph.program import Graph, Input, Node
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.plan.optimize import Optimize
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.testing.arguments import names_of, nothing, refused, sizes_of, tolerance_of
from hfdsl.testing.compare import Difference, first_difference
from hfdsl.testing.node_values import RESULT, NodeValues, eager_steps, noting_place, observed, steps
from hfdsl.types.batches import Batch, schema
from hfdsl.types.dims import Dim
from hfdsl.types.similar_names import closest

__tracebackhide__ = True  # pytest shows the user's own lines

Run: TypeAlias = Literal["eager", "local", "ray"]
EVERYWHERE: tuple[Run, ...] = ("eager", "local", "ray")

Tolerance: TypeAlias = float | Mapping[str, float] | None
"""The tolerance of all nodes, or by the label of a node; other nodes are compared bit for bit."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first value that two runs of a dataflow do not have in common; ``node`` is empty if it is the result."""

    dataflow: str
    step: int
    node: str
    span: Any
    difference: Difference
    where: tuple[str, str]

    def __str__(self) -> str:
        first, second = self.where
        width = max(map(len, self.where))
        place = f"'{self.node}' ({self.span})" if self.node else "the result, though all nodes agree"
        return (
            f"'{self.dataflow}' has other values in step {self.step}, first in {place}: {self.difference}\n"
            f"  {first:{width}}  {self.difference.expected}\n"
            f"  {second:{width}}  {self.difference.actual}"
        )


class DivergedError(AssertionError):
    """Two placements gave other values; ``divergence`` says where first."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(str(divergence))
        self.divergence = divergence


def check_placements(
    dataflow: Dataflow[..., Any],
    deployments: Sequence[Deployment] | Mapping[str, Deployment],
    *batches: Batch | tuple[Batch, ...],
    tolerance: Tolerance = None,
    on: Run | Sequence[Run] = EVERYWHERE,
    dims: Mapping[Any, int] | None = None,
    optimize: Optimize | None = None,
) -> None:
    """Run a dataflow on these batches in every deployment, and compare the values of all nodes.

    A batch is the input of one step, a tuple where the dataflow takes several records. ``"eager"`` runs it once, as
    plain Python, with the roles of the first deployment; ``"local"`` and ``"ray"`` run it under each deployment. The
    first run is what the others are compared with: bit for bit, or within a ``tolerance``, as ``1e-6`` or
    ``{"actor.update": 1e-6}`` (see ``first_difference``). Lists with a value per rank are compared where there are as
    many ranks.

    Raises:
        DivergedError: an ``AssertionError`` that names the first node in program order that differs, with its column
            and row and both placements.
        CheckError: where the check finds something under one of the deployments.
        WiringError: HF202 for a tolerance of an unknown call, HF206 for batches that are not the inputs.
        DefinitionError: HF921 for an argument of another kind, HF922 for one run, no batch, or values that no two
            placements have in common.

    >>> import hfdsl as hf
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     text: hf.Obj[str, B]
    >>> class Role(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def numbered(self, rows: Rows) -> Rows:  # each rank counts from 0
    ...         return Rows(text=[f"{i} {text}" for i, text in enumerate(rows.text.objects)])
    >>> @hf.dataflow
    ... def program(rows: Rows, role: Role) -> Rows:
    ...     return role.numbered(rows)
    >>> two = hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2], use_gpu=False)))
    >>> check_placements(program, {"two": two}, Rows(text=["a", "b"]), on=["eager", "local"])
    Traceback (most recent call last):
    ...
    hfdsl.testing.placements.DivergedError: 'program' has other values in step 0, first in 'role.numbered' (...): ...
      eager         '1 b'
      local, 'two'  '0 b'
    """
    if not isinstance(dataflow, Dataflow):
        raise refused("check_placements", "dataflow", "a function under @hf.dataflow", dataflow)
    graph = dataflow.trace()
    wanted = names_of("check_placements", "on=", on, EVERYWHERE, "backend")
    runs: list[Run] = [run for name in wanted for run in EVERYWHERE if run == name]
    named = _by_name(deployments)
    inputs = [_inputs_of(graph, batch) for batch in batches]
    if not inputs:
        raise nothing("check_placements", "it has no batch")
    tolerance = _tolerance(graph, tolerance)
    sizes = _common_sizes(graph, inputs) if dims is None else sizes_of("check_placements", dims)
    plans = {name: dataflow.compile(deployment, sizes, optimize=optimize) for name, deployment in named.items()}
    places: list[tuple[Run, str]] = [
        (run, name) for run in runs for name in list(named)[: 1 if run == "eager" else None]
    ]
    if len(places) < 2:
        raise nothing("check_placements", f"it is one run; give more deployments, or more of {EVERYWHERE} in on=")
    compared = _Compared(graph, tolerance)
    with _cluster("ray" in runs):
        for run, name in places:
            where = "eager" if run == "eager" else f"{run}, {name!r}"
            values = eager_steps(dataflow, named[name], inputs) if run == "eager" else _steps(run, plans[name], inputs)
            compared.add(where, noting_place(where, values))
    if not compared.count:
        raise nothing("check_placements", "all values are lists, and no two placements have as many ranks")


def _by_name(deployments: Sequence[Deployment] | Mapping[str, Deployment]) -> dict[str, Deployment]:
    takes = "them in a list or by name"
    if isinstance(deployments, Deployment):
        raise refused("check_placements", "deployments", f"{takes}, as in [deployment]", deployments)
    if not isinstance(deployments, (Mapping, list, tuple)):
        raise refused("check_placements", "deployments", takes, deployments)
    for deployment in deployments.values() if isinstance(deployments, Mapping) else deployments:
        if not isinstance(deployment, Deployment):
            raise refused("check_placements", "deployments", f"{takes}, each an hf.Deployment", deployment)
    if not deployments:
        raise nothing("check_placements", "it has no deployment")
    return dict(deployments) if isinstance(deployments, Mapping) else _numbered(deployments)


def _inputs_of(graph: Graph, batch: Batch | tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The inputs of a step: a record for each input of the dataflow."""
    inputs = batch if isinstance(batch, tuple) else (batch,)
    records = [node.op.record for node in graph.inputs if isinstance(node.op, Input)]
    if len(inputs) != len(records) or not all(map(isinstance, inputs, records)):
        got = ", ".join(type(record).__name__ for record in inputs)
        takes = ", ".join(record.__name__ for record in records)
        how = "" if len(records) == 1 else ": give one tuple of them for each step"
        raise WiringError("HF206", f"a step of '{graph.name}' takes {takes}, got {got}{how}")
    return inputs


def _tolerance(graph: Graph, tolerance: object) -> Tolerance:
    """The tolerance, by labels of existing calls."""
    if not isinstance(tolerance, Mapping):
        return None if tolerance is None else tolerance_of("check_placements", tolerance)
    labels = dict.fromkeys(label for node in graph.calls for label in (node.label, _label(graph, node)))
    for label in tolerance:
        if label not in labels:
            raise WiringError("HF202", f"'{graph.name}' has no call '{label}'; {closest(str(label), list(labels))}")
    return {label: tolerance_of("check_placements", bound) for label, bound in tolerance.items()}


def _label(graph: Graph, node: Node) -> str:
    """As a plan has it: calls of one method are numbered."""
    same_calls = [call.id for call in graph.calls if call.label == node.label]
    return f"{node.label}#{same_calls.index(node.id) + 1}" if len(same_calls) > 1 else node.label


def _numbered(deployments: Sequence[Deployment]) -> dict[str, Deployment]:
    def meshes_in_words(deployment: Deployment) -> str:
        return ", ".join(f"{name} {place.mesh}" for name, place in deployment.placements.items())

    return {f"deployments[{i}]: {meshes_in_words(deployment)}": deployment for i, deployment in enumerate(deployments)}


def _steps(
    run: Literal["local", "ray"], plan: CompiledPlan, inputs: Sequence[tuple[Batch, ...]]
) -> Iterator[NodeValues]:
    try:
        with observed(plan).launch(run) as running:
            yield from steps(running, inputs)
    except HfError as error:
        raise error.with_traceback(None) from None  # show the body, not the run around it


class _Compared:
    """The values of the first run, with which all others are compared."""

    def __init__(self, graph: Graph, tolerance: Tolerance) -> None:
        self._graph, self._tolerance, self.count = graph, tolerance, 0
        self._first: list[tuple[str, NodeValues]] = []
        self._lists: dict[tuple[int, int, int], tuple[str, Any]] = {}

    def add(self, where: str, values: Iterator[NodeValues]) -> None:
        """Compare the steps of another run.

        Raises:
            DivergedError: for the first value that differs.
        """
        for number, step in enumerate(values):
            if number == len(self._first):
                self._first.append((where, step))
            for node, value in step.values.items():
                reference_where, reference = self._counterpart(number, node, value, where)
                self.count += reference is not value
                difference = first_difference(reference, value, self._within(node))
                if difference is not None:
                    label, span = ("", None) if node == RESULT else (self._label(node), self._graph.nodes[node].span)
                    raise DivergedError(
                        Divergence(
                            dataflow=self._graph.name,
                            step=number,
                            node=label,
                            span=span,
                            difference=difference,
                            where=(reference_where, where),
                        )
                    )

    def _counterpart(self, step: int, node: int, value: Any, where: str) -> tuple[str, Any]:
        """The value to compare with: the first run's or, for a list, that of the first run with as many ranks."""
        if isinstance(value, (PerRank, PerStage)):
            return self._lists.setdefault((step, node, len(value)), (where, value))
        reference_where, first = self._first[step]
        reference = first.values[node]
        return (reference_where, reference) if node != RESULT or not _holds_lists(reference) else (where, value)

    def _label(self, node: int) -> str:
        return _label(self._graph, self._graph.nodes[node])

    def _within(self, node: int) -> float | None:
        if not isinstance(self._tolerance, Mapping):
            return self._tolerance
        if node == RESULT:
            return max(self._tolerance.values(), default=None)
        return self._tolerance.get(self._label(node), self._tolerance.get(self._graph.nodes[node].label))


def _holds_lists(value: Any) -> bool:
    if isinstance(value, (tuple, list)) and not isinstance(value, (PerRank, PerStage)):
        return any(map(_holds_lists, value))
    if isinstance(value, dict):
        return any(map(_holds_lists, value.values()))
    return isinstance(value, (PerRank, PerStage))


def _common_sizes(graph: Graph, inputs: Sequence[tuple[Batch, ...]]) -> dict[type[Dim], int]:
    """The sizes that dims have in every step; a dim with several sizes is left open."""
    lengths: dict[type[Dim], set[int]] = {}
    records = [node.op.record for node in graph.inputs if isinstance(node.op, Input)]
    for record, batch in ((r, b) for batches in inputs for r, b in zip(records, batches, strict=False)):
        for name, spec in schema(record).fields.items():
            for i, (dim, length) in enumerate(zip(spec.dims, _shape(batch, name), strict=False)):
                bound = getattr(spec, "ragged", False) and i == 1
                if isinstance(dim.bare, type) and not bound:
                    lengths.setdefault(dim.bare, set()).add(length)
    return {dim: sizes.pop() for dim, sizes in lengths.items() if len(sizes) == 1}


def _shape(batch: Batch, name: str) -> tuple[int, ...]:
    raw = batch.__hf_columns__.get(name)
    if raw is None:
        return ()
    return tuple(raw.shape) if hasattr(raw, "shape") else (len(raw),)


@contextmanager
def _cluster(needed: bool) -> Iterator[None]:
    """One Ray cluster for all runs, unless there is one."""
    if not needed:
        yield
        return
    import ray

    from hfdsl.single_controller.interrupts import delayed_interrupts

    if ray.is_initialized():
        yield
        return
    with delayed_interrupts():
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
