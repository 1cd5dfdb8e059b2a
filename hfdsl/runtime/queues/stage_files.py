"""The contents of dynamic queues: in a checkpoint, and for a run that goes back to it.

Besides numbers and versions, files have the rows of every group that is on its way or may be read for such a group, by
queue and dispatch, and the loader's batches whose prompts may still be dispatched, by stage. The driver has the latter
and writes them itself; the rows are written by processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hfdsl.errors import CheckpointError, ResourceError
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import DRIVER, Plan
from hfdsl.plan.rows import row_table
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.files import (
    QueueFile,
    Rank,
    SavedCounts,
    SavedDecisions,
    SavedPayloads,
    SavedQueue,
    SavedStep,
    SavedStream,
    loading_backend,
    saving_backend,
    written_files,
)
from hfdsl.runtime.queues.groups import groups_of
from hfdsl.runtime.queues.run import QueueRun, in_words
from hfdsl.runtime.queues.stage_plans import QueueStages, StagedQueue
from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.saving.store_files import content_of, read_stores, write_stores
from hfdsl.types.batches import Batch, rebuild


def saved(run: QueueRun, plan: Plan, decisions: int, backend: Backend, folder: str) -> SavedStream:
    """Save the contents of the queues, once they are complete.

    Raises:
        CheckpointError: HF906 if a file cannot be written, HF908 if a queue holds a value that no file can hold, or the
            backend cannot write it.
        ResourceError: HF518 if the backend has not written it.
    """
    keeping = saving_backend(backend, in_words(run.loop.queues))
    run.settle()
    steps = [
        SavedStep(
            number=_key(run.stages, queue, number),
            stages=(),
            submitted=(),
            short_steps=(),
            queries=dispatch.queries,
            stage_steps=(),
        )
        for queue, dispatches in enumerate(run.dispatched)
        for number, dispatch in dispatches.items()
    ]
    pending, payloads = _pending(run, backend)
    files = written_files(keeping, folder, plan, pending)
    files[DRIVER] = [write_stores(folder, DRIVER, plan.name, _batches(run))]
    return SavedStream(
        plan=plan.name,
        steps=tuple(run.dispatches.get(stage, run.version) for stage in range(len(run.stages.plans))),
        queues=tuple(
            SavedQueue(
                lag=queue.spec.lag, late=queue.spec.late, version=queue.version, groups=tuple(queue.groups.values())
            )
            for queue in run.loop.queues
        ),
        in_progress=tuple(steps),
        files=files,
        decided=SavedDecisions(
            counts=tuple(
                SavedCounts(
                    put_in=queue.spec.dispatch, taken=queue.spec.batch, dispatched=queue.dispatched, again=queue.again
                )
                for queue in run.loop.queues
            ),
            decisions=decisions,
            loads=run.loads.unlogged,
            loaded=run.prompts.loaded,
            next_prompts=dict(run.prompts.next),
            payloads=payloads,
        ),
    )


def _key(stages: QueueStages, queue: int, number: int) -> int:
    """The number of a queue's dispatch in a file; the loader's batches have negative numbers."""
    return number * len(stages.queues) + queue


def _batch_key(stages: QueueStages, stage: int, number: int) -> int:
    return -1 - (number * len(stages.plans) + stage)


def _pending(run: QueueRun, backend: Backend) -> tuple[dict[int, dict[Rank, list[Any]]], tuple[SavedPayloads, ...]]:
    """The handles of the rows in queues by dispatch and the rank that is to write them, and what they are."""
    pending, saved_payloads = dict[int, dict[Rank, list[Any]]](), list[SavedPayloads]()
    for queue, (dispatches, needed) in enumerate(zip(run.dispatched, run.needed_groups(), strict=True)):
        for number, dispatch in dispatches.items():
            remaining = [group for group in dispatch.groups if group in needed]
            key, rank = _key(run.stages, queue, number), _writer(run.stages.queues[queue], number)
            with run.breaking(number):
                payloads = dispatch.payloads(backend, remaining)
            pending[key] = {rank: [handle for _, handle in payloads]}
            saved_payloads.append(SavedPayloads(key, rank, tuple(slices for slices, _ in payloads)))
    return pending, tuple(saved_payloads)


def _writer(queue: StagedQueue, number: int) -> Rank:
    """The rank that writes a dispatch: those that may read it in turn, or those that made it if that is the driver."""
    steps = (step for plan in (queue.consumer, queue.producer) for step in plan.steps if step.group != DRIVER)
    step = next(steps)
    return step.group, step.ranks[number % len(step.ranks)]


def _batches(run: QueueRun) -> dict[int, tuple[Store, list[PayloadContent]]]:
    contents = dict[int, tuple[Store, list[PayloadContent]]]()
    for (stage, number), inputs in run.prompts.batches.items():
        columns = {
            ColumnSlice(node, 0, name, None): value
            for node, batch in inputs.items()
            for name, value in batch.__hf_columns__.items()
        }
        contents[_batch_key(run.stages, stage, number)] = Store(), [columns]
    return contents


@dataclass(frozen=True, slots=True)
class LoadedQueues:
    """The contents of queues in a file, for a run with these ``sizes``."""

    saved: SavedStream
    decided: SavedDecisions
    sizes: Mapping[Any, int]
    batches: Mapping[tuple[int, int], Mapping[int, Batch]]
    folder: str

    @property
    def decisions(self) -> int:
        """The number of decisions so far."""
        return self.decided.decisions

    def restore(self, run: QueueRun, backend: Backend) -> None:
        """Let a run continue with these groups, after the states of roles have been loaded.

        Raises:
            CheckpointError: HF905 if the backend cannot read the rows, HF906 if a file is damaged.
            ResourceError: HF518 if the backend has not read them.
        """
        for index, (held, counts) in enumerate(zip(self.saved.queues, self.decided.counts, strict=True)):
            groups = {group.number: replace(group, status="running") for group in held.groups}
            run.loop.queues[index] = replace(
                run.loop.queues[index],
                version=held.version,
                dispatched=counts.dispatched,
                groups=MappingProxyType(groups),
                again=counts.again,
            )
        keeping = loading_backend(backend, in_words(run.loop.queues))
        run.dispatches.update((stage, self.saved.steps[stage]) for stage in run.dispatches)
        run.prompts.loaded, run.prompts.batches = self.decided.loaded, dict(self.batches)
        run.prompts.next.update(self.decided.next_prompts)
        is_dispatched = any(counts.dispatched for counts in self.decided.counts)
        run.synced = is_dispatched and not run.stages.in_flight_sync.calls  # what was in flight was not saved
        handles = keeping.read_payloads(self.folder, [*self._files(run.stages)])
        counts_read, counts_saved = [*map(len, handles)], [len(payloads.slices) for payloads in self.decided.payloads]
        if counts_read != counts_saved:
            text = f"{type(backend).__name__}.read_payloads returned {counts_read} payloads by dispatch of the queues"
            raise ResourceError("HF518", f"{text} ({in_words(run.loop.queues)}), where {counts_saved} were saved")
        by_step = {
            payloads.number: tuple(zip(payloads.slices, of_step, strict=True))
            for payloads, of_step in zip(self.decided.payloads, handles, strict=True)
        }
        for step in self.saved.in_progress:
            number, index = divmod(step.number, len(run.stages.queues))
            queue, per_dispatch = run.stages.queues[index], self.decided.counts[index].put_in
            dispatch = Dispatched(
                number=number,
                queue=queue,
                table=row_table(queue.producer, self.sizes, step.queries),
                groups=tuple(range(number * per_dispatch, (number + 1) * per_dispatch)),
                sizes=self.sizes,
                queries=step.queries,
            )
            dispatch.restore(by_step.get(step.number, ()))
            run.dispatched[index][number] = dispatch
        run.loads.restore(self.decided.loads)
        run.show_all()

    def _files(self, stages: QueueStages) -> Iterator[tuple[Plan, SavedPayloads, QueueFile]]:
        """The plan that made the payloads of each dispatch, and the file that has them.

        Raises:
            CheckpointError: HF906 if there is no such file.
        """
        for payloads in self.decided.payloads:
            group, rank = payloads.rank
            files = self.saved.files.get(group, ())
            if rank >= len(files):
                raise CheckpointError(
                    "HF906", f"{self.folder} has no file of rank {rank} of '{group}' with rows of a queue"
                )
            yield stages.queues[payloads.number % len(stages.queues)].producer, payloads, files[rank]


def loaded(
    stages: QueueStages, sizes: Mapping[Any, int], folder: str, saved: SavedStream, decided: SavedDecisions
) -> LoadedQueues:
    """Read what the driver holds of the contents of queues.

    Raises:
        CheckpointError: HF905 if queues have other sizes in this run, HF906 if a file is damaged.
    """
    stores: dict[int, Store] = {}
    read_stores(folder, saved.files[DRIVER][0], lambda number: stores.setdefault(number, Store()))
    batches = dict[tuple[int, int], Mapping[int, Batch]]()
    sizes = dict(sizes)
    for key in sorted(stores, reverse=True):
        number, stage = divmod(-1 - key, len(stages.plans))
        batches[stage, number] = _batches_of(stages, stage, content_of(stores[key]))
        sizes |= bind_sizes(stages.plans[stage], batches[stage, number])
    current = [groups_of(queue, sizes) for queue in stages.queues]
    former = [(counts.put_in, counts.taken) for counts in decided.counts]
    if current != former:
        raise CheckpointError(
            "HF905",
            f"the state comes from a run with other queues: (put in, taken) {former} groups there, {current} here",
        )
    return LoadedQueues(saved, decided, sizes, batches, folder)


def copied(run: QueueRun) -> Callable[[QueueRun], None]:
    """Keep the handles of the work in progress; return the function with which a ``QueueRun`` continues from it."""
    run.settle()
    queues = [state.run_again(state.groups) for state in run.loop.queues]
    ended = [[replace(dispatch, step=None) for dispatch in dispatches.values()] for dispatches in run.dispatched]
    dispatches, synced, prompts = dict(run.dispatches), run.synced, run.prompts
    prompts_state = prompts.loaded, dict(prompts.next), dict(prompts.batches)

    def continue_with(resumed: QueueRun) -> None:
        resumed.loop.queues[:] = queues
        resumed.dispatches.update(dispatches)
        resumed.synced = synced
        resumed.prompts.loaded, resumed.prompts.next, resumed.prompts.batches = (
            prompts_state[0],
            dict(prompts_state[1]),
            dict(prompts_state[2]),
        )
        for by_number, of_queue in zip(resumed.dispatched, ended, strict=True):
            by_number.update((dispatch.number, replace(dispatch)) for dispatch in of_queue)
        resumed.show_all()

    return continue_with


def _batches_of(stages: QueueStages, stage: int, content: PayloadContent) -> dict[int, Batch]:
    """A batch of the loader, by the nodes of a stage."""
    columns: dict[int, dict[str, Any]] = {node: {} for node in stages.inputs[stage].values()}
    for part, value in content.items():
        columns[part.node][part.column] = value
    nodes = {node.id: node.op for node in stages.plans[stage].graph.inputs if isinstance(node.op, Input)}
    return {node: rebuild(op.record, columns[node]) for node, op in nodes.items()}
