"""What digests add to the CPU time of a sync's hosts, with a kernel that does nothing.

The sync is that between roles of ``benchmarks.host_costs``. Weights are on the CPU and handled as on a GPU, but nothing
reads them: what is left is Python and torch's calls. A row is the difference between a sync under verification and
another one, which take turns.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch

from hfdsl.plan.plan import Step
from hfdsl.protocols.call import Call, in_call
from hfdsl.runtime import digests
from hfdsl.runtime.verification.rank_digests import RankDigests
from hfdsl.runtime.verification.verified_syncs import VerifiedSync
from hfdsl.runtime.weights.exchange import ArrivingWeights

SIDES: Final = ("a sender's digests", "a receiver's digests")


class NoKernel:
    """A kernel that does nothing, for any grid."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, *arguments: Any, **constants: Any) -> None:
        """Return at once."""


@contextmanager
def as_on_a_gpu(kernel: Any) -> Iterator[None]:
    """Within this context, digests of weights on the CPU are taken as on a GPU, by this kernel."""
    fused = _fused_digests()
    on_host = digests.BegunDigests._begin

    def begin(self: Any, index: int, part: torch.Tensor, shape: Sequence[int], starts: tuple[int, ...]) -> None:
        on_device = isinstance(self._on_devices, fused.FusedSums)
        (self._on_devices.add if on_device else on_host.__get__(self))(index, part, shape, starts)

    with (
        mock.patch.object(fused, "_kernel", kernel),
        mock.patch.object(digests, "device_sums", fused.FusedSums),
        mock.patch.object(digests.BegunDigests, "_begin", begin),
    ):
        yield


def _fused_digests() -> Any:
    """The module with the kernel, which is not compiled where Triton is not installed."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.__dict__.update(jit=lambda **options: lambda body: body, language=language)
    language.__dict__.update(constexpr=int)
    stand_ins = {} if find_spec("triton") else {"triton": triton, "triton.language": language}
    sys.modules.update(stand_ins)
    try:
        from hfdsl.runtime.verification import fused_digests
    finally:
        for name in stand_ins:
            del sys.modules[name]
    return fused_digests


class VerifiedSides:
    """Both sides of a sync, with digests and without; ``send`` exports weights, ``arriving`` are those of a load."""

    def __init__(
        self,
        steps: tuple[Step, Step],
        workers: tuple[Any, Any],
        send: Callable[[Any], None],
        arriving: Callable[[], ArrivingWeights],
    ) -> None:
        (self._export, self._load), (self._actor, self._sampler) = steps, workers
        self._send, self._arriving = send, arriving
        self._ranks = RankDigests(), RankDigests()
        dtypes = dict.fromkeys(self._sampler.held_weights("policy"), "bfloat16")
        for rank in self._ranks:
            rank.want({VerifiedSync("policy", "actor", "sampler"): dtypes})

    def send(self, *, verified: bool) -> None:
        """Export and send; take digests if ``verified``."""
        held, digests_of_rank = self._actor.held_weights("policy"), self._ranks[0]
        if verified:
            digests_of_rank.take(self._export, self._actor, held, None, exchanged=True, leaves=True)
            digests_of_rank.begin_sent()
        self._send(held)
        if verified and not [report.to_wire() for report in digests_of_rank.take_sent()]:
            raise ValueError("the sender has reported nothing")

    def receive(self, *, verified: bool) -> None:
        """Receive and load; take digests if ``verified``."""
        weights, digests_of_rank = self._arriving(), self._ranks[1]
        watched = digests_of_rank.of_arriving(self._load, {"weights": weights}) if verified else None
        weights.load(self._sampler, lambda _: None, in_place=True)
        if verified:
            digests_of_rank.take(self._load, self._sampler, None, watched, exchanged=True, leaves=True)
            if not [report.to_wire() for report in digests_of_rank.reported()]:
                raise ValueError("the receiver has reported nothing")

    def seconds(self, times: int) -> Mapping[str, float]:
        """What digests add to the median CPU time of each side."""
        spans: dict[tuple[str, bool], list[float]] = {}
        with as_on_a_gpu(NoKernel()), in_call(Call(0, 0, 0, 0)):
            for turn in range(times + 2):  # two warm up
                for verified in (False, True):
                    for side, call in zip(SIDES, (self.send, self.receive), strict=True):
                        start = time.thread_time()
                        call(verified=verified)
                        if turn > 1:
                            spans.setdefault((side, verified), []).append(time.thread_time() - start)
        return {side: statistics.median(spans[side, True]) - statistics.median(spans[side, False]) for side in SIDES}
