"""Replay: one call of a recorded step once more, alone in this process, with the arguments that it had then.

A call's result depends on four things: the state of its worker, its arguments, its random streams, and what its peers
said in collectives. A recording has the first, second and fourth; streams follow from seed, step, node and rank. So one
rank can be repeated without the others. For example ``actor.update`` on two ranks, of which rank 1 failed::

    recorded        rank 0                      rank 1
    arguments       rows 0, 1                   rows 2, 3
    local loss      1.0                         3.0
    all_reduce      4.0                         4.0, kept as ("reduced", 4.0)
    result          loss 2.0                    none: the body raised after the all_reduce

    replay(folder, "actor.update", rank=1)
        builds the worker of rank 1, loads its state from before the step, repeats its earlier calls of the step
        calls the body with rows 2, 3
        the body asks for all_reduce(3.0), and the tape answers 4.0, as the peers did
        the body raises again: ``same`` is true, and ``error`` has its frames

A body that asks its peers for more than it did then, since it was edited, has nobody to ask: that is HF424.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from hfdsl.errors import CheckpointError, ProtocolError
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.signatures import RecordType
from hfdsl.plan.plan import Plan, Step
from hfdsl.protocols.call import Call, in_call, seeded
from hfdsl.protocols.collectives import AxisGroup, copied
from hfdsl.protocols.state import only_reads
from hfdsl.protocols.worker import RankContext
from hfdsl.runtime.recording import (
    ARGUMENTS,
    COLLECTIVES,
    HEADER,
    RECORDINGS_FOLDER,
    RESULT,
    STATE,
    call_folder,
    holds_scripts,
    importing,
    plan_of,
    read,
    read_header,
)
from hfdsl.runtime.role_workers import build_worker
from hfdsl.runtime.saving import read_manifest
from hfdsl.runtime.state_files import load_worker
from hfdsl.testing.compare import Difference, first_difference
from hfdsl.testing.reloading import Script, loaded, pickles
from hfdsl.types.batches import Batch, closest, upcast

T = TypeVar("T")
Body = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A call that was repeated: what it gave or raised, and where that differs from what it gave then.

    ``failed_then`` tells that the recorded call gave nothing, since it or a peer failed. ``body`` tells of a body in
    the script of the run whether it is the recorded one or what the script has now.
    """

    label: str
    rank: int
    result: Any
    error: BaseException | None
    failed_then: bool
    difference: Difference | None
    repeated: tuple[str, ...]
    body: str = ""

    @property
    def same(self) -> bool:
        """Whether the call did what it did then."""
        return self.difference is None and (self.error is not None) is self.failed_then

    def __str__(self) -> str:
        head = f"'{self.label}' on rank {self.rank}"
        if self.body:
            head += f" ({self.body})"
        if self.repeated:
            head += f", after {', '.join(self.repeated)},"
        if self.error is not None:
            trace = "".join(traceback.format_exception(self.error)).rstrip()
            then = "as it failed then" if self.failed_then else "which gave a result then"
            return f"{head.removesuffix(',')}, {then}: {type(self.error).__name__}: {self.error}\n\n{trace}"
        if self.failed_then:
            return f"{head} gives a result, and gave none then: {self.result!r}"
        if self.difference is None:
            return f"{head} gives what it gave then, bit for bit"
        return (
            f"{head} gives another result, first in {self.difference}:\n"
            f"  then  {self.difference.expected}\n  now   {self.difference.actual}"
        )


