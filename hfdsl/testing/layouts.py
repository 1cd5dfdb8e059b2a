"""Layouts: do ranks hold the parts that their layout declares?

A worked example: of a fused weight of 8 rows, queries, keys and values, ``tp=2`` has a rank hold half of each. A role
that cuts the fused rows in the middle instead has the right sizes, and other elements::

    rows of the whole           Slices(blocks=(4, 2, 2)) on rank 0    a cut in the middle
    0 1 2 3   4 5   6 7         0 1   4   6                           0 1 2 3
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, Literal

from hfdsl.deploy.weight_syncs import SyncSide, weight_syncs
from hfdsl.errors import DefinitionError, HfWarning
from hfdsl.plan.plan import Plan
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.boxes import Box, Range, in_words, total
from hfdsl.protocols.cuts import padded_dims
from hfdsl.protocols.layouts import Layout, Parameter, Replicas, rank_boxes
from hfdsl.protocols.mesh import Mesh
from hfdsl.runtime.backend import HookedBackend, Lowering
from hfdsl.runtime.launch import launch
from hfdsl.testing.arguments import named_of, nothing, refused, several_of
from hfdsl.types.numbers import brief

__tracebackhide__ = True  # pytest shows the user's own lines


class BrokenLayoutError(AssertionError):
    """A rank holds other elements than its layout says."""


def check_layout(
    layout: Layout, mesh: Mesh, whole: Mapping[str, Any], held: Sequence[Mapping[str, Any]], *, role: str = ""
) -> None:
    """Hold a layout to the parts that ranks hold: each is the boxes of the whole that the layout says, in their order.

    ``whole`` are the full tensors by name, of torch, NumPy or nested lists, best with elements that all differ;
    ``held`` has the local tensors of each rank, in the order of ranks.

    Raises:
        BrokenLayoutError: with the first element that differs.
        ProtocolError: HF734 if the layout cannot cut a parameter.
        DefinitionError: HF921 for other arguments, HF922 if there is nothing to compare.

    >>> from hfdsl.protocols.layouts import Slices
    >>> whole = {"qkv": [0, 1, 2, 3, 4, 5, 6, 7]}
    >>> check_layout(Slices(0, blocks=(4, 2, 2)), Mesh(tp=2), whole, [{"qkv": [0, 1, 4, 6]}, {"qkv": [2, 3, 5, 7]}])
    >>> check_layout(Slices(0, blocks=(4, 2, 2)), Mesh(tp=2), whole, [{"qkv": [0, 1, 2, 3]}, {"qkv": [4, 5, 6, 7]}])
    Traceback (most recent call last):
    hfdsl.testing.layouts.BrokenLayoutError: rank 0 (pp=0 dp=0 tp=0): 'qkv'[2] is 2 instead of 4, from [4] of the whole
    """
    check = "check_layout"
    if not isinstance(layout, Layout):
        raise refused(check, "layout", "a layout, such as Slices(0)", layout)
    for parts in several_of(check, "held", "the tensors of each rank, in a list", held):
        named_of(check, "held", parts, '[{"weight": ...}] for one rank')
    if not named_of(check, "whole", whole, '{"weight": ...}'):
        raise nothing(check, "whole is empty")
    label = f"'{role}', " if role else ""
    if len(held) != mesh.world_size:
        raise BrokenLayoutError(f"{label}{mesh} has {mesh.world_size} ranks, and {len(held)} are held against it")
    for rank, parts in enumerate(held):
        where = f"{label}rank {rank} ({mesh.coordinates(rank)})"
        for name, full in whole.items():
            parameter = Parameter(name, _shape(full))
            boxes = rank_boxes(layout, parameter, mesh, rank)
            padding = " without pad rows" if padded_dims(layout, parameter, mesh) else ""
            fault = _fault(name, full, boxes, parts.get(name, parts.get(layout.stored_as(name))), padding)
            if fault is not None:
                raise BrokenLayoutError(f"{where}: {fault}")


def check_layouts(
    plan: Plan,
    *,
    seed: int = 0,
    weights: Mapping[str, Mapping[str, Any]] | None = None,
    backend: Literal["local", "ray"] | Lowering = "local",
) -> None:
    """Hold the layouts that roles of a plan declare to the weights that their ranks hold.

    Starts all ranks, in this process or on Ray, which roles need that use ``torch.distributed``, as FSDP does. Then it
    has each role that exports a state return it, gives it to the roles that load it, and compares what
    ``held_weights(state)`` of every rank gives with its boxes; parameters that a role states to be ``contiguous`` must
    be contiguous tensors in their dtypes. Where ranks export parts, they are joined as their layout says, and each rank
    that loads gets what it gets in a run. Roles without a declared layout are left out. A warning, HF922, names a role
    that loads by a layout and has no ``held_weights``: nothing can be compared with it.

    Parts that are joined in a wrong order look like other weights. So ``weights`` gives the right ones by state and
    name, such as those of the checkpoint that a role was built from: what it exports has to be these.

    Raises:
        BrokenLayoutError: with the rank and the first element that differs.
        DefinitionError: HF922 if there is nothing to compare, or nothing with the ``weights`` of a state; HF921 for a
            backend that cannot call a function for each worker.
        HfError: what a launch raises.

    >>> import hfdsl as hf
    >>> from hfdsl.protocols.layouts import Slices
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Trainer(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     @hf.writes("policy")
    ...     def update(self, rows: Rows) -> None: ...
    ...     @hf.register(hf.Dispatch.ONE_TO_ALL, hf.Execute.RANK_ZERO)
    ...     @hf.exports("policy")
    ...     def weights(self) -> dict[str, list[int]]:
    ...         return {"up": [0, 1, 2, 3]}
    >>> class Engine(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     @hf.reads("policy")
    ...     def score(self, rows: Rows) -> Rows: ...
    ...     @hf.register(hf.Dispatch.ONE_TO_ALL)
    ...     @hf.loads("policy", layout=Slices(0))
    ...     def load(self, weights: dict[str, list[int]]) -> None:
    ...         self.part = weights["up"][self.rank :: 2]  # every second row, in place of one half
    ...     def held_weights(self, state: str) -> dict[str, list[int]]:
    ...         return {"up": self.part}
    >>> @hf.dataflow
    ... def flow(rows: Rows, trainer: Trainer, engine: Engine) -> None:
    ...     trainer.update(engine.score(rows))
    ...     hf.sync(trainer, engine)
    >>> one, two = hf.ResourcePool([1], name="one"), hf.ResourcePool([2], name="two")
    >>> engine = hf.place(Engine, pool=two, mesh=hf.Mesh(tp=2))
    >>> check_layouts(flow.compile(hf.Deployment(trainer=hf.place(Trainer, pool=one), engine=engine), dims={B: 2}))
    Traceback (most recent call last):
    hfdsl.testing.layouts.BrokenLayoutError: 'engine', rank 0 (pp=0 dp=0 tp=0): 'up'[1] is 2 instead of 1, from [1] ...
    """
    right = {} if weights is None else named_of("check_layouts", "weights=", weights, 'weights={"policy": ...}')
    with launch(plan, backend, seed=seed, timeout=60.0, deadline=1800.0, worker_env={}) as running:
        ranks = running.backend
        if not isinstance(ranks, HookedBackend):
            raise DefinitionError("HF921", f"check_layouts: backend= needs of_workers of {type(ranks).__name__}")
        checked, uncompared = _check_syncs(plan, ranks, right)
    for state in uncompared:
        raise nothing(
            "check_layouts", f"no role of a sync in '{plan.name}' exports a weight of {state!r} that weights= has"
        )
    if not checked:
        raise nothing("check_layouts", f"no role of a sync in '{plan.name}' has a layout and held_weights(state)")
    for role in _silent_roles(plan):
        text = f"check_layouts compared nothing that '{role}' loads by its layout: give it a method held_weights(state)"
        warnings.warn(HfWarning("HF922", text), stacklevel=2)


def _silent_roles(plan: Plan) -> Iterable[str]:
    """The roles that load by a declared layout and do not say what they hold then."""
    targets = [sync.target for sync in weight_syncs(plan.graph, plan.deployment)]
    return dict.fromkeys(side.role for side in targets if side.effect.layout is not None and not _holds(side))


def _check_syncs(
    plan: Plan, ranks: HookedBackend, right: Mapping[str, Mapping[str, Any]]
) -> tuple[bool, Collection[str]]:
    """Whether anything was compared, and the states whose ``right`` weights were compared with none."""
    checked, uncompared = False, dict.fromkeys(right)
    steps = {step.node: step for step in plan.steps}
    for sync in weight_syncs(plan.graph, plan.deployment):
        exported: Sequence[Mapping[str, Any]] = ranks.of_workers(
            sync.source.role, partial(_exported, sync.source.method), sync.source.method
        )
        scheduled = steps[sync.target.node.id].sync
        if not any(exported) and hasattr(sync.source.placement.role, "held_weights"):  # a sync sends these
            exported = _held(ranks, sync.source)
        whole = next(filter(None, exported), {})
        if scheduled is not None and not _exports_whole(sync.source, scheduled, whole):
            whole = _joined(sync.source, scheduled, exported)
        if sync.state in right and _check_exported(sync.source, right[sync.state], whole):
            checked = True
            uncompared.pop(sync.state, None)
        checked |= _check_side(ranks, sync.source, whole)
        if _holds(sync.target):
            load = partial(_load, sync.target.method, _sent(sync.target, whole, scheduled))
            ranks.of_workers(sync.target.role, load, sync.target.method)
            checked |= _check_side(ranks, sync.target, whole)
    return checked, uncompared


def _check_exported(side: SyncSide, weights: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Whether a role exports some of these weights, after a comparison of all that it does."""
    both = {name: full for name, full in weights.items() if name in whole}
    if both:
        check_layout(Replicas(), Mesh(), both, [whole], role=side.role)
    return bool(both)


def _exports_whole(side: SyncSide, scheduled: ScheduledSync, weights: Mapping[str, Any]) -> bool:
    """Whether a role with ``held_weights``, whose parts a sync gets from there, returns whole parameters."""
    names = scheduled.source_layout.stored_as
    return hasattr(side.placement.role, "held_weights") and all(
        getattr(weights.get(parameter.name, weights.get(names(parameter.name))), "shape", None) == parameter.shape
        for parameter in scheduled.schedule.parameters
    )


def _exported(method: str, worker: Any) -> Mapping[str, Any]:
    weights = getattr(worker, method)()
    return _on_cpu(weights) if isinstance(weights, Mapping) else {}


def _on_cpu(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of parts, where every process can read them."""
    tensors = {name: getattr(part, "tensor", part) for name, part in parts.items()}
    return {name: tensor.cpu() if hasattr(tensor, "cpu") else tensor for name, tensor in tensors.items()}


def _sent(side: SyncSide, whole: Mapping[str, Any], scheduled: ScheduledSync | None) -> list[Mapping[str, Any]]:
    """The weights that each rank gets: the whole, or by schedule its part of each parameter."""
    ranks = range(side.placement.mesh.world_size)
    if scheduled is None:
        return [whole for _ in ranks]
    boxes_by_rank = [
        {
            parameter.name: rank_boxes(scheduled.target_layout, parameter, side.placement.mesh, rank)
            for parameter in scheduled.schedule.parameters
        }
        for rank in ranks
    ]
    return [{name: _part(whole[name], boxes) for name, boxes in of_rank.items() if boxes} for of_rank in boxes_by_rank]


def _load(method: str, sent: Sequence[Mapping[str, Any]], worker: Any) -> None:
    """Have a rank load what it gets."""
    getattr(worker, method)(dict(sent[worker.rank]))


def _part(full: Any, boxes: Sequence[Box]) -> Any:
    """A local tensor of the boxes of a whole one."""
    from hfdsl.runtime.weights.local_weights import local_boxes  # late: it loads torch

    shape, placed = local_boxes(boxes)
    part = full.new_empty(shape)
    for box, place in placed.items():
        part[tuple(slice(*ends) for ends in place)] = full[tuple(slice(*ends) for ends in box)]
    return part


def _joined(side: SyncSide, scheduled: ScheduledSync, exported: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The whole parameters of a schedule, joined from the boxes that each rank has exported.

    Raises:
        BrokenLayoutError: where a part has another shape, or ranks have other values of the same elements.
    """
    from hfdsl.runtime.weights.local_weights import local_boxes  # late: it loads torch

    whole, covered = dict[str, Any](), dict[str, Any]()
    layout, mesh = scheduled.source_layout, scheduled.schedule.source_mesh
    for parameter, (rank, parts) in product(scheduled.schedule.parameters, enumerate(exported[: mesh.world_size])):
        boxes, part = rank_boxes(layout, parameter, mesh, rank), parts.get(parameter.name)
        part = parts.get(layout.stored_as(parameter.name)) if part is None else part
        if not boxes:
            continue
        where, (shape, placed) = f"'{side.role}', rank {rank} ({mesh.coordinates(rank)})", local_boxes(boxes)
        if part is not None and not hasattr(part, "new_zeros"):
            kind = f"'{parameter.name}' of type {type(part).__name__}"
            raise BrokenLayoutError(f"{where}: exports {kind}, and a sync sends parts of tensors of torch")
        if part is None or tuple(part.shape) not in (shape, parameter.shape):
            actual = "none" if part is None else f"one of {tuple(part.shape)}"
            problem = f"exports {actual} of '{parameter.name}', and its boxes {', '.join(map(in_words, boxes))}"
            raise BrokenLayoutError(f"{where}: {problem} are of {shape}")
        full = whole.setdefault(parameter.name, part.new_zeros(parameter.shape))
        seen = covered.setdefault(parameter.name, part.new_zeros(parameter.shape).bool())
        for box, place in placed.items():
            there = tuple(slice(*ends) for ends in box)
            values = part[tuple(slice(*ends) for ends in place)] if tuple(part.shape) == shape else part[there]
            known = full[there]
            both_nan = (known != known) & (values != values)  # noqa: PLR0124
            if bool((seen[there] & (known != values) & ~both_nan).any()):
                raise BrokenLayoutError(f"{where}: '{parameter.name}'{in_words(box)} differs from another rank's")
            full[there], seen[there] = values, True
    return whole


def _holds(side: SyncSide) -> bool:
    return side.effect.layout is not None and hasattr(side.placement.role, "held_weights")


def _check_side(backend: HookedBackend, side: SyncSide, whole: Mapping[str, Any]) -> bool:
    """Whether there was a layout to hold against its ranks."""
    layout = side.layout() if _holds(side) else None
    if layout is None:
        return False
    check_layout(layout, side.placement.mesh, whole, _held(backend, side), role=side.role)
    return True


def _held(backend: HookedBackend, side: SyncSide) -> list[dict[str, Any]]:
    """The tensors that each rank says that it holds.

    Raises:
        BrokenLayoutError: where it says something else, or not of contiguous tensors that it states them to be.
    """
    held = backend.of_workers(side.role, partial(_held_by, side.effect.state, side.parameters), "held_weights")
    for rank, parts in enumerate(held):
        if isinstance(parts, str):
            raise BrokenLayoutError(f"'{side.role}', rank {rank} ({side.placement.mesh.coordinates(rank)}): {parts}")
    return [parts for parts in held if not isinstance(parts, str)]


def _held_by(state: str, parameters: Sequence[Parameter], worker: Any) -> dict[str, Any] | str:
    """The tensors that a rank holds, or the problem with them."""
    parts = worker.held_weights(state)
    if not isinstance(parts, Mapping):
        return f"held_weights('{state}') gives {brief(parts)}, expected a dict of its parts"
    for parameter in parameters:
        fault = _memory_fault(parameter, parts.get(parameter.name))
        if fault is not None:
            return f"{parameter.name!r} is stated to be contiguous, and {fault}"
    return _on_cpu(parts)


def _memory_fault(parameter: Parameter, part: Any) -> str | None:
    """Why a part that is stated to be contiguous needs a buffer to travel; None if it needs none."""
    from hfdsl.runtime.weights.held_parts import ComputedPart  # late: it loads torch

    if not parameter.contiguous:
        return None
    if isinstance(part, ComputedPart):
        return "it is computed when it is read"
    tensor = getattr(part, "tensor", part)
    if not hasattr(tensor, "is_contiguous"):
        return None
    if not tensor.is_contiguous():
        return f"a tensor of shape {tuple(tensor.shape)} has the strides {tensor.stride()}"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return None if dtype == parameter.dtype else f"it is stated in {parameter.dtype} and kept in {dtype}"


# -- a part ------------------------------------------------------------------------------------------------------------


def _fault(name: str, full: Any, boxes: Sequence[Box], part: Any, padding: str) -> str | None:
    """The problem with the part of a rank, or None."""
    if not boxes:
        empty = part is None or 0 in _shape(part)
        return None if empty else f"{name!r} is on it, and in no box of its layout{padding}"
    if part is None:
        return f"{name!r} is not on it, and {in_words(boxes[0])} of it should be"
    indices, values, wholes = _indices(boxes), _nested(part), _nested(_in_dtype(full, part))
    shape, expected = _shape(part), tuple(map(len, indices))
    if total(boxes) != prod(expected):
        return f"{name!r} has boxes {', '.join(map(in_words, boxes))}, which make no array together"
    if shape != expected:
        named = ", ".join(map(in_words, boxes))
        return f"{name!r} is of shape {shape}, and its boxes {named}{padding} are of {expected}"
    for place in product(*map(range, shape)):
        origin = tuple(index[i] for index, i in zip(indices, place, strict=True))
        value, meant = _at(values, place), _at(wholes, origin)
        if value != meant and not (value != value and meant != meant):  # NaN  # noqa: PLR0124
            return (
                f"{name!r}{list(place)} is {brief(value)} instead of {brief(meant)}, from {list(origin)} of the whole"
            )
    return None


def _indices(boxes: Sequence[Box]) -> list[list[int]]:
    """For each dim the indices of the whole, in the order of the local tensor."""
    return [list(_flat(dict.fromkeys(box[dim] for box in boxes))) for dim in range(len(boxes[0]))]


def _flat(ranges: Iterable[Range]) -> Iterator[int]:
    return (index for start, stop in ranges for index in range(start, stop))


def _in_dtype(full: Any, part: Any) -> Any:
    """The whole in the dtype of a part of it, as a sync converts it."""
    same = getattr(full, "dtype", None) == getattr(part, "dtype", None)
    return full if same or not hasattr(full, "to") else full.to(part.dtype)


def _nested(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _shape(value: Any) -> tuple[int, ...]:
    if hasattr(value, "shape"):
        return tuple(value.shape)  # of no elements, nested lists do not have it
    return (len(value), *(_shape(value[0]) if value else ())) if isinstance(value, (list, tuple)) else ()


def _at(nested: Any, place: Sequence[int]) -> Any:
    for index in place:
        nested = nested[index]
    return nested
