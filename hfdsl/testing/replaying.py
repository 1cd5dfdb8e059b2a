"""Replay: run one call of a recorded step again, in this process, with its recorded arguments.

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

A body that asks its peers for more than it did then, since it was edited, has no peer to ask: that is HF424.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from hfdsl.deploy.deployment import place
from hfdsl.deploy.pools import ResourcePool
from hfdsl.errors import CheckpointError, ProtocolError
from hfdsl.graph.body_checks import inputs_unchanged
from hfdsl.graph.operations import SIGNATURE
from hfdsl.protocols.call import Call, in_call, seeded
from hfdsl.protocols.collectives import AxisGroup, copied
from hfdsl.protocols.state import only_reads
from hfdsl.protocols.worker import RankContext, Worker
from hfdsl.runtime.rank.role_workers import build_worker, construction_call
from hfdsl.runtime.saving.driver import parse_manifest
from hfdsl.runtime.saving.recording import (
    ARGUMENTS,
    CALLS,
    COLLECTIVES,
    HEADER,
    RECORDINGS_FOLDER,
    RESULT,
    ROLES,
    SIGNATURE_FILE,
    STATE,
    call_folder,
    importing,
    read_header,
)
from hfdsl.runtime.saving.state_files import load_worker
from hfdsl.runtime.saving.value_files import is_written
from hfdsl.runtime.saving.value_reading import read_value
from hfdsl.testing.compare import Difference, first_difference
from hfdsl.testing.reloading import Script
from hfdsl.types.batches import Batch, upcast
from hfdsl.types.similar_names import closest

T = TypeVar("T")
Body = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A repeated call: its result or error, and the difference to the recorded result.

    With ``failed_then`` the recorded call has no result, since it or a peer failed. If the body is in the script of the
    run, ``body`` says whether it is the recorded one or the one that the script has now.
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
        """Whether the call had the recorded result."""
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
    *,
    trust: bool = False,
) -> Replayed:
    """Repeat one rank's part of a recorded call, alone in this process.

    The role is built as it was, given its state from before the step, and repeats its own earlier calls of that step
    that may have changed it. Collectives return their recorded results. Random streams are those of the
    call. ``around`` may put something around the body, such as a debugger. With ``trust`` the pickles of the recording
    are loaded, and its copy of the script where that has changed.

    Raises:
        CheckpointError: HF906 if there is no such recording, call or rank, or it cannot be read; HF915 if it
            needs ``trust``.

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
    ...     replayed = replay(folder, "role.double", rank=1, trust=True)  # classes of a prompt are pickled
    >>> replayed.result.x.tensor, replayed.same
    (tensor([4.]), True)
    """
    folder = Path(recording)
    header = read_header(folder)
    _check_label([call["label"] for call in header["calls"]], node)  # before any code of the recording runs
    call = next(call for call in header["calls"] if call["label"] == node)
    module, _, definition = call["definition"].partition(":")
    script = Script(folder, header["main"], definition if module == "__main__" else "", trust)
    with importing(header["path"]):
        return _Recording(folder, header, script, trust).replayed(call, rank, around)


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


@dataclass(frozen=True, slots=True)
class _Recording:
    """A recording that is read for one replay."""

    folder: Path
    header: Mapping[str, Any]
    script: Script
    trust: bool
    tape: _Tape = field(default_factory=_Tape)

    def replayed(self, call: Mapping[str, Any], rank: int | None, around: Callable[[Body], Body]) -> Replayed:
        """A call once more, after the earlier calls of its worker."""
        rank = self._rank(call, rank)
        signature = self._read(self.folder / CALLS / call["label"] / SIGNATURE_FILE, f"'{call['label']}'")
        worker = self._worker(call["role"], rank) if call["role"] else None
        body = self._function(call, signature["function"]) if worker is None else getattr(worker, call["method"])
        earlier = list(self._earlier(call, worker, rank)) if worker is not None else []
        for before in earlier:
            self._replay_call(before, rank, getattr(worker, before["method"]))
        replay = Replayed(
            label=call["label"],
            rank=rank,
            result=None,
            error=None,
            failed_then=not is_written(call_folder(self.folder, call["label"], rank) / RESULT),
            difference=None,
            repeated=tuple(before["label"] for before in earlier),
            body=self._body_used(call),
        )
        return self._compared(replay, call, around(body), signature["returns"])

    def _read(self, file: Path, subject: str) -> Any:
        return read_value(file, subject, trust=self.trust, main=self.script.module)

    def _function(self, call: Mapping[str, Any], function: Any) -> Body:
        """The body of a function; without trust it is one that a module declares."""
        if not hasattr(function, SIGNATURE):
            if not (self.trust and callable(function)):
                raise CheckpointError("HF906", f"'{call['definition']}' is not a function under @hf.function now")
            return cast(Body, function)
        return cast(Body, getattr(function, SIGNATURE)().body)

    def _body_used(self, call: Mapping[str, Any]) -> str:
        """The body that was used, if it is in the run's script; modules are imported unchanged."""
        if not call["definition"].startswith("__main__:"):
            return ""
        name, problem = self.script.name, self.script.problem
        if not self.script.main:
            return "the recorded body: it was in no file"
        return f"the recorded body: {name} {problem}" if problem else f"the body that {name} has now"

    def _rank(self, call: Mapping[str, Any], rank: int | None) -> int:
        folders = {rank: call_folder(self.folder, call["label"], rank) for rank in call["ranks"]}
        ranks = [rank for rank, folder in folders.items() if is_written(folder / ARGUMENTS)]
        if not ranks:
            raise CheckpointError("HF906", f"'{call['label']}' was not reached in the recorded step")
        if rank is not None and rank not in ranks:
            recorded_ranks = ", ".join(map(str, ranks))
            raise CheckpointError("HF906", f"'{call['label']}' was recorded on ranks {recorded_ranks}, not {rank}")
        if rank is not None:
            return rank
        failed: list[int] = [candidate for candidate in ranks if not is_written(folders[candidate] / RESULT)]
        return (failed or ranks)[0]

    def _worker(self, role: str, rank: int) -> Any:
        """The worker of a rank as it was before the step."""
        recorded = self._read(self.folder / ROLES / role, f"role '{role}'")
        if not (isinstance(recorded["class"], type) and issubclass(recorded["class"], Worker)):
            raise CheckpointError("HF906", f"the class of role '{role}' is not an hf.Worker now")
        pool = ResourcePool(self.header["roles"][role]["processes"], use_gpu=False)
        placement = place(recorded["class"], *recorded["args"], pool=pool, mesh=recorded["mesh"], **recorded["kwargs"])
        nodes = [(slot, size) for size in pool.processes for slot in range(size)]
        context = RankContext(rank, len(nodes), *nodes[rank], mesh=placement.mesh, collectives=self.tape)
        worker = build_worker(placement, construction_call(role, self.header["roles"], self.header["seed"]), context)
        states = self.folder / STATE
        saved = parse_manifest(states).roles.get(role)
        load_worker(role, worker, str(states), saved[rank] if saved is not None else None)
        return worker

    def _earlier(self, call: Mapping[str, Any], worker: Any, rank: int) -> Iterator[Mapping[str, Any]]:
        """The calls of the same worker before this one that may have changed it."""
        for earlier in self.header["calls"]:
            is_before = earlier["node"] < call["node"] and earlier["role"] == call["role"] and rank in earlier["ranks"]
            changes = is_before and not only_reads(getattr(worker, earlier["method"]))
            if changes and is_written(call_folder(self.folder, earlier["label"], rank) / RESULT):
                yield earlier

    def _replay_call(self, call: Mapping[str, Any], rank: int, body: Body) -> Any:
        label = call["label"]
        place, owner = call_folder(self.folder, label, rank), f"of '{label}' on rank {rank}"
        recorded = self._read(place / ARGUMENTS, f"the arguments {owner}")
        written = is_written(place / COLLECTIVES)
        heard = self._read(place / COLLECTIVES, f"the collectives {owner}") if written else []
        current = Call(**recorded["call"])
        with (
            self.tape.playing(label, heard),
            in_call(current),
            seeded(current),
            inputs_unchanged(label, recorded["arguments"]),
        ):
            return body(**recorded["arguments"])

    def _compared(self, replay: Replayed, call: Mapping[str, Any], body: Body, returns: type[Batch] | None) -> Replayed:
        result_file = call_folder(self.folder, replay.label, replay.rank) / RESULT
        then = (
            None
            if replay.failed_then
            else self._read(result_file, f"the result of '{replay.label}' on rank {replay.rank}")
        )
        try:
            result = self._replay_call(call, replay.rank, body)
        except CheckpointError:
            raise
        except Exception as error:  # noqa: BLE001  # what the body raises is what one wants to see
            return replace(replay, error=_own_lines(error))
        if replay.failed_then:
            return replace(replay, result=result)
        difference = first_difference(_as_declared(returns, then), _as_declared(returns, result))
        return replace(replay, result=result, difference=difference)


def _check_label(labels: Sequence[str], node: str) -> None:
    if node not in labels:
        numbered = [label for label in labels if label.startswith(f"{node}#")]
        hint = f"there are {', '.join(numbered)}" if numbered else closest(node, labels)
        raise CheckpointError("HF906", f"the recorded step has no call '{node}'; {hint}")


def _as_declared(returns: type[Batch] | None, value: Any) -> Any:
    return upcast(value, returns) if isinstance(value, Batch) and returns is not None else value


def _own_lines(error: BaseException) -> BaseException:
    """The error with the body's own frames alone."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


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
        CheckpointError: HF906 if there is none.
    """
    if (run / HEADER).exists():
        return {int(read_header(run)["step"]): run}
    folders = sorted((run / RECORDINGS_FOLDER).glob("step-*"))
    by_step = {int(folder.name.removeprefix("step-")): folder for folder in folders}
    if not by_step:
        raise CheckpointError(
            "HF906",
            f"'{run}' is not a recording and contains none: a run writes one with --set record=[17], or running.record",
        )
    return by_step
