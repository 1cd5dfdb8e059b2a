"""Actors that send each other tensors."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ray
import torch

from hfdsl.plan.payloads import ColumnSlice
from hfdsl.runtime.transports import broadcast, direct, tensor_sharing
from hfdsl.runtime.transports.serialization import PickledValue, content_of, pickle_content, pickle_value


def values(device: str) -> dict[str, torch.Tensor]:
    """Tensors of every kind that is hard to send."""
    counted = torch.arange(24, device=device)
    return {
        "strided": counted.view(4, 6).float().t(),
        "rows": counted.view(4, 6)[1:3],
        "bf16": counted.bfloat16(),
        "i16": counted.to(torch.int16),
        "f8": counted.float().to(torch.float8_e4m3fn),
        "bool": counted % 2 == 0,
        "complex": torch.complex(counted.float(), counted.float()),
        "scalar": torch.tensor(3.0, device=device),
        "empty": torch.empty(0, 3, device=device),
        "grad": torch.ones(3, device=device, requires_grad=True),
    }


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


class Process:
    """A producer and a reader."""

    def __init__(self) -> None:
        self.kept: Any = None

    def has_store(self) -> bool:
        """Whether Ray has made what keeps fetched tensors in this process."""
        return ray._private.worker.global_worker._rdt_manager is not None

    def seal(self, value: Any) -> PickledValue:
        return pickle_value(value, device())

    def all_kinds(self) -> PickledValue:
        return pickle_value({"columns": values(device()), "name": "all", "rows": [1, 2]}, device())

    def fails(self) -> PickledValue:
        raise KeyError("no such parcel")

    def wrong(self, parcel: PickledValue) -> list[str]:
        """The names of the tensors that did not arrive as they were."""
        value, bad = parcel.load(), []
        for name, want in values(device()).items():
            column = value["columns"].pop(name)
            same = column.dtype == want.dtype and column.shape == want.shape and column.device == want.device
            if not same or column.requires_grad or column.tolist() != want.tolist():
                bad.append(name)
        return bad if value == {"columns": {}, "name": "all", "rows": [1, 2]} else [*bad, "the rest"]

    def make(self, size: int, fill: float) -> None:
        self.kept = torch.full((size,), fill, device=device())

    def ship(self) -> PickledValue:
        return pickle_value(self.kept, device())

    def ship_weights(self) -> PickledValue:
        """A copy of what it keeps, as an export of weights."""
        return pickle_content({ColumnSlice(0, 0, "weights", None): {"weight": self.kept}})

    def load_after(self, seconds: float, parcel: PickledValue) -> float:
        """Load weights after a time."""
        time.sleep(seconds)
        [weights] = content_of(parcel).values()
        return float(weights["weight"].mean())

    def hold(self, parcel: PickledValue) -> float:
        self.kept = parcel.load()
        return float(self.kept.mean())

    def is_my_own(self, parcel: PickledValue) -> bool:
        return parcel.load() is not None and parcel.load().data_ptr() == self.kept.data_ptr()

    def drop(self) -> None:
        self.kept = None

    def look(self) -> float:
        return float(self.kept.mean())

    def stored(self) -> int:
        """The parcels that Ray keeps in this process."""
        from ray._private.worker import global_worker

        return int(global_worker.rdt_manager.rdt_store.get_num_objects())

    def pid(self) -> int:
        return os.getpid()

    def lending(self) -> int:
        """The files that this process lends."""
        links = (
            str(descriptor.readlink()) for descriptor in Path("/proc/self/fd").iterdir() if descriptor.is_symlink()
        )
        return sum("memfd:hfdsl" in link for link in links)

    def stays_mapped(self) -> bool:
        """Whether it keeps mapped what it reads of other GPUs."""
        return tensor_sharing.mappings.keep

    def broadcast(self, ranks: list[int], root: int) -> float:
        group = direct.member().communicator(ranks)
        broadcast.broadcast([self.kept], group, root)
        return float(self.kept.mean())
