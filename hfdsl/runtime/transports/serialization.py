"""Serialization of payloads: for the object store, as bytes within a call, and with tensors left on their device.

``ZeroCopyPayload`` goes through the object store, its buffers out of band: they are written into shared memory once,
and every reader maps them. ``CopiedPayload`` does so without shared buffers. ``serialized`` makes bytes of a small one.
``StateCopy`` has the states of roles. ``PickledValue`` leaves its tensors in the process that produced them, and only
the rest is pickled.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import BytesIO
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any, cast

import ray

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.plan.plan import Plan
from hfdsl.runtime.rank.store import CopiedTensors, PayloadContent, as_bytes
from hfdsl.runtime.saving.state_files import FlatState
from hfdsl.single_controller.ray_internals import CloudPickler
from hfdsl.types.batches import own_rows
from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    import torch

# -- through the object store ------------------------------------------------------------------------------------------


class ZeroCopyPayload:
    """A payload in transit, which arrives as its contents.

    The memory of a tensor goes out of band, so that neither side copies it. What arrives is in memory that other
    processes read too: a body that writes into it is refused (HF703) by the versions of its tensors. A CUDA tensor
    travels as a CPU tensor, and returns to a GPU where the reader has one.
    """

    def __init__(self, content: PayloadContent) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded_content, ([(*_fields(key), _encoded(value)) for key, value in self._content.items()],)


class CopiedPayload:
    """A payload in transit, pickled by torch, with copies on both sides."""

    def __init__(self, content: PayloadContent) -> None:
        self._content = own_rows(content)

    def __reduce__(self) -> tuple[Any, ...]:
        rows = [
            (*_fields(key), _without_float8(_on_cpu(value)), _is_cuda(value)) for key, value in self._content.items()
        ]
        return _copied_content, (rows,)


class StateCopy:
    """States by role in transit, which arrive with tensors in the reader's own memory."""

    def __init__(self, states: Mapping[str, FlatState]) -> None:
        self._states = states

    def __reduce__(self) -> tuple[Any, ...]:
        return _decoded_states, (
            {
                role: ({name: _encoded(tensor) for name, tensor in state.tensors.items()}, state.skeleton)
                for role, state in self._states.items()
            },
        )


def payload_class(plan: Plan) -> type[ZeroCopyPayload] | type[CopiedPayload]:
    """The class in which a plan's payloads travel through the object store."""
    return ZeroCopyPayload if plan.optimize.zero_copy else CopiedPayload


def serialized(payload: ZeroCopyPayload | CopiedPayload) -> bytes:
    """A payload as bytes that travel with calls."""
    return bytes(ray.cloudpickle.dumps(payload))  # type: ignore[no-untyped-call]  # of Ray


def deserialized(payload: Any) -> Any:
    """The payload, deserialized if it traveled as bytes."""
    return pickle.loads(payload) if isinstance(payload, bytes) else payload


def content_of(payload: Any) -> PayloadContent:
    """The contents of a payload, whatever its transport; a pending broadcast takes place now."""
    if isinstance(payload, dict):
        return payload
    if hasattr(payload, "content"):  # an exchange takes place when the weights are loaded
        content: PayloadContent = payload.content()
        return content
    return _decoded_content(payload.receive() if hasattr(payload, "receive") else payload.load())


# -- with tensors left on their device ---------------------------------------------------------------------------------


class Tensors:
    """The tensors of a payload, which Ray leaves in their process.

    Readers copy ``lazy`` ones when their call begins, and all others as soon as it is submitted.
    """

    __slots__ = ("lazy", "tensors")

    def __init__(self, tensors: list[torch.Tensor], *, lazy: bool = False) -> None:
        self.tensors, self.lazy = tensors, lazy

    def read(self) -> list[torch.Tensor]:
        """The tensors in this process."""
        return self.tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensors, ([tensor.cpu() for tensor in self.tensors],)