def replay(
    recording: str | PathLike[str],
    node: str,
    rank: int | None = None,
    around: Callable[[Body], Body] = lambda body: body,
) -> Replayed:
    """Repeat one rank's part of a recorded call, alone in this process.

    The role is built as it was, given its state from before the step, and repeats its own earlier calls of that step
    that may have changed it. Collectives return their recorded results. Random streams are those of the
    call. ``around`` may put something around the body, such as a debugger.

    Raises:
        CheckpointError: HF906 where there is no such recording, call or rank, or it cannot be read.

    >>> import torch
    >>> import hfdsl as hf
    >>> from tempfile import TemporaryDirectory
    >>> class B(hf.Dim): ...
    >>> class Rows(hf.Batch):
    ...     x: hf.f32[B]
    >>> class Role(hf.Worker):
    ...     @hf.register(hf.Dispatch.DP_PROTO)
    ...     def double(self, rows: Rows) -> Rows:
    ...         return Rows(x=rows.x.tensor * 2)
    >>> @hf.dataflow
    ... def flow(rows: Rows, role: Role) -> Rows:
    ...     return role.double(rows)
    >>> plan = flow.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2]))), dims={B: 2})
    >>> with TemporaryDirectory() as folder, plan.launch("local") as running:
    ...     with running.record(folder):
    ...         _ = running.step(Rows(x=torch.tensor([1.0, 2.0])))
    ...     replayed = replay(folder, "role.double", rank=1)
    >>> replayed.result.x.tensor, replayed.same
    (tensor([4.]), True)
    """
    folder = Path(recording)
    header = read_header(folder)
    _check_label([call["label"] for call in header["calls"]], node)  # before any code of the recording runs
    with importing(header["path"]):
        script = loaded(header.get("main") if holds_scripts(folder) else None)
        files = pickles(script)
        plan = plan_of(folder, files)
        step = next(step for step in plan.steps if step.label == node)
        rank = _rank(folder, step, rank)
        tape = _Tape()
        worker = _worker(folder, plan, step, rank, header["seed"], tape) if step.role else None
        earlier = list(_earlier(folder, plan, step, rank)) if worker is not None else []
        for before in earlier:
            _called(folder, files, before, rank, worker, tape, lambda body: body)
        done = _compared(folder, files, step, rank, worker, tape, around, tuple(call.label for call in earlier))
        return replace(done, body=_body_used(script, step))


def _body_used(script: Script, step: Step) -> str:
    """Which body was used, where it is in the script of the run; modules are imported as they are."""
    if script.has(step.signature.body):
        return f"the body that {script.name} has now"
    if step.signature.body.__module__ != "__main__":
        return ""
    name = step.signature.body.__qualname__
    why = f"cannot be loaded again: {script.problem}" if script.problem else f"has no '{name}' now"
    return f"the recorded body: {script.name} {why}"


def _check_label(labels: Sequence[str], node: str) -> None:
    if node not in labels:
        numbered = [label for label in labels if label.startswith(f"{node}#")]
        hint = f"there are {', '.join(numbered)}" if numbered else closest(node, labels)
        raise CheckpointError("HF906", f"the recorded step has no call '{node}'; {hint}")


def _rank(folder: Path, step: Step, rank: int | None) -> int:
    ranks = [rank for rank in step.ranks if (call_folder(folder, step.label, rank) / ARGUMENTS).exists()]
    if not ranks:
        raise CheckpointError("HF906", f"'{step.label}' was not reached in the recorded step")
    if rank is not None and rank not in ranks:
        raise CheckpointError("HF906", f"'{step.label}' was recorded on ranks {', '.join(map(str, ranks))}, not {rank}")
    if rank is not None:
        return rank
    failed = [candidate for candidate in ranks if not (call_folder(folder, step.label, candidate) / RESULT).exists()]
    return (failed or ranks)[0]


def _worker(folder: Path, plan: Plan, step: Step, rank: int, seed: int, tape: _Tape) -> Any:
    """The worker of a rank as it was before the step."""
    role = step.role or ""
    group = next(group for group in plan.groups if role in group.roles)
    nodes = [(slot, size) for size in group.pool.processes for slot in range(size)]
    context = RankContext(rank, len(nodes), *nodes[rank], mesh=plan.mesh(role), collectives=tape)
    worker = build_worker(plan.deployment, role, context, seed)
    saved = read_manifest(folder / STATE, plan.deployment, seed).roles.get(role)
    load_worker(role, worker, str(folder / STATE), saved[rank] if saved is not None else None)
    return worker


def _earlier(folder: Path, plan: Plan, step: Step, rank: int) -> Iterator[Step]:
    """The calls of the same worker before this one that may have changed it."""
    for earlier in plan.steps:
        is_before = earlier.node < step.node and earlier.role == step.role and rank in earlier.ranks
        changes = is_before and not only_reads(earlier.signature.body)
        if changes and (call_folder(folder, earlier.label, rank) / RESULT).exists():
            yield earlier


def _called(
    folder: Path, files: Any, step: Step, rank: int, worker: Any, tape: _Tape, around: Callable[[Body], Body]
) -> Any:
    place = call_folder(folder, step.label, rank)
    recorded = read(place / ARGUMENTS, files)
    call: Call = recorded["call"]
    heard = read(place / COLLECTIVES, files) if (place / COLLECTIVES).exists() else []
    body = step.signature.body if worker is None else getattr(worker, step.signature.name)
    with (
        tape.playing(step.label, heard),
        in_call(call),
        seeded(call),
        inputs_unchanged(step.label, recorded["arguments"]),
    ):
        return around(body)(**recorded["arguments"])


