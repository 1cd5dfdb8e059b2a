"""The contents of a run's queues as files: a run that loads them continues as if it had never stopped.

A worked example, with the program of ``queues.streaming``: a lag of 1, saved after step 0. Step 1 was generated
under version 0 and waits for the actor; nothing else is in progress::

    process   what it holds or would receive                file
    driver    the prompts of step 1                         driver.queue-0c5d....safetensors
    engine 0  nothing that is read again                    engine.queue-93a1....safetensors
    actor 0   the rows of step 1 that it will train on      actor.queue-77fe....safetensors

A payload that has left its producer but was not received is an argument of the call that writes the file. So it takes
the route that it would have taken anyway, and the driver holds only handles. The driver's own file has the values that
it reads itself, and the inputs of steps in progress, from which their sizes and routes follow.

With dynamic queues, the rank that will read a group is not known yet. So the ranks of the stage behind write the
dispatches in turn, and read them again for the ranks that train on them: ``SavedPayloads`` has the ranks.

Why nothing is missing. A later stage reads the caller's inputs, which are sent again, the values that its ranks hold,
and the payloads that its segments receive; the latter two are in the files of these ranks. A file lists one step after
another, each with its values by node, chunk, column and rows. Values are read by these keys, so the reader need not be
the same segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from hfdsl.errors import CheckpointError, ResourceError
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.decisions import Decision, as_dict, from_dict
from hfdsl.runtime.saving.sealed_json import parse_count, parse_file
from hfdsl.runtime.schedule import QueuedGroup

QueueFile: TypeAlias = Mapping[str, str]
"""The name of a file beside the manifest, and its digest."""

Rank: TypeAlias = tuple[str, int]
"""A process group and a rank of it."""


@runtime_checkable
class QueueKeepingBackend(Backend, Protocol):
    """A backend that can save the data of steps in progress from its processes."""

    def save_queues(
        self, folder: str, plan: str, pending: Mapping[int, Mapping[Rank, Sequence[Any]]]
    ) -> Mapping[str, Sequence[QueueFile]]:
        """Have every process write its part of these steps, with the payloads of these handles, and wait for it.

        Raises:
            CheckpointError: HF906 if a file cannot be written, HF908 if a queue holds a value that no file can hold.
        """
        ...

    def read_payloads(self, folder: str, saved: Sequence[tuple[Plan, SavedPayloads, QueueFile]]) -> list[Sequence[Any]]:
        """Have processes read payloads of these plans again; the handles of each dispatch.

        Raises:
            CheckpointError: HF906 if a file has changed since it was written.
        """
        ...

    def load_queues(self, folder: str, plan: str, files: Mapping[str, Sequence[QueueFile]]) -> None:
        """Have every process read its part again.

        Raises:
            CheckpointError: HF906 if a file has changed since it was written.
        """


KEEPING: Final = ("save_queues", "read_payloads", "load_queues")
"""The methods that a ``QueueKeepingBackend`` has besides those of every backend."""


def saving_backend(backend: Backend, queues: object) -> QueueKeepingBackend:
    """The backend, which is to write the contents of these ``queues``.

    Raises:
        CheckpointError: HF908 if it cannot.
    """
    if isinstance(backend, QueueKeepingBackend):
        return backend
    advice = "save once the stream has ended"
    raise CheckpointError("HF908", f"{_lacks(backend, queues, 'write')}; {advice}")


def loading_backend(backend: Backend, queues: object) -> QueueKeepingBackend:
    """The backend, which is to read the contents of these ``queues`` again.

    Raises:
        CheckpointError: HF905 if it cannot.
    """
    if isinstance(backend, QueueKeepingBackend):
        return backend
    advice = 'load this checkpoint on "local" or "ray", or one that was saved once the stream had ended'
    raise CheckpointError("HF905", f"{_lacks(backend, queues, 'load')}; {advice}")


def _lacks(backend: Backend, queues: object, verb: str) -> str:
    lacking = ", ".join(name for name in KEEPING if not hasattr(backend, name))
    return f"{type(backend).__name__} cannot {verb} the contents of queues ({queues}), since it lacks {lacking}"


def written_files(
    backend: QueueKeepingBackend, folder: str, plan: Plan, pending: Mapping[int, Mapping[Rank, Sequence[Any]]]
) -> dict[str, Sequence[QueueFile]]:
    """The files of all processes of a plan, by group; ``pending`` and errors as for ``save_queues``.

    Raises:
        ResourceError: HF518 if the backend returns none for a process.
    """
    files = dict(backend.save_queues(folder, plan.name, pending))
    for group in plan.groups:
        ranks, written = sum(group.pool.processes), len(files.get(group.name, ()))
        if written != ranks:
            text = f"{type(backend).__name__}.save_queues returned {written} files of '{group.name}' in '{plan.name}'"
            raise ResourceError("HF518", f"{text}, whose {ranks} ranks write one each")
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStep:
    """A step in progress: its submitted stages and segments, the rows that its filters kept, and its row weights.

    ``stage_steps`` are as in ``SegmentCall``.
    """

    number: int
    stages: tuple[int, ...]
    submitted: tuple[int, ...]
    short_steps: tuple[int, ...]
    queries: Mapping[int, tuple[int, ...]]
    stage_steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SavedPayloads:
    """The payloads of a dispatch, by its number in the file: the ``rank`` that wrote them, and the slices of each."""

    number: int
    rank: Rank
    slices: tuple[tuple[ColumnSlice, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQueue:
    """A queue: its declaration, the number of batches taken, and the batches in progress."""

    lag: int
    late: str
    version: int
    groups: tuple[QueuedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCounts:
    """The counts of a dynamic queue: groups per dispatch and batch, groups dispatched, and prompts to repeat."""

    put_in: int
    taken: int
    dispatched: int
    again: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDecisions:
    """The state of dynamic queues: the ``counts`` of each, and the number of their decisions.

    ``loads`` are those of weights in flight that no log has yet. ``loaded`` counts the loader's batches;
    ``next_prompts`` has for each stage the first prompt that was not dispatched. ``payloads`` has the rows of every
    dispatch with groups in a queue.
    """

    counts: tuple[SavedCounts, ...]
    decisions: int
    loads: tuple[Decision, ...]
    loaded: int
    next_prompts: Mapping[int, int]
    payloads: tuple[SavedPayloads, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStream:
    """A stream: the submitted steps of each stage, its queues, its steps in progress, and the files by group.

    ``decided`` is None where stages follow each other step by step. ``values`` says what the queues hold
    (``held_values``); files of earlier versions do not.
    """

    plan: str
    steps: tuple[int, ...]
    queues: tuple[SavedQueue, ...]
    in_progress: tuple[SavedStep, ...]
    files: Mapping[str, Sequence[QueueFile]] = field(default_factory=dict)
    decided: SavedDecisions | None = None
    values: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values, for a manifest."""
        return {
            "plan": self.plan,
            "steps": list(self.steps),
            "queues": [
                {
                    "lag": queue.lag,
                    "late": queue.late,
                    "version": queue.version,
                    "groups": [_group_numbers(group) for group in queue.groups],
                }
                for queue in self.queues
            ],
            "in_progress": [
                {
                    "number": step.number,
                    "stages": list(step.stages),
                    "submitted": list(step.submitted),
                    "short_steps": list(step.short_steps),
                    "queries": [[node, list(rows)] for node, rows in step.queries.items()],
                    "stage_steps": [list(steps) for steps in step.stage_steps],
                }
                for step in self.in_progress
            ],
            "files": {group: [dict(file) for file in files] for group, files in self.files.items()},
            "values": list(self.values),
            **({} if self.decided is None else {"decided": _decided_numbers(self.decided)}),
        }

    @classmethod
    def from_dict(cls, entry: Any) -> SavedStream:
        """Convert from plain values; ``ValueError``, ``KeyError`` or ``TypeError`` for malformed ones."""
        return cls(
            plan=str(entry["plan"]),
            steps=_counts(entry["steps"]),
            queues=tuple(
                SavedQueue(
                    lag=parse_count(queue["lag"]),
                    late=str(queue["late"]),
                    version=parse_count(queue["version"]),
                    groups=tuple(map(_group, queue["groups"])),
                )
                for queue in entry["queues"]
            ),
            in_progress=tuple(
                SavedStep(
                    number=parse_count(step["number"]),
                    stages=_counts(step["stages"]),
                    submitted=_counts(step["submitted"]),
                    short_steps=_counts(step["short_steps"]),
                    queries={parse_count(node): _counts(rows) for node, rows in step["queries"]},
                    stage_steps=tuple(map(_counts, step["stage_steps"])),
                )
                for step in entry["in_progress"]
            ),
            files={str(group): [parse_file(file) for file in files] for group, files in dict(entry["files"]).items()},
            decided=_decided(entry["decided"]) if "decided" in entry else None,
            values=tuple(map(str, entry.get("values", ()))),
        )