class PickledValue:
    """A value in transit: its tensors, and a pickle of the rest that refers to them by position."""

    __slots__ = ("buffers", "skeleton", "tensors")

    def __init__(self, skeleton: bytes, buffers: list[PickleBuffer], tensors: Tensors) -> None:
        self.skeleton, self.buffers, self.tensors = skeleton, buffers, tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledValue, (self.skeleton, self.buffers, self.tensors)

    def load(self) -> Any:
        """The value; in the process that pickled it, with the same tensors."""
        return _Unpickler(BytesIO(self.skeleton), self.tensors.read(), self.buffers).load()


def pickle_value(
    value: Any, device: str = "cuda", shared: Collection[torch.Tensor] | None = None, *, lazy: bool = False
) -> PickledValue:
    """The result of a method called with ``tensor_transport=TRANSPORT``: any value, with tensors on ``device`` apart.

    Tensors arrive dense and without gradients; those on other devices are pickled with the rest. With ``shared``,
    tensors whose memory nothing writes while they travel, all others are copied. ``lazy`` is that of ``Tensors``.

    >>> import torch
    >>> pickle_value({"x": torch.ones(2), "name": "a"}, "cpu").load()
    {'x': tensor([1., 1.]), 'name': 'a'}
    """
    skeleton, buffers, tensors = BytesIO(), list[PickleBuffer](), list["torch.Tensor"]()
    pickler = _Pickler(skeleton, device, tensors, buffers, None if shared is None else set(map(id, shared)))
    cast(Any, pickler).dump(value)
    return PickledValue(skeleton.getvalue(), buffers, Tensors(tensors, lazy=lazy))


def pickle_content(content: PayloadContent, *, copy: bool = True) -> PickledValue:
    """A payload that bypasses the object store: its columns' tensors stay in place until they are sent.

    Tensors inside Python objects are sent as a ``copy``, since the producer may change them at once, as roles do with
    their parameters; ``CopiedTensors`` are not copied again. Memory of tensors on another device goes out of band, as
    in ``ZeroCopyPayload``.

    Such copies are read lazily. Behind a queue several versions of weights may wait for calls of their reader: they
    wait in the producer alone, and the reader has memory for one of them. Columns are read early, while bodies run.
    """
    import torch

    device, shared = "cuda" if torch.cuda.is_available() else "cpu", list[torch.Tensor]()
    rows = [(*_fields(key), _encoded_except(device, value, shared)) for key, value in content.items()]
    has_columns = any(isinstance(value, (torch.Tensor, Jagged)) for value in content.values())
    return pickle_value(rows, device, shared if copy else None, lazy=not has_columns)


def _encoded_except(device: str, value: Any, shared: list[Any]) -> Any:
    """A raw column encoded as by ``_encoded``, except tensors on a device: they stay, and are added to ``shared``."""
    if isinstance(value, Jagged):
        return "ragged", _encoded_except(device, value.values, shared), _encoded_except(device, value.offsets, shared)
    if _device_type(value) == device and hasattr(value, "untyped_storage"):
        shared.append(value)
        return "direct", value
    if isinstance(value, CopiedTensors):
        shared += (tensor for tensors in value.values() for tensor in tensors.values())
        return _as_object(value)
    if isinstance(value, dict) and any(_device_type(each) == device for each in value.values()):
        return _as_object(value)
    return _encoded(value)


def _device_type(value: Any) -> str | None:
    return getattr(getattr(value, "device", None), "type", None)


class _Pickler(CloudPickler):
    def __init__(
        self,
        file: BytesIO,
        device: str,
        tensors: list[torch.Tensor],
        buffers: list[PickleBuffer],
        shared: Collection[int] | None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]  # of Ray
        import torch

        self._torch = torch
        self._device, self._tensors, self._shared = device, tensors, shared

    def persistent_id(self, value: Any) -> int | None:
        if not (isinstance(value, self._torch.Tensor) and value.device.type == self._device):
            return None
        detached = value.detach()
        copied = self._shared is not None and id(value) not in self._shared
        dense = detached.clone(memory_format=self._torch.contiguous_format) if copied else detached.contiguous()
        self._tensors.append(dense)
        return len(self._tensors) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BytesIO, tensors: Sequence[torch.Tensor], buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, index: Any) -> torch.Tensor:
        return self._tensors[int(index)]


