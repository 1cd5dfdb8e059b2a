"""What travels between processes: a value with its tensors apart, so that these can stay on their device."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from io import BytesIO
from typing import Any, cast

import torch
from ray.cloudpickle.cloudpickle import CloudPickler


class Tensors:
    """The tensors of one parcel, the part that Ray leaves in its process."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensors, ([tensor.cpu() for tensor in self.tensors],)


class Parcel:
    """A value on its way: its tensors apart from the rest, which is pickled."""

    __slots__ = ("buffers", "head", "tensors")

    def __init__(self, head: bytes, buffers: list[pickle.PickleBuffer], tensors: Tensors) -> None:
        self.head, self.buffers, self.tensors = head, buffers, tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return Parcel, (self.head, self.buffers, self.tensors)

    def open(self) -> Any:
        """The value; in the process that sealed it the tensors are the very same."""
        return _In(BytesIO(self.head), self.tensors.tensors, self.buffers).load()


def seal(value: Any, device: str = "cuda", lent: Collection[torch.Tensor] | None = None) -> Parcel:
    """What a method called with ``tensor_transport=TRANSPORT`` returns: the value with its tensors on ``device`` apart.

    Any Python value will do. Tensors arrive dense and without gradients; others than ``device``'s travel with the rest.
    With ``lent``, whose memory nobody writes into while it travels, a copy is made of the other tensors.

    >>> seal({"x": torch.ones(2), "name": "a"}, "cpu").open()
    {'x': tensor([1., 1.]), 'name': 'a'}
    """
    head, buffers, tensors = BytesIO(), list[pickle.PickleBuffer](), list[torch.Tensor]()
    pickler = _Out(head, device, tensors, buffers, None if lent is None else set(map(id, lent)))
    cast(Any, pickler).dump(value)
    return Parcel(head.getvalue(), buffers, Tensors(tensors))


class _Out(CloudPickler):
    def __init__(
        self,
        file: BytesIO,
        device: str,
        tensors: list[torch.Tensor],
        buffers: list[pickle.PickleBuffer],
        lent: Collection[int] | None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)  # type: ignore[no-untyped-call]  # of Ray
        self._device, self._tensors, self._lent = device, tensors, lent

    def persistent_id(self, value: Any) -> int | None:
        if not (isinstance(value, torch.Tensor) and value.device.type == self._device):
            return None
        own = value.detach()
        copied = self._lent is not None and id(value) not in self._lent
        self._tensors.append(own.clone(memory_format=torch.contiguous_format) if copied else own.contiguous())
        return len(self._tensors) - 1


class _In(pickle.Unpickler):
    def __init__(self, file: BytesIO, tensors: Sequence[torch.Tensor], buffers: Sequence[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> torch.Tensor:
        return self._tensors[int(number)]
