"""The scene of a plan's drawing: pools as lanes, calls as boxes in levels, values as links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hfdsl.deploy.deployment import Deployment
from hfdsl.deploy.pools import ResourcePool
from hfdsl.graph.columns import columns_of, origins
from hfdsl.graph.networks import leaves
from hfdsl.graph.program import Ref
from hfdsl.graph.signatures import VALUE
from hfdsl.plan.plan import DRIVER, Edge, Plan, Step
from hfdsl.plan.show import during_text, queue_texts
from hfdsl.plan.versions import tokens_have_versions, versions_text
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.numbers import byte_amount

Kind: TypeAlias = Literal["input", "call", "function", "result"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A pool, or the driver: its title, and lines about it."""

    key: str
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SceneBox:
    """An input, a call or a result, in the lane of its pool; boxes of one level may run at the same time.

    ``calls`` and ``until`` are set where equal calls of several levels share a box: their names, and the last level.
    ``stage`` is set in a program with queues, whose stages run independently.
    """

    key: str
    kind: Kind
    lane: str
    role: str
    level: int
    title: str
    lines: tuple[str, ...]
    calls: tuple[str, ...] = ()
    until: int | None = None
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A value on its way: which columns of it, and how many bytes by which transport ('' where that is not known).

    ``amount`` also states the versions of a state that the value may have, if it passes a queue.
    """

    source: str
    target: str
    columns: tuple[str, ...]
    amount: str
    transport: str

    @property
    def in_place(self) -> bool:
        """Whether it is read in the process that made it."""
        return self.transport == "in process"

    @property
    def note(self) -> str:
        """Bytes and transport."""
        return " · ".join(filter(None, (self.amount, self.transport)))


@dataclass(frozen=True, slots=True)
class Scene:
    """All of it; level 0 has the inputs, the last one the results. ``queues`` describes each queue of the program."""

    title: str
    subtitle: str
    lanes: tuple[Lane, ...]
    boxes: tuple[SceneBox, ...]
    links: tuple[Link, ...]
    levels: int
    queues: tuple[str, ...] = ()


def scene(plan: Plan) -> Scene:
    """The scene of a plan."""
    last = 1 + max((step.level for step in plan.steps), default=0)
    inputs = [
        SceneBox(
            key=f"n{n.id}",
            kind="input",
            lane=DRIVER,
            role=n.label,
            level=0,
            title=n.label,
            lines=_row_counts(plan, n.id),
        )
        for n in plan.graph.inputs
    ]
    calls = [_call(plan, step) for step in plan.steps]
    links = [_link(plan, edge) for edge in plan.edges]
    results: list[SceneBox] = []
    for key, (name, value) in _results(plan).items():
        kind = () if value.column else _row_counts(plan, value.node)
        results.append(
            SceneBox(key=key, kind="result", lane=DRIVER, role=key, level=last, title=name or "result", lines=kind)
        )
        links += _result_links(plan, value, key)
    sizes = "  ".join(f"{dim.__name__}={number}" for dim, number in plan.dims.items())
    boxes = (*inputs, *calls, *results)
    return Scene(
        title=plan.name,
        subtitle=sizes,
        lanes=_lanes(plan, boxes),
        boxes=boxes,
        links=tuple(links),
        levels=last + 1,
        queues=tuple(f"queue {text}" for text in queue_texts(plan)),
    )


def folded(scene: Scene) -> Scene:
    """The scene with one box for calls of one method that read the same columns, such as updates by mini-batches.

    The results of these calls share a box too.
    """
    return _fold(_fold(scene, "call", "#"), "result", "[")


def _fold(scene: Scene, kind: Kind, mark: str) -> Scene:
    """One box for boxes of a kind whose titles are equal up to a mark, and which read the same."""
    groups: dict[tuple[object, ...], list[SceneBox]] = {}
    for box in scene.boxes:
        reads = frozenset((link.source, link.columns, link.amount) for link in scene.links if link.target == box.key)
        groups.setdefault((box.kind, box.lane, box.title.partition(mark)[0], box.lines, reads), []).append(box)
    home = {
        box.key: group[0].key
        for group in groups.values()
        if group[0].kind == kind and _may_fold(scene, group)
        for box in group
    }
    boxes = []
    for group in groups.values():
        if group[0].key in home:
            title = f"{group[0].title.partition(mark)[0]} ×{len(group)}"
            calls, levels = tuple(box.title for box in group), [box.level for box in group]
            boxes.append(replace(group[0], title=title, calls=calls, level=min(levels), until=max(levels)))
        else:
            boxes += group
    links: dict[tuple[object, ...], list[Link]] = {}
    for link in scene.links:
        ends = home.get(link.source, link.source), home.get(link.target, link.target)
        links.setdefault((*ends, link.columns), []).append(replace(link, source=ends[0], target=ends[1]))
    return replace(scene, boxes=tuple(boxes), links=tuple(map(_together, links.values())))


def _may_fold(scene: Scene, group: list[SceneBox]) -> bool:
    """Whether calls may share a box: all that they read is made before, and all that reads from them comes after."""
    keys, level_of = {box.key for box in group}, {box.key: box.level for box in scene.boxes}
    first, last = min(box.level for box in group), max(box.level for box in group)
    return (
        len(group) > 1
        and all(level_of[link.source] < first for link in scene.links if link.target in keys)
        and all(level_of[link.target] > last for link in scene.links if link.source in keys)
    )


def _together(links: list[Link]) -> Link:
    amount = f"{len(links)} × {links[0].amount}" if len(links) > 1 and links[0].amount else links[0].amount
    return replace(links[0], amount=amount, transport=" / ".join(dict.fromkeys(link.transport for link in links)))


def results_by_box(plan: Plan) -> dict[str, Ref]:
    """The results of a plan, by the keys of their boxes."""
    return {key: value for key, (_, value) in _results(plan).items()}


def _results(plan: Plan) -> dict[str, tuple[str, Ref]]:
    results = [(name, value) for name, value in leaves(plan.graph.output, "") if isinstance(value, Ref)]
    return {f"out{i}": result for i, result in enumerate(results)}


def mesh_text(mesh: Mesh) -> str:
    """The axes of a mesh that are longer than 1.

    >>> mesh_text(Mesh(dp=4, tp=2)), mesh_text(Mesh())
    ('dp=4 tp=2', '1 rank')
    """
    axes = {"pp": mesh.pp, "dp": mesh.dp, "tp": mesh.tp, "gen_pp": mesh.gen_pp, "gen_tp": mesh.gen_tp}
    return " ".join(f"{n}={size}" for n, size in axes.items() if size and (size > 1 or n.startswith("gen"))) or "1 rank"


def _lanes(plan: Plan, boxes: tuple[SceneBox, ...]) -> tuple[Lane, ...]:
    pools = [_pool_lane(plan.deployment, pool) for pool in plan.deployment.pools]
    used = {box.lane for box in boxes}
    driver = Lane(DRIVER, "driver", ("input and results",))
    return tuple(lane for lane in (driver, *pools) if lane.key in used)


def _pool_lane(deployment: Deployment, pool: ResourcePool) -> Lane:
    nodes, unit = len(pool.processes), "GPU" if pool.use_gpu else "CPU process"
    plural = "" if pool.world_size == 1 else "es" if unit.endswith("s") else "s"
    size = f"{pool.world_size} {unit}{plural}{f' on {nodes} nodes' if nodes > 1 else ''}"
    roles = [
        f"{name}: {placement.role.__name__}, {mesh_text(placement.mesh)}"
        for name, placement in deployment.placements.items()
        if placement.pool == pool
    ]
    return Lane(f"pool:{pool.name}", pool.name, (size, *roles))


def _call(plan: Plan, step: Step) -> SceneBox:
    group = next((group for group in plan.groups if group.name == step.group), None)
    lane = f"pool:{group.pool.name}" if group else DRIVER
    key = f"n{step.node}"
    stage = plan.split.of[step.node] if plan.split.queues else None
    if step.role is None:
        parts = f"{step.chunks} part{'' if step.chunks == 1 else 's'}"
        return SceneBox(
            key=key,
            kind="function",
            lane=lane,
            role=step.label,
            level=step.level,
            title=step.label,
            lines=(f"function · {parts}",),
            stage=stage,
        )
    name = step.signature.registration.name if step.signature.registration else ""
    name += during_text(plan, step)
    mesh = mesh_text(plan.mesh(step.role)) if len(step.ranks) > 1 else "rank 0"
    return SceneBox(
        key=key,
        kind="call",
        lane=lane,
        role=step.role,
        level=step.level,
        title=step.label,
        lines=(f"{name} · {mesh}",),
        stage=stage,
    )


def _row_counts(plan: Plan, node: int) -> tuple[str, ...]:
    kind = str(plan.node(node).result)
    rows = getattr(plan.inference.values[node], "rows", None)
    return (f"{kind} · {rows} rows" if rows is not None else kind,)


def _link(plan: Plan, edge: Edge) -> Link:
    late = plan.read_lags.get((edge.source, edge.target))
    versions = versions_text(late, tokens_have_versions(plan.graph, edge.source)) if late else ""
    amount = " · ".join(filter(None, (_amount(edge.bytes), versions)))
    return Link(f"n{edge.source}", f"n{edge.target}", _column_names(edge.columns), amount, edge.transport)


def _column_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(column for column in columns if column != VALUE)


def _amount(count: int | None) -> str:
    """Columns of Python objects and numbers count as no bytes, and are drawn without any."""
    return "unknown size" if count is None else byte_amount(count) if count else ""


def _result_links(plan: Plan, value: Ref, key: str) -> Iterator[Link]:
    """The links from the nodes that produce a result to its box."""
    columns: dict[int, list[str]] = {}
    for column in columns_of(plan.node(value.node).result, value):
        for node, stored in origins(plan.graph, value.node, column):
            columns.setdefault(node, []).append(stored)
    for node, names in columns.items():
        yield Link(f"n{node}", key, _column_names(tuple(names)), "", "to caller")
