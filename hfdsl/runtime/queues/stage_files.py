"""The contents of queues that decide during a run: in a checkpoint, and for a run that goes back to it.

Besides numbers and versions, a file has the rows of every group that is on its way or may be read for such a group, by
queue and dispatch, and the loader's batches whose prompts may still be dispatched, by stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.graph.program import Input
from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import DRIVER
from hfdsl.plan.rows import row_table
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.backend import Backend
from hfdsl.runtime.queues.dispatched import Dispatched
from hfdsl.runtime.queues.files import SavedCounts, SavedDecisions, SavedQueue, SavedStep, SavedStream
from hfdsl.runtime.queues.groups import groups_of
from hfdsl.runtime.queues.run import QueueRun
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.rank.store import PayloadContent, Store
from hfdsl.runtime.saving.store_files import read_stores, write_stores
from hfdsl.types.batches import Batch, rebuild


def saved(run: QueueRun, plan: str, decisions: int, backend: Backend, folder: str) -> SavedStream:
    """Save the contents of the queues, once they are complete.

    Raises:
        CheckpointError: HF906 if a file cannot be written, HF908 if a queue holds a value that no file can hold.
    """
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
    return SavedStream(
        plan=plan,
        steps=tuple(run.dispatches.get(stage, run.version) for stage in range(len(run.stages.plans))),
        queues=tuple(
            SavedQueue(
                lag=queue.spec.lag, late=queue.spec.late, version=queue.version, groups=tuple(queue.groups.values())
            )
            for queue in run.loop.queues
        ),
        in_progress=tuple(steps),
        files={DRIVER: [write_stores(folder, DRIVER, plan, _contents(run, backend))]},
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
        ),
    )


def _key(stages: QueueStages, queue: int, number: int) -> int:
    """The number of a queue's dispatch in a file; the loader's batches have negative numbers."""
    return number * len(stages.queues) + queue


def _batch_key(stages: QueueStages, stage: int, number: int) -> int:
    return -1 - (number * len(stages.plans) + stage)


def _contents(run: QueueRun, backend: Backend) -> dict[int, tuple[Store, list[PayloadContent]]]:
    contents = dict[int, tuple[Store, list[PayloadContent]]]()
    for queue, (dispatches, needed) in enumerate(zip(run.dispatched, run.needed_groups(), strict=True)):
        for number, dispatch in dispatches.items():
            remaining = [group for group in dispatch.groups if group in needed]
            with run.breaking(number):
                contents[_key(run.stages, queue, number)] = Store(), dispatch.contents(backend, remaining)
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
    contents: Mapping[int, PayloadContent]

    @property
    def decisions(self) -> int:
        """The number of decisions so far."""
        return self.decided.decisions

    def restore(self, run: QueueRun, backend: Backend) -> None:
        """Let a run continue with these groups, after the states of roles have been loaded."""
        for index, (held, counts) in enumerate(zip(self.saved.queues, self.decided.counts, strict=True)):
            groups = {group.number: replace(group, status="running") for group in held.groups}
            run.loop.queues[index] = replace(
                run.loop.queues[index],
                version=held.version,
                dispatched=counts.dispatched,
                groups=MappingProxyType(groups),
                again=counts.again,
            )
        run.dispatches.update((stage, self.saved.steps[stage]) for stage in run.dispatches)
        run.prompts.loaded, run.prompts.batches = self.decided.loaded, dict(self.batches)
        run.prompts.next.update(self.decided.next_prompts)
        is_dispatched = any(counts.dispatched for counts in self.decided.counts)
        run.synced = is_dispatched and not run.stages.flights.calls  # what was in flight was not saved
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
            dispatch.restore(backend, self.contents[step.number])
            run.dispatched[index][number] = dispatch
        run.loads.restore(self.decided.loads)
        run.show_all()


def loaded(
    stages: QueueStages, sizes: Mapping[Any, int], folder: str, saved: SavedStream, decided: SavedDecisions
) -> LoadedQueues:
    """Read the contents of queues.

    Raises:
        CheckpointError: HF905 if queues have other sizes in this run, HF906 if a file is damaged.
    """
    stores: dict[int, Store] = {}
    read_stores(folder, saved.files[DRIVER][0], lambda number: stores.setdefault(number, Store()))
    contents = {number: _content(store) for number, store in stores.items()}
    batches = dict[tuple[int, int], Mapping[int, Batch]]()
    sizes = dict(sizes)
    for key in sorted(contents, reverse=True):
        if key < 0:
            number, stage = divmod(-1 - key, len(stages.plans))
            batches[stage, number] = _batches_of(stages, stage, contents[key])
            sizes |= bind_sizes(stages.plans[stage], batches[stage, number])
    current = [groups_of(queue, sizes) for queue in stages.queues]
    former = [(counts.put_in, counts.taken) for counts in decided.counts]
    if current != former:
        raise CheckpointError(
            "HF905",
            f"the state comes from a run with other queues: (put in, taken) {former} groups there, {current} here",
        )
    return LoadedQueues(saved, decided, sizes, batches, contents)


def copied(run: QueueRun, backend: Backend) -> Callable[[QueueRun], None]:
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


def _content(store: Store) -> PayloadContent:
    """The content read from a file."""
    return {ColumnSlice(node, chunk, name, rows): value for node, chunk, name, rows, value in store.received_values()}


def _batches_of(stages: QueueStages, stage: int, content: PayloadContent) -> dict[int, Batch]:
    """A batch of the loader, by the nodes of a stage."""
    columns: dict[int, dict[str, Any]] = {node: {} for node in stages.inputs[stage].values()}
    for part, value in content.items():
        columns[part.node][part.column] = value
    nodes = {node.id: node.op for node in stages.plans[stage].graph.inputs if isinstance(node.op, Input)}
    return {node: rebuild(op.record, columns[node]) for node, op in nodes.items()}
