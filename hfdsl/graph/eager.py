"""The eager run: a dataflow called with real workers, each its own world of one rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hfdsl.errors import WiringError
from hfdsl.graph.guards import inputs_unchanged
from hfdsl.graph.signatures import LIST_KINDS, Signature, role_signatures
from hfdsl.protocols.call import Call, in_call, seeded
from hfdsl.protocols.dispatch import Execute, Functions
from hfdsl.protocols.mesh import Mesh
from hfdsl.protocols.worker import Worker
from hfdsl.types.batches import Batch, closest, schema


@dataclass
class EagerRun:
    """One eager call of a dataflow: numbers its calls as a trace would, so that random streams are the same."""

    dataflow: str
    seed: int
    step: int
    calls: int = 0


_run: ContextVar[EagerRun | None] = ContextVar("hfdsl_eager", default=None)


@contextmanager
def eager_run(dataflow: str, seed: int, step: int) -> Iterator[None]:
    """Within this, calls of roles and functions are numbered."""
    token = _run.set(EagerRun(dataflow, seed, step))
    try:
        yield
    finally:
        _run.reset(token)


@contextmanager
def next_call(arguments: tuple[Any, ...]) -> Iterator[None]:
    """The next call of the running dataflow, on the rows of its first record; outside of one it changes nothing."""
    run = _run.get()
    if run is None:
        yield
        return
    rows = next((len(a) for a in arguments if isinstance(a, Batch) and schema(type(a)).row is not None), None)
    call = Call(run.seed, run.step, run.calls, 0, 0, rows, run.dataflow)
    run.calls += 1
    with in_call(call), seeded(call):
        yield


@dataclass(frozen=True, slots=True)
class _SoleGroup:
    """The worker group that an eagerly called worker is: what protocol functions read of a group."""

    workers: tuple[Worker, ...]
    mesh: Mesh = field(default_factory=Mesh)
    world_size: int = 1


class EagerRole:
    """A worker in an eager dataflow: its registered methods go through their protocol's dispatch and collect."""

    def __init__(self, name: str, worker: Worker) -> None:
        self._name, self._worker = name, worker

    def __getattr__(self, method: str) -> Any:
        role: type = type(self._worker)
        signatures = role_signatures(role)
        if method not in signatures:
            raise WiringError(
                "HF202", f"role '{role.__name__}' has no method '{method}'; {closest(method, list(signatures))}"
            )
        return lambda *args, **kwargs: self._call(signatures[method], args, kwargs)

    def _call(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        body = getattr(self._worker, signature.name)
        with next_call((*args, *kwargs.values())):
            mode = signature.registration.meaning if signature.registration else None
            if isinstance(mode, Functions) and signature.registration.execute_mode is Execute.ALL:  # type: ignore[union-attr]  # mode came from it
                group = _SoleGroup((self._worker,))
                split, named = mode.dispatch_fn(group, *args, **kwargs)
                return mode.collect_fn(group, [body(*[a[0] for a in split], **{n: a[0] for n, a in named.items()})])
            if signature.protocol and signature.protocol.takes == "per_rank":
                args, kwargs = tuple(a[0] for a in args), {name: a[0] for name, a in kwargs.items()}
            given = dict(zip((port.name for port in signature.ports), args, strict=False)) | kwargs
            with inputs_unchanged(f"{self._name}.{signature.name}", given):
                result = body(*args, **kwargs)  # one rank: every declared split is the whole
            return result if signature.gives == "whole" else LIST_KINDS[signature.gives]([result])


def eager_arguments(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The dataflow's arguments with workers wrapped as roles."""
    bound = inspect.signature(body).bind(*args, **kwargs)
    bound.apply_defaults()
    return {name: EagerRole(name, v) if isinstance(v, Worker) else v for name, v in bound.arguments.items()}