def _decided_numbers(decided: SavedDecisions) -> dict[str, Any]:
    return {
        "counts": [[counts.put_in, counts.taken, counts.dispatched, list(counts.again)] for counts in decided.counts],
        "decisions": decided.decisions,
        "loads": [as_dict(load) for load in decided.loads],
        "loaded": decided.loaded,
        "next_prompts": [list(item) for item in decided.next_prompts.items()],
        "payloads": [
            [payloads.number, *payloads.rank, [list(map(_slice_numbers, slices)) for slices in payloads.slices]]
            for payloads in decided.payloads
        ],
    }


def _decided(entry: Any) -> SavedDecisions:
    counts = tuple(
        SavedCounts(
            put_in=parse_count(put_in),
            taken=parse_count(taken),
            dispatched=parse_count(dispatched),
            again=_counts(again),
        )
        for put_in, taken, dispatched, again in entry["counts"]
    )
    next_prompts = {parse_count(stage): parse_count(prompt) for stage, prompt in entry["next_prompts"]}
    return SavedDecisions(
        counts=counts,
        decisions=parse_count(entry["decisions"]),
        loads=tuple(map(from_dict, entry.get("loads", ()))),  # files of earlier versions have none
        loaded=parse_count(entry["loaded"]),
        next_prompts=next_prompts,
        payloads=tuple(
            SavedPayloads(
                parse_count(number), (str(group), parse_count(rank)), tuple(tuple(map(_slice, part)) for part in slices)
            )
            for number, group, rank, slices in entry["payloads"]
        ),
    )


def _slice_numbers(part: ColumnSlice) -> list[Any]:
    return [part.node, part.chunk, part.column, None if part.rows is None else [list(ends) for ends in part.rows]]


def _slice(entry: Any) -> ColumnSlice:
    node, chunk, column, rows = entry
    ranges = None if rows is None else tuple((parse_count(start), parse_count(stop)) for start, stop in rows)
    return ColumnSlice(parse_count(node), parse_count(chunk), str(column), ranges)


def _group_numbers(group: QueuedGroup) -> list[Any]:
    numbers: list[Any] = [group.number, group.prompt, group.version]
    return numbers if group.of is None else [*numbers, _group_numbers(group.of)]


def _group(entry: Any) -> QueuedGroup:
    number, prompt, version, *of = entry
    made_of = _group(*of) if of else None
    return QueuedGroup(parse_count(number), parse_count(prompt), parse_count(version), status="ready", of=made_of)


def _counts(numbers: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(parse_count, numbers))
