"""The weights of an engine in its own memory, which a sampler has open, and writes when new ones are synced.

A worked example
----------------
A sampler and its engine, with the version of the weights in the engine's memory and in the sampler's host memory. ``-``
is no version, ``1 > 2`` a copy that is under way. Only the host's memory outlives an engine, so it has to follow::

    sampler                     engine   host     newest
    is constructed                -      1        host
    generates                     1      1        host     the engine loads from the host
    a sync begins                 -      1        none     the engine refuses to sample, and drops its cached keys and
                                                           values, while weights arrive in its memory
    it ends                       2      1 > 2    engine
    generates                     2      1 > 2    engine
    saves its state               2      2        engine   after the copy
    a sync begins and ends        3      2 > 3    engine
    the engine is killed          3      2 > 3    engine   its memory stays while the sampler has it open
    generates                     3      3        host     after the copy; another engine loads from the host
    a sync begins, and fails             3        none     the engine ends, and the sampler refuses to sample
    a sync begins and ends               4        host     weights arrive on the host
    generates                     4      4        host     another engine loads from the host
    loads a checkpoint            4      5        host
    is offloaded                         5        host     the engine ends, and frees its memory
    generates                     5      5        host     another engine loads; it can sleep, and shares nothing

Who owns the memory
-------------------
*The engine's weights* are allocated and freed by its process. The sampler opens them once for every process: by CUDA
IPC on a GPU, as shared memory on a CPU. From ``EngineProcess.write`` to ``written`` only the sampler uses them. The
engine's device has finished before, and meanwhile the engine has no version, and only drops its cached keys and values.
At all other times both only read, so the host's copy, digests and the engine's steps may overlap. *The host's weights*
belong to the sampler alone. The copy that follows runs on a thread and a stream of its own, and ``settle`` waits for
it. Code calls it before it reads or writes the host's weights, and before it overwrites the engine's, or ends the
engine or puts it to sleep. On a CPU, which has no streams, the copy is made when it is waited for: the latest possible
time.

A killed engine leaves whole weights, or weights that are not used: it never writes them while a copy is under way.
CUDA keeps memory until the last process that has opened it closes it, as a host does. ``settle`` closes a dead engine's
before another one starts, which needs the room.

An exchange that fails has written some weights, and a peer that is late may write more. So the engine ends, as after
any load that fails, and that memory is not read again.

Where weights go through the host
---------------------------------
An engine is written only while it has the newest version: what is not sent keeps its value. So the first sync, one
after a restart, a failure or a checkpoint, goes through the host. All syncs do of

- an engine that can sleep. Memory that vLLM's sleep mode frees and gets again is mapped by ``cuMemMap``, which CUDA IPC
  refuses to share. So the engine of a sampler that no plan offloads starts without that mode. If it is offloaded all
  the same, by a plan that came later, the engine ends;
- an engine without places for all weights (``hfdsl.rl.engines.places``), in the dtype in which they arrive;
- an engine with several processes, each of which has slices, while the sampler receives whole weights;
- an engine with an adapter, because what arrives are its matrices;
- a sampler in flight. Its weights arrive while the engine takes decode steps, each of which must read one version: they
  need a second place to arrive in, and the host's memory is that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import torch

from hfdsl.plan.buckets import filled
from hfdsl.rl.engines.handle import EngineHandle
from hfdsl.rl.engines.process import EngineProcess
from hfdsl.runtime.weights.held_parts import FixedParts, HeldPart

COPIED_AT_ONCE: Final = 32 * 2**20
"""The bytes on their way to the host at once. A GPU copies to the host in order, so a result waits for these alone."""


class SharedWeights:
    """The memory of an engine's weights, by their names on the host, and the copy of them on the host."""

    def __init__(self, engine: EngineHandle, host: Mapping[str, torch.Tensor]) -> None:
        self._engine, self._host = engine, host
        self._process: EngineProcess | None = None
        self._memory: FixedParts | None = None  # of this process
        self._is_newest = False
        self._copier = ThreadPoolExecutor(1, "weights-to-host")  # beginning hundreds of copies takes milliseconds
        self._finish_copy: Callable[[], None] | None = None

    @property
    def newest(self) -> FixedParts | None:
        """The engine's memory while it has the newest weights, or they arrive there; None if the host has them."""
        return self._memory if self._is_newest else None

    @contextmanager
    def writing(self, version: int) -> Iterator[FixedParts | None]:
        """The memory to write the next version to, all of it; None if it is the host's.

        Raises:
            ResourceError, DeadlineError: HF954, HF955, as ``EngineProcess``, before or after all is written.
        """
        self.overwrite_host()
        process, memory = self._engine.process, self._open(version)
        if memory is None:
            yield None
            return
        process.write()
        self._is_newest = True
        try:
            yield memory
        except BaseException:
            process.close()  # what is still under way to its memory may arrive later
            raise
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # no other process knows this stream
        if process.alive:  # else the next one loads from the host
            process.written(version + 1)
        self._finish_copy = begin_copy(self._host, memory, self._copier)

    def settle(self) -> None:
        """Wait until the host has the newest weights, and close the memory of an engine that has ended."""
        if self._finish_copy is not None:
            self._finish_copy()
            self._finish_copy = None
        if self._process is not None and not self._process.alive:
            self.close()

    def overwrite_host(self) -> None:
        """Wait for the copy, since newer weights are about to be written to the host."""
        self.settle()
        self._is_newest = False

    def close(self) -> None:
        """Close the engine's memory, after the copy."""
        if self._finish_copy is not None:
            self.settle()
        self._process, self._memory = None, None

    def _open(self, version: int) -> FixedParts | None:
        """The engine's memory, if it has this version in it."""
        process = self._engine.process
        if self._engine.start.sleeps or not process.alive or process.versions != {"weights": version}:
            return None
        if process is not self._process:
            self._process, self._memory = process, self._in_names_of_host(process.share())
        return self._memory

    def _in_names_of_host(self, shared: Mapping[str, torch.Tensor] | None) -> FixedParts | None:
        """Shared weights by their names on the host; None if they are not the same weights."""
        named = {name: (shared or {}).get(name.removeprefix("model.")) for name in self._host}
        memory = {name: weight for name, weight in named.items() if weight is not None}
        alike = all(weight.dtype == self._host[name].dtype for name, weight in memory.items())
        return whole_parts(memory) if alike and len(memory) == len(self._host) else None


def whole_parts(weights: Mapping[str, torch.Tensor]) -> FixedParts:
    """Whole weights, which keep their memory."""
    return FixedParts({name: HeldPart(weight) for name, weight in weights.items()})


def begin_copy(
    targets: Mapping[str, torch.Tensor], sources: Mapping[str, HeldPart], copier: Executor
) -> Callable[[], None]:
    """Begin to copy weights that have arrived to page-locked memory; return what waits for it."""
    if not torch.cuda.is_available():
        return lambda: _copy(targets, sources)
    return copier.submit(_copy_on_own_stream, targets, sources, torch.cuda.current_device()).result


def _copy_on_own_stream(targets: Mapping[str, torch.Tensor], sources: Mapping[str, HeldPart], device: int) -> None:
    sized = ((named, named[1].tensor.nbytes) for named in sources.items())
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
        for together, _ in filled(sized, COPIED_AT_ONCE):
            _copy(targets, dict(together))
            torch.cuda.current_stream().synchronize()


@torch.no_grad()
def _copy(targets: Mapping[str, torch.Tensor], sources: Mapping[str, HeldPart]) -> None:
    for name, source in sources.items():
        targets[name].copy_(source.tensor, non_blocking=True)
