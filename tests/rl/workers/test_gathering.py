"""Slices that are gathered in buckets, against the boxes that their layout states, and the bytes that a plan states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar
from unittest import mock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hfdsl as hf
from hfdsl.protocols.boxes import total
from hfdsl.protocols.collectives import AxisGroup, peers
from hfdsl.protocols.layouts import Parameter
from hfdsl.rl import workers as w
from hfdsl.rl.models.generation_slices import GenerationSlices
from hfdsl.rl.models.loading import load
from hfdsl.rl.models.policies import policy
from hfdsl.rl.workers import layouts
from tests.rl.engines.test_ranks import SECONDS, ThreadGroup
from tests.rl.test_state_bytes import SIZES
from tests.rl.workers.live_bytes import LiveBytes

T = TypeVar("T")


class CountedGroup(ThreadGroup):
    """A rank that counts its collectives, and gets what it gathers in one tensor of its own."""

    gathers, received = 0, 0

    def begin_gathers_into(self, gathered: Sequence[Any], values: Sequence[Any]) -> Callable[[], None]:
        arrived = super().begin_gathers_into(gathered, values)
        self.meeting.wait(SECONDS)
        self.values[self.rank] = None  # nobody reads it any more
        self.gathers += 1
        self.received += sum(each.nbytes for each in gathered) - sum(each.nbytes for each in values)
        return arrived


@dataclass(frozen=True)
class Case:
    mesh: hf.Mesh
    model: w.ModelConfig
    bucket: int

    def groups(self, axis: str) -> list[AxisGroup]:
        """Each rank's, along an axis."""
        groups: dict[int, AxisGroup] = {}
        for rank in range(self.mesh.world_size):
            ranks = peers(self.mesh, rank, axis)
            if rank not in groups:
                values, barrier = [None for _ in ranks], threading.Barrier(len(ranks))
                groups |= {rank: CountedGroup(i, values, barrier) for i, rank in enumerate(ranks)}
        return [groups[rank] for rank in range(self.mesh.world_size)]

    def cut(self, parameters: Iterable[Parameter]) -> list[int]:
        """The bytes of a rank's slices, of the parameters that ``tp`` slices."""
        layout = layouts.model_layout(self.model, self.mesh.tp)
        assert layout is not None
        held = [
            (total(layout.boxes(parameter, self.mesh, 0)) * parameter.item_bytes, parameter.bytes)
            for parameter in parameters
        ]
        return [size for size, whole in held if size < whole]

    def each(self, body: Callable[[int], T]) -> list[T]:
        """What a body returns on each rank."""
        with ThreadPoolExecutor(self.mesh.world_size) as pool:
            return [future.result(SECONDS) for future in [pool.submit(body, i) for i in range(self.mesh.world_size)]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tp, gen_tp = draw(st.sampled_from([(2, 1), (4, 1), (4, 2)]))
    kind = draw(st.sampled_from(["llama", "qwen2", "qwen3"]))
    values = {
        **SIZES,
        "model_type": kind,
        "num_key_value_heads": 4,
        "vocab_size": draw(st.sampled_from([40, 42, 43])),  # 42: over two ranks, not over four
        "tie_word_embeddings": draw(st.booleans()),
        **({"head_dim": 8} if kind == "qwen3" else {}),
    }
    model = w.ModelConfig(config=values, dtype=draw(st.sampled_from(["float32", "bfloat16"])))
    return Case(hf.Mesh(tp=tp, gen_tp=gen_tp), model, draw(st.sampled_from([0, 300, 2_000, 2**25])))


def element_by_element(full: torch.Tensor, box: tuple[tuple[int, int], ...]) -> list[Any]:
    """The elements of a box, in order, moved one by one."""
    values = full.tolist()

    def at(index: tuple[int, ...]) -> Any:
        element = values
        for place in index:
            element = element[place]
        return element

    return [at(index) for index in product(*(range(*ends) for ends in box))]


def runs(sizes: list[int], most: int) -> list[int]:
    """The bytes of buckets."""
    found = [0]
    for size in sizes:
        if found[-1] and found[-1] + size > most:
            found.append(0)
        found[-1] += size
    return found


@settings(max_examples=12)
@given(cases())
def test_every_rank_has_the_elements_of_its_layout_and_what_the_plan_says(case: Case) -> None:
    mesh, tp, neighbors, replicas = case.mesh, *map(case.groups, ("tp", "gen_tp", "micro_dp"))
    config = w.ActorConfig(case.model, w.GenerationConfig(max_tokens=1))
    layout, whole = layouts.generation_layout(mesh, config), dict(load(case.model).named_parameters())
    assert layout is not None
    with mock.patch.object(layouts, "GATHERED_BYTES", case.bucket):
        planned = layouts.reshards(mesh, config)["generate"]

    policies = [policy(case.model, 1.0, group) for group in tp]  # they draw from one stream of random numbers

    def gathered(rank: int) -> tuple[int, int]:
        learns = policies[rank]
        before = {name: parameter.clone() for name, parameter in learns.named_parameters()}
        fold = mesh.tp // mesh.gen_tp_size
        slices = GenerationSlices(learns, neighbors[rank], replicas[rank], fold, case.bucket)
        with LiveBytes(learns.parameters()) as live, slices.gathered():
            held = live.bytes
        with slices.gathered() as samples:
            for name, parameter in samples.named_parameters():
                full = whole[name.removeprefix("model.")]
                [box] = layout.boxes(Parameter(name, tuple(full.shape)), mesh, rank)
                assert parameter.flatten().tolist() == element_by_element(full, box), name
        assert all(torch.equal(parameter, before[name]) for name, parameter in learns.named_parameters())
        return held, live.peak

    for rank, (held, peak) in enumerate(case.each(gathered)):
        # Of a vocabulary that only gen_tp divides, the rank has all, and so its generation slice.
        both = sum(
            max(total(side.boxes(parameter, mesh, rank)) for side in (planned.held, planned.needed))
            * parameter.item_bytes
            for parameter in planned.parameters
        )
        assert held == both
        assert both < peak <= both + planned.staging
        group, sizes = replicas[rank], case.cut(planned.parameters)
        assert isinstance(group, CountedGroup)
        assert group.gathers == 2 * len(runs(sizes, case.bucket))
        assert group.received == 2 * sum(sizes) * (mesh.micro_dp_size - 1)
        if len(runs(sizes, case.bucket)) == 1:
            assert peak == both + planned.staging
