"""Packing: a payload as bytes that are written to shared memory once, and read there by whoever maps it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pickle import PickleBuffer
from typing import Any

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.runtime.store import Content, as_bytes
from hfdsl.types.batches import own_rows
from hfdsl.types.ragged import Jagged


class Packed:
    """A payload on its way: it arrives as its content.

    The memory of a tensor goes out of band, so that neither side copies it. What arrives lies in memory that other
    processes read too: a body that writes into it is refused (HF703) by the versions of its tensors. A CUDA tensor
    travels as a CPU tensor, and is back on a GPU where the reader has one.
    """

    def __init__(self, content: Content) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, ([(*_named(cut), _outward(value)) for cut, value in self._content.items()],)


def sealed(content: Content, *, copy: bool = True) -> Any:
    """A payload that goes around the object store: the tensors of its columns stay where they are until they are sent.

    Of those within Python objects a ``copy`` is sent, since the maker may change them at once, as it does with its
    weights. Memory of tensors on another device goes out of band, as in ``Packed``.
    """
    import torch

    from hfdsl.runtime.parcel import seal

    device, lent = "cuda" if torch.cuda.is_available() else "cpu", list[torch.Tensor]()
    rows = [(*_named(cut), _lent(value, device, lent)) for cut, value in content.items()]
    return seal(rows, device, lent if copy else None)


def _lent(value: Any, device: str, lent: list[Any]) -> Any:
    """A raw column as ``_outward`` makes it, but for tensors on a device, which are listed and stay."""
    if isinstance(value, Jagged):
        return "ragged", _lent(value.values, device, lent), _lent(value.offsets, device, lent)
    if getattr(getattr(value, "device", None), "type", None) == device and hasattr(value, "untyped_storage"):
        lent.append(value)
        return "direct", value
    return _outward(value)


def opened(brought: Any) -> Content:
    """What was brought, however it came; what is broadcast comes now."""
    if isinstance(brought, dict):
        return brought
    return _unpacked(brought.receive() if hasattr(brought, "receive") else brought.open())


class Pickled:
    """A payload on its way as torch pickles it: with copies on either side."""

    def __init__(self, content: Content) -> None:
        self._content = own_rows(content)

    def __reduce__(self) -> tuple[Any, ...]:
        rows = [(*_named(cut), _on_cpu(value), _is_cuda(value)) for cut, value in self._content.items()]
        return _unpickled, (rows,)


def _named(cut: ColumnSlice) -> tuple[Any, ...]:
    return cut.node, cut.chunk, cut.column, cut.rows


def _is_cuda(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if _is_cuda(value) else value


def _to_gpu(value: Any) -> Any:
    import torch

    return value.cuda() if torch.cuda.is_available() else value


def _outward(value: Any) -> Any:
    """A raw column as plain values and buffers."""
    if isinstance(value, Jagged):
        return "ragged", _outward(value.values), _outward(value.offsets)
    if not hasattr(value, "untyped_storage"):
        return "object", value
    flat: Any = as_bytes(_on_cpu(value.detach()).resolve_conj().resolve_neg().contiguous())
    kind = "cuda" if _is_cuda(value) else "cpu"
    return kind, str(value.dtype).removeprefix("torch."), tuple(value.shape), PickleBuffer(flat.numpy())


def _inward(packed: Any) -> Any:
    kind, *rest = packed
    if kind in ("object", "direct"):
        return rest[0]
    if kind == "ragged":
        return Jagged(_inward(rest[0]), _inward(rest[1]))
    import torch

    name, shape, buffer = rest
    dtype = getattr(torch, name)
    if not memoryview(buffer).nbytes:
        tensor = torch.empty(shape, dtype=dtype)
    else:
        with warnings.catch_warnings():  # of the read-only buffer: whoever writes into the tensor is told, see above
            warnings.simplefilter("ignore", UserWarning)
            tensor = torch.frombuffer(buffer, dtype=dtype).reshape(shape)
    return _to_gpu(tensor) if kind == "cuda" else tensor


def _unpacked(rows: Iterable[tuple[Any, ...]]) -> dict[ColumnSlice, Any]:
    return {ColumnSlice(*named): _inward(packed) for *named, packed in rows}


def _unpickled(rows: Iterable[tuple[Any, ...]]) -> dict[ColumnSlice, Any]:
    return {ColumnSlice(*named): _to_gpu(value) if cuda else value for *named, value, cuda in rows}
