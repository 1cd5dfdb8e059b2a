"""What the exchanges of ``benchmarks.gpu.exchanges`` cost their hosts: messages, operations and CPU time, without GPUs.

Weights have a 1,024th of the bytes, and so have buckets and the least part that travels by itself: a sync has the same
messages as that of the whole model. Messages leave and arrive at once, and the kernel of digests does nothing, so that
what is left is Python and torch's calls. A time is the median CPU time of one side; a way with digests and one without
take turns.

python -m benchmarks.exchange_costs --times 50
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

import torch

import hfdsl as hf
from benchmarks.digest_costs import NoKernel, as_on_a_gpu
from benchmarks.gpu.exchanges import Halves
from benchmarks.gpu.models import Size
from benchmarks.host_costs import Arriving
from hfdsl.plan import buckets
from hfdsl.plan.resharding import BUCKET_BYTES, compile_schedule
from hfdsl.plan.scheduled import ScheduledSync
from hfdsl.protocols.layouts import Layout, Replicas
from hfdsl.runtime.digests import DigestLayouts
from hfdsl.runtime.verification.leaving_digests import LeavingDigests
from hfdsl.runtime.weights import exchange
from hfdsl.runtime.weights.held_boxes import HeldBoxes
from hfdsl.runtime.weights.held_parts import HeldPart

SMALLER: Final = 1024
SIZES: Final[dict[str, Size]] = {"1.3B": Size(64, 172, 24, 1000), "7B": Size(128, 344, 32, 1000)}
WAYS: Final[Mapping[str, Layout]] = {"broadcast": Replicas(), "pieces": Halves()}


def smaller() -> AbstractContextManager[Any]:
    """Within this context, parts of a 1,024th of the bytes travel by themselves."""
    least = {name: getattr(buckets, name) // SMALLER for name in ("SEND_BYTES", "BROADCAST_BYTES")}
    patched: AbstractContextManager[Any] = mock.patch.multiple(buckets, **least)
    return patched


class Counted:
    """A communicator whose messages leave and arrive at once, and are not there; counts what it is called for."""

    supports_coalescing = True

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def send(self, *arguments: Any) -> Counted:
        self.counts["operations"] += 1
        return self

    recv = broadcast = send

    def _start_coalescing(self) -> None: ...

    def _end_coalescing(self) -> Counted:
        return self

    def wait(self) -> None:
        self.counts["waits"] += 1


class Keeper:
    """A role that says where it keeps its weights."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def held_weights(self, state: str) -> dict[str, torch.Tensor]:
        return self.weights

    @contextmanager
    def receiving(self, state: str) -> Iterator[Mapping[str, torch.Tensor]]:
        yield self.weights


class Sides:
    """Both sides of a sync from a trainer with this layout to an engine that has all of every weight."""

    def __init__(self, size: Size, layout: Layout) -> None:
        self.parameters, mesh, whole = size.parameters(), hf.Mesh(), Replicas()
        schedule = compile_schedule(self.parameters, layout, mesh, whole, mesh, bucket_bytes=BUCKET_BYTES // SMALLER)
        self.sync = ScheduledSync(
            state="policy",
            export=0,
            load=1,
            schedule=schedule,
            source_layout=layout,
            target_layout=whole,
            broadcast=schedule.is_whole,
        )
        self.sent, self.loaded = self._weights(), self._weights()
        self.layouts = DigestLayouts(), DigestLayouts()
        self.communicator = Counted()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {each.name: torch.zeros(each.shape, dtype=torch.bfloat16) for each in self.parameters}

    def send(self, *, verified: bool) -> None:
        digests = None
        if verified:
            pieces, places = {name: HeldPart(each) for name, each in self.sent.items()}, HeldBoxes.exported(self.sync)
            digests = LeavingDigests(pieces, places, 0, None, self.layouts[0], beside=True)
        exports = dict(exchange.exported([self.sync], 0, self.sent, "trainer.exported"))
        if digests is not None:
            digests.begin_again()
        with torch.no_grad():
            exchange.send([*exports.values()], self.communicator, "cpu")
        if digests is not None:
            digests.values()

    def receive(self, *, verified: bool) -> None:
        arriving = exchange.ArrivingWeights(self.sync, 0, {0: Arriving(self.communicator)}, "engine.load")
        if verified:
            arriving.digest(self.layouts[1])
        arriving.load(Keeper(self.loaded), lambda weights: None, in_place=True)
        if verified and arriving.digests() is None:
            raise ValueError("no digests")


def milliseconds(call: Callable[..., None], times: int) -> tuple[float, float]:
    """The median CPU time without digests, and what they add."""
    spans: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(times + 2):  # two warm up
        for verified, taken in spans.items():
            start = time.thread_time()
            call(verified=verified)
            if turn > 1:
                taken.append(time.thread_time() - start)
    plain, checked = (statistics.median(taken) * 1e3 for taken in spans.values())
    return plain, checked - plain


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args(arguments).times
    torch.set_num_threads(1)
    with smaller(), as_on_a_gpu(NoKernel()):
        for name, size in SIZES.items():
            for way, layout in WAYS.items():
                sides = Sides(size, layout)
                for side, call in (("sends", sides.send), ("receives", sides.receive)):
                    plain, added = milliseconds(call, times)
                    sides.communicator.counts.clear()
                    call(verified=False)
                    number = sides.communicator.counts
                    submitted = f"{number['waits']:4d} messages {number['operations']:4d} operations"
                    print(f"{name:5} {way:10} {side:9} {submitted} {plain:6.2f} ms, digests {added:+6.2f}", flush=True)


if __name__ == "__main__":
    main()
