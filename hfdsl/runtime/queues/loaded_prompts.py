"""The prompts of a loader, which the first stages dispatch one by one.

A worked example: batches have four prompts, and prompts 1 and 2 were dropped. A dispatch of four takes them again,
together with 4 and 5, the first prompts of the next batch; ``next`` is then 6. A batch stays here as long as its
prompts may be dispatched again.

Two stages that dispatch prompts read different inputs of the same batches, each at its own pace: what a stage has not
dispatched yet waits here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hfdsl.errors import HfError
from hfdsl.graph.program import Input
from hfdsl.plan.plan import Plan
from hfdsl.plan.sizes import bind_sizes
from hfdsl.runtime.inputs import loaded_inputs
from hfdsl.runtime.loading import END, BatchSource
from hfdsl.runtime.queues.groups import groups_of
from hfdsl.runtime.queues.stage_plans import QueueStages
from hfdsl.runtime.schedule import QueueSpec
from hfdsl.types.batches import Batch, rebuild
from hfdsl.types.joining import picked_rows, rows_after_rows
from hfdsl.types.ragged import Jagged


class LoadedPrompts:
    """The batches of a loader whose prompts may be dispatched; ``loaded`` counts all batches.

    ``next`` has for each stage the first prompt that it has not dispatched.
    """

    def __init__(self, plan: Plan, stages: QueueStages, specs: Sequence[QueueSpec], loaded: int) -> None:
        self._plan, self._stages, self._specs = plan, stages, specs
        self.loaded = loaded
        self.next = {stage: loaded * self._per_batch(stage) for stage in stages.links.sources}
        self.batches: dict[tuple[int, int], Mapping[int, Batch]] = {}  # by stage and number
        self._put_in: tuple[tuple[Any, ...], list[int | None]] = ((), [])  # groups by queue, for the last sizes

    def prompts(self, stage: int, source: BatchSource, first: list[Any], *, waits: bool) -> Iterator[int | None]:
        """The numbers of the prompts that a stage has not dispatched; ``first`` are batches read ahead.

        It ``waits`` for each batch, or yields None while the source has not delivered it.
        """
        per_batch, number = self._per_batch(stage), self.next[stage]
        while True:
            while number < self.loaded * per_batch:  # which counts those, too, that another stage has asked for
                yield number
                number += 1
            if not (first or waits):
                source.ask()
                if source.pending:
                    yield None
                    continue  # a checkpoint may have loaded the batch meanwhile
            batch = first.pop() if first else source.next()
            if batch is END:
                return
            self.load(batch)

    def load(self, batch: Any) -> None:
        """Hold another batch of the loader; errors as for ``Running.step``.

        Raises:
            HfError: HF765 if it puts in a different number of groups than the batches before it, or its rows are of
                other shapes although prompts of several batches may be dispatched together.
        """
        by_stage = self._checked(batch)
        for stage, inputs in by_stage.items():
            self._check_alike(stage, inputs)
        for stage, inputs in by_stage.items():
            self.batches[stage, self.loaded] = inputs
        self.loaded += 1

    def undispatched(self, stage: int) -> int:
        """The number of loaded prompts that a stage has not dispatched."""
        return self.loaded * self._per_batch(stage) - self.next[stage]

    def _per_batch(self, stage: int) -> int:
        return self._specs[self._stages.links.fed_by(stage)[0]].dispatch

    def _checked(self, batch: Any) -> dict[int, Mapping[int, Batch]]:
        """A batch of the loader: its inputs by stage and node.

        Raises:
            HfError: HF765 if it puts in a different number of groups than the first batch; and as ``Running.step``.
        """
        names = {node.id: node.label for node in self._plan.graph.inputs}
        named = {names[node]: input_batch for node, input_batch in loaded_inputs(self._plan, batch).items()}
        by_stage: dict[int, Mapping[int, Batch]] = {
            stage: {node: named[name] for name, node in self._stages.inputs[stage].items()}
            for stage in self._stages.links.sources
        }
        sizes = self.sizes(by_stage)
        bound = tuple(sizes.items())
        if bound != self._put_in[0]:
            self._put_in = bound, [groups_of(queue, sizes)[0] for queue in self._stages.queues]
        for queue, spec, put_in in zip(self._stages.queues, self._specs, self._put_in[1], strict=True):
            if put_in != spec.dispatch:
                raise HfError(
                    "HF765",
                    f"a batch of the loader of '{self._plan.name}' puts {put_in} groups into '{queue.name}', but those "
                    f"before put in {spec.dispatch}; give every step equally many prompts",
                )
        return by_stage

    def _check_alike(self, stage: int, inputs: Mapping[int, Batch]) -> None:
        """Where prompts are dispatched again, together with later ones, their rows must form one column."""
        previous = self.batches.get((stage, self.loaded - 1))
        behind = [self._specs[index] for index in self._stages.links.behind(stage)]
        if previous is None or not any(spec.late == "refill" for spec in behind):
            return
        names = {node: name for name, node in self._stages.inputs[stage].items()}
        for node, batch in inputs.items():
            for column, value in batch.__hf_columns__.items():
                shape, former = (_row_shape(rows) for rows in (value, previous[node].__hf_columns__[column]))
                if shape != former:
                    raise HfError(
                        "HF765",
                        f"column '{column}' of '{names[node]}' {shape} in a batch of the loader of "
                        f"'{self._plan.name}', and {former} in the one before: late=\"refill\" dispatches prompts of "
                        "several batches together; give all the same columns, padded to one length or ragged",
                    )

    def sizes(self, by_stage: Mapping[int, Mapping[int, Batch]]) -> dict[Any, int]:
        """The sizes of dims from inputs, with those of the plan."""
        sizes = dict[Any, int]()
        for stage, inputs in by_stage.items():
            sizes |= bind_sizes(self._stages.plans[stage], inputs)
        return sizes

    def dispatch(self, stage: int, prompts: Sequence[int]) -> Mapping[int, Batch]:
        """The rows of these prompts, by input."""
        per_batch = self._per_batch(stage)
        first = prompts[0] // per_batch
        if list(prompts) == list(range(first * per_batch, (first + 1) * per_batch)):
            return self.batches[stage, first]
        return {node: self._picked(stage, node, prompts) for node in self.batches[stage, first]}

    def dispatched(self, stage: int, prompts: Sequence[int]) -> None:
        """Mark prompts as dispatched."""
        self.next[stage] = max(self.next[stage], *(prompt + 1 for prompt in prompts))

    def _picked(self, stage: int, node: int, prompts: Sequence[int]) -> Batch:
        per_batch = self._per_batch(stage)
        parts = list[tuple[Batch, list[int]]]()
        for prompt in prompts:
            batch = self.batches[stage, prompt // per_batch][node]
            per_prompt = len(batch) // per_batch
            place = prompt % per_batch
            parts.append((batch, list(range(place * per_prompt, (place + 1) * per_prompt))))
        op = self._stages.plans[stage].node(node).op
        record = op.record if isinstance(op, Input) else type(parts[0][0])
        columns = {}
        for name in parts[0][0].__hf_columns__:
            values = [picked_rows(batch.__hf_columns__[name], rows) for batch, rows in parts]
            columns[name] = None if values[0] is None else rows_after_rows(values)
        return rebuild(record, columns)

    def forget(self, stage: int, used: Iterable[int]) -> None:
        """Drop batches whose prompts have all been dispatched, except batches with ``used`` prompts."""
        per_batch = self._per_batch(stage)
        used_batches = {prompt // per_batch for prompt in used}
        dispatched = [
            (reader, number)
            for reader, number in self.batches
            if reader == stage and number not in used_batches and (number + 1) * per_batch <= self.next[stage]
        ]
        for key in dispatched:
            if key[1] != self.loaded - 1:
                del self.batches[key]


def _row_shape(value: Any) -> str:
    """The shape of each row of a raw column, in words; rows of lists and ragged columns have any."""
    if value is None:
        return "is absent"
    return "has rows of any length" if isinstance(value, (list, Jagged)) else f"has rows of shape {[*value.shape[1:]]}"