def _compared(
    folder: Path,
    files: Any,
    step: Step,
    rank: int,
    worker: Any,
    tape: _Tape,
    around: Callable[[Body], Body],
    repeated: tuple[str, ...],
) -> Replayed:
    result_file = call_folder(folder, step.label, rank) / RESULT
    failed_then = not result_file.exists()
    try:
        result = _called(folder, files, step, rank, worker, tape, around)
    except Exception as error:  # noqa: BLE001  # what the body raises is what one wants to see
        return Replayed(
            label=step.label,
            rank=rank,
            result=None,
            error=_own_lines(error),
            failed_then=failed_then,
            difference=None,
            repeated=repeated,
        )
    difference = (
        None if failed_then else first_difference(_declared(step, read(result_file, files)), _declared(step, result))
    )
    return Replayed(
        label=step.label,
        rank=rank,
        result=result,
        error=None,
        failed_then=failed_then,
        difference=difference,
        repeated=repeated,
    )


def _declared(step: Step, value: Any) -> Any:
    kind = step.signature.returns
    return upcast(value, kind.record) if isinstance(value, Batch) and isinstance(kind, RecordType) else value


def _own_lines(error: BaseException) -> BaseException:
    """The error with the body's own frames alone."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


class _Tape:
    """Stands in for the peers of a rank: it returns the recorded results of collectives."""

    def __init__(self) -> None:
        self._label = ""
        self._collectives: list[tuple[str, Any]] | None = None

    def group(self, ranks: tuple[int, ...], rank: int) -> AxisGroup:
        """The ranks of an axis."""
        return _Recorded(self, len(ranks), ranks.index(rank))

    @contextmanager
    def playing(self, label: str, heard: Sequence[tuple[str, Any]]) -> Iterator[None]:
        """Within this, a call of that label hears this."""
        self._label, self._collectives = label, list(heard)
        try:
            yield
        finally:
            self._collectives = None

    def peek(self) -> str:
        """The kind of the next recorded collective."""
        return self._collectives[0][0] if self._collectives else "gathered"

    def next(self, how: str, alike: Callable[[], Any]) -> Any:
        """The next recorded value; while a worker is built, ``alike`` returns the same for all ranks."""
        if self._collectives is None:
            return alike()
        if not self._collectives or self._collectives[0][0] != how:
            raise ProtocolError(
                "HF424", f"'{self._label}' asks its peers more than it did then, or something else: they are not here"
            )
        return self._collectives.pop(0)[1]


class _Recorded(AxisGroup):
    """A group whose other ranks are on the tape."""

    def __init__(self, tape: _Tape, size: int, rank: int) -> None:
        self._tape, self.size, self.rank = tape, size, rank

    def all_gather(self, value: T) -> list[T]:
        """The inputs of all ranks at that collective."""
        gathered = self._tape.next("gathered", lambda: [copied(value) for _ in range(self.size)])
        return [_on_device_of(value, value_then) for value_then in gathered]

    def all_reduce(self, value: T, op: str = "sum") -> T:
        """The recorded result of that collective."""
        if self._tape.peek() == "reduced":
            return _on_device_of(value, self._tape.next("reduced", lambda: value))
        return super().all_reduce(value, op)


def _on_device_of(value: T, recorded: Any) -> T:
    """A recorded value, which is on the host, on the device of the rank's own value."""
    device = getattr(value, "device", None)
    moved: T = recorded.to(device) if device is not None and hasattr(recorded, "to") else recorded
    return moved


def recordings(run: Path) -> Mapping[int, Path]:
    """The recordings of a run's folder, by step; or the one that the folder is itself.

    Raises:
        CheckpointError: HF906 where there is none.
    """
    if (run / HEADER).exists():
        return {int(read_header(run)["step"]): run}
    folders = sorted((run / RECORDINGS_FOLDER).glob("step-*"))
    by_step = {int(folder.name.removeprefix("step-")): folder for folder in folders}
    if not by_step:
        raise CheckpointError(
            "HF906", f"'{run}' is no recording and has none: a run writes one with --set record=[17], or running.record"
        )
    return by_step
