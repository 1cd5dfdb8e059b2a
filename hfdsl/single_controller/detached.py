"""The workers of a group that another program has started, and that still run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from hfdsl.errors import ResourceError
from hfdsl.protocols.worker import RankContext
from hfdsl.single_controller.stacks import WatchedProcess
from hfdsl.single_controller.waiting import Waiter


@dataclass(frozen=True, slots=True)
class RunningWorkers:
    """All workers of a running group, by rank; without ``names`` if they were given by their handles."""

    workers: tuple[Any, ...]
    names: tuple[str, ...]
    contexts: tuple[RankContext, ...]
    processes: tuple[WatchedProcess | None, ...]


def running_workers(names: Sequence[str], handles: Sequence[Any] | None, waiter: Waiter) -> RunningWorkers:
    """The workers of these handles, or else of these names.

    Raises:
        ResourceError: HF521 if they do not form a group.
        DeadlineError: HF807 if one of them is busy for longer than the deadline.
    """
    try:
        workers = list(handles) if handles is not None else [ray.get_actor(name) for name in names]
    except ValueError as error:
        raise ResourceError("HF521", f"no worker of this name runs in this namespace: {error}") from None
    if not workers:
        raise ResourceError("HF521", "from_detached needs the worker_names of a running group, got none")
    stranger = next((worker for worker in workers if not hasattr(worker, "hf_context")), None)
    if stranger is not None:
        raise ResourceError("HF521", f"{stranger!r} is not a worker of a group; give the workers that a group lists")
    contexts: list[RankContext] = waiter.fetch([worker.hf_context.remote() for worker in workers], "from_detached")
    processes = waiter.fetch([worker.hf_process.remote() for worker in workers], "from_detached")
    ranks, size = [context.rank for context in contexts], contexts[0].world_size
    if sorted(ranks) != list(range(size)):
        raise ResourceError("HF521", f"these workers are ranks {ranks} of {size}; give all workers of one group")
    by_rank = sorted(range(size), key=lambda index: ranks[index])
    return RunningWorkers(
        workers=tuple(workers[index] for index in by_rank),
        names=tuple(names[index] for index in by_rank) if names else (),
        contexts=tuple(contexts[index] for index in by_rank),
        processes=tuple(processes[index] for index in by_rank),
    )
