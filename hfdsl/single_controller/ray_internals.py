"""All private and experimental interfaces of Ray that hfdsl uses, which any release of Ray may change.

``ray_versions.TESTED_VERSIONS`` are the tested versions; others cause an error or a warning (HF526).

| what | why |
|---|---|
| `canonicalize_bootstrap_address` | where `ray.init` would connect: tried before its minutes of retries |
| `TensorTransportManager`, its metadata, `register_tensor_transport` | the transport of `runtime.transports.direct` |
| `transport_manager_info` | whether that transport is registered: a second registration fails |
| `RDT_FETCH_FAIL_TIMEOUT_SECONDS` | how long a reader waits for tensors; Ray reads it at every transfer |
| `rdt_manager.rdt_store` | what keeps fetched tensors in a process |
| `_rdt_manager` | the manager of transfers, which outlives its cluster (`shut_down`) |
| `_actor_id` | which actor a handle is of: two handles of one actor are not equal |
| `ActorClass` metadata, `_default_options` | the class and the options behind `@ray.remote` |
| `_ray_trace_ctx` | the parameter that Ray's tracing adds to a method |
| `state.actors` | which actors are dead (`hfdsl.runtime.failures`), or restart |
| `state.actors`, reference counts, `_monitor_failures` | what a test leaves on a cluster (`hfdsl.testing.plugin`) |
| `internal_kv` | where a process that Ray restarts finds its rank again |
| `CloudPickler` | pickles a value without its tensors (`hfdsl.runtime.transports.serialization`) |
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

import ray

from hfdsl.single_controller.ray_versions import untried

try:
    from ray._private import ray_constants, state
    from ray._private import worker as ray_worker
    from ray._private.services import canonicalize_bootstrap_address
    from ray.actor import ActorClass
    from ray.cloudpickle.cloudpickle import CloudPickler
    from ray.experimental import internal_kv, register_tensor_transport
    from ray.experimental.rdt.tensor_transport_manager import (
        CommunicatorMetadata,
        TensorTransportManager,
        TensorTransportMetadata,
    )
    from ray.experimental.rdt.util import transport_manager_info
except ImportError as error:
    raise untried(ray.__version__, error) from error

__all__ = [
    "TRACE_PARAMETER",
    "CloudPickler",
    "CommunicatorMetadata",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "actor_class",
    "actor_id",
    "actor_options",
    "actors",
    "bootstrap_address",
    "direct_transfers",
    "forget_start",
    "is_actor_class",
    "is_restarting",
    "keep_start",
    "kept_start",
    "make_tensor_store",
    "references",
    "register_tensor_transport",
    "set_fetch_timeout",
    "shut_down",
    "tensor_transports",
]

TRACE_PARAMETER = "_ray_trace_ctx"
"""The parameter that Ray adds to the methods of actors, for its tracing."""


def bootstrap_address() -> str | None:
    """The cluster that ``ray.init()`` would connect to, as HOST:PORT; None if it would start one."""
    address: str | None = canonicalize_bootstrap_address(None)  # type: ignore[arg-type]  # as documented
    return address


def is_actor_class(value: Any) -> bool:
    """Whether a value is a class with ``@ray.remote`` around it."""
    return isinstance(value, ActorClass)


def actor_class(value: Any) -> Any:
    """The user's own class, without ``@ray.remote`` around it."""
    if not isinstance(value, ActorClass):
        return value
    metadata: Any = value.__ray_metadata__  # type: ignore[attr-defined]  # set by Ray on the object
    return metadata.modified_class.__ray_actor_class__


def actor_options(value: Any) -> dict[str, Any]:
    """The options in ``@ray.remote(...)`` around a class."""
    return dict(getattr(value, "_default_options", {})) if isinstance(value, ActorClass) else {}


def actor_id(handle: Any) -> Any:
    """The actor of a handle."""
    return handle._actor_id


# -- processes that Ray restarts ---------------------------------------------------------------------------------------


def keep_start(value: object) -> None:
    """Store the value with which this actor can restart, for the life of the cluster."""
    internal_kv._internal_kv_put(_start_key(ray.get_runtime_context().get_actor_id()), pickle.dumps(value))


def kept_start() -> Any:
    """The value that this actor stored before a restart; None in its first process."""
    data = internal_kv._internal_kv_get(_start_key(ray.get_runtime_context().get_actor_id()))
    return None if data is None else pickle.loads(data)


def is_restarting(handle: Any) -> bool:
    """Whether Ray is restarting the process of an actor."""
    return bool(state.actors(actor_id=actor_id(handle).hex()).get("State") == "RESTARTING")


def forget_start(actor: str) -> None:
    """Delete the stored value of an actor."""
    internal_kv._internal_kv_del(_start_key(actor))


def _start_key(actor: str | None) -> str:
    return f"hfdsl-start-{actor}"


# -- Ray Direct Transport ----------------------------------------------------------------------------------------------


def tensor_transports() -> Any:
    """The names of the transports that this process has registered."""
    return transport_manager_info.keys()


def set_fetch_timeout(seconds: float) -> None:
    """Set how long this process waits for tensors of another, after which Ray ends both."""
    ray_constants.RDT_FETCH_FAIL_TIMEOUT_SECONDS = seconds


def make_tensor_store() -> None:
    """Let Ray create the store of fetched tensors in this process, before two threads ask for it.

    Ray creates it for the first that asks, without a lock (2.60): a call that waits for its arguments and the thread
    that fetches them could get a store each, and the call would wait forever.
    """
    ray_worker.global_worker.rdt_manager.rdt_store  # noqa: B018  # a property that creates it


def shut_down() -> None:
    """End the cluster that this process has started, and what Ray keeps of its transfers.

    Ray keeps their manager (2.60), and with it the transfers that no thread monitors yet. In the next cluster of the
    process they would be of an unknown owner, which ends the thread that monitors all transfers.
    """
    ray.shutdown()
    ray_worker.global_worker._rdt_manager = None


# -- what a process holds on the cluster -------------------------------------------------------------------------------


def actors() -> dict[str, Any]:
    """The actors of the cluster by ID, including dead ones."""
    states: dict[str, Any] = state.actors()
    return states


def references() -> dict[str, int]:
    """The number of references that this process holds to each object."""
    worker: Any = ray_worker.global_worker
    counts = worker.core_worker.get_all_reference_counts()
    return {key.decode() if isinstance(key, bytes) else str(key): int(count["local"]) for key, count in counts.items()}


def direct_transfers() -> set[str]:
    """The IDs of the objects that Ray itself references for direct transfers.

    They are an answer of each process that could take part, and the last ones that Ray's own thread looked at.
    """
    manager = getattr(ray_worker.global_worker, "_rdt_manager", None)
    answers = getattr(manager, "actor_id_to_transports_registered", {}).values()
    refs = {ref.hex() for ref in answers if ref is not True}
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if frame.f_code.co_name == "_monitor_failures":
                refs |= _monitored(frame.f_locals)
            frame = frame.f_back
    return refs


def _monitored(names: Mapping[str, Any]) -> set[str]:
    moving = [names.get("ref_info"), *names.get("ref_info_map", {}).values()]
    refs = [ref for info in moving if info is not None for ref in (info.send_ref, info.recv_ref)]
    refs += [*names.get("done", ()), *names.get("not_done", ())]
    return {ref.hex() for ref in refs if ref is not None}
