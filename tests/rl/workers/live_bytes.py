"""The memory of tensors that a thread makes, counted op by op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within it, ``peak`` is the most bytes that live at a time of what is made, and of these tensors."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self._live: dict[int, StorageWeakRef] = {}
        self.peak = 0
        self._count(tensors)

    @property
    def bytes(self) -> int:
        """Those that live now; storages may have been resized since they were made."""
        self._live = {key: ref for key, ref in self._live.items() if not ref.expired()}
        storages = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in self._live.values()]
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def _count(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage)
        self.peak = max(self.peak, self.bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._count(tree_leaves(result))
        return result