# -- raw columns as plain values and buffers ---------------------------------------------------------------------------


def _fields(key: ColumnSlice) -> tuple[Any, ...]:
    return key.node, key.chunk, key.column, key.rows


def _is_cuda(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if _is_cuda(value) else value


def _to_gpu(value: Any) -> Any:
    import torch

    return value.cuda() if torch.cuda.is_available() else value


def _encoded(value: Any) -> Any:
    if isinstance(value, Jagged):
        return "ragged", _encoded(value.values), _encoded(value.offsets)
    if isinstance(value, CopiedTensors):
        return "parts", {name: {box: _encoded(part) for box, part in parts.items()} for name, parts in value.items()}
    if not hasattr(value, "untyped_storage"):
        return _without_float8(value)
    flat: Any = as_bytes(_on_cpu(value.detach()).resolve_conj().resolve_neg().contiguous())
    kind = "cuda" if _is_cuda(value) else "cpu"
    return kind, str(value.dtype).removeprefix("torch."), tuple(value.shape), PickleBuffer(flat.numpy())


def _without_float8(value: Any) -> Any:
    """A value to be pickled: torch does not load its own pickles of float8, so such weights are bytes."""
    match value:
        case CopiedTensors():
            return _encoded(value)
        case dict() if any(map(_is_float8, value.values())):
            return "weights", {
                name: (_encoded if _is_float8(each) else _as_object)(each) for name, each in value.items()
            }
    return _as_object(value)


def _as_object(value: Any) -> Any:
    return "object", value


def _is_float8(value: Any) -> bool:
    return str(getattr(value, "dtype", "")).startswith("torch.float8")


def _decoded(encoded: Any) -> Any:
    kind, *fields = encoded
    if kind in ("object", "direct"):
        return fields[0]
    if kind == "weights":
        return {
            name: _decoded(entry) if entry[0] == "object" else _owned(_decoded(entry))
            for name, entry in fields[0].items()
        }
    if kind == "ragged":
        return Jagged(_decoded(fields[0]), _decoded(fields[1]))
    if kind == "parts":  # who loads them may keep them and write into them
        parts = fields[0].items()
        return {name: {box: _owned(_decoded(part)) for box, part in by_box.items()} for name, by_box in parts}
    import torch

    name, shape, buffer = fields
    dtype = getattr(torch, name)
    if not memoryview(buffer).nbytes:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        with warnings.catch_warnings():  # torch warns of a read-only buffer; HF703 refuses writes to it
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.frombuffer(buffer, dtype=dtype).reshape(shape)
    return _to_gpu(tensor) if kind == "cuda" else tensor


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory that no other process reads: on a GPU it already is."""
    return tensor if tensor.is_cuda else tensor.clone()


def _decoded_content(rows: Iterable[tuple[Any, ...]]) -> dict[ColumnSlice, Any]:
    return {ColumnSlice(*fields): _decoded(encoded) for *fields, encoded in rows}


def _decoded_states(states: Mapping[str, tuple[Mapping[str, Any], str]]) -> dict[str, FlatState]:
    # Roles may keep what they load and write into it; the memory that readers share must stay as it is.
    return {
        role: FlatState({name: _decoded(encoded).clone() for name, encoded in tensors.items()}, skeleton)
        for role, (tensors, skeleton) in states.items()
    }


def _copied_content(rows: Iterable[tuple[Any, ...]]) -> dict[ColumnSlice, Any]:
    return {
        ColumnSlice(*fields): _to_gpu(_decoded(encoded)) if cuda else _decoded(encoded)
        for *fields, encoded, cuda in rows
    }
