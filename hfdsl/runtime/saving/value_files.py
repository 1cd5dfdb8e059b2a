"""Values as files: JSON for their structure, safetensors for arrays, and a pickle for objects that neither can hold.

A value is written to up to three files. For example ``{"rows": Rows(x=torch.ones(2), tree=[Tree(1), Tree(2)])}``, with
a record ``Rows`` and another class ``Tree`` of ``program.py``, as ``arguments``::

    arguments.json          {"value": {"rows": {"$record": "program:Rows", "columns": {
                                "x": {"$tensor": "rows.x", "dtype": "float32", "shape": [2]},
                                "tree": [{"$pickle": 0}, {"$pickle": 1}]}}},
                             "pickled": [{"at": "rows.tree[0]", "type": "program.Tree"},
                                         {"at": "rows.tree[1]", "type": "program.Tree"}],
                             "files": {".safetensors": "81b0...", ".pkl": "c37e..."},
                             "sha256": "5f1d..."}
    arguments.safetensors   the bytes of "rows.x"
    arguments.pkl           the two trees; their tensors are in arguments.safetensors, too

Data are plain values, lists, tuples, dicts and sets, tensors with their strides, NumPy arrays, the records and columns
of hfdsl, dataclasses and enums, and classes and functions by their names. None of these runs code when it is read, but
that of the modules that names refer to: fields are set without a constructor. So objects of other classes, which could
do anything when they are made or deleted, are pickled, and ``read_value`` (``value_reading.py``) loads a pickle only
where it is trusted.

``files`` has the SHA-256 of the other files, and ``sha256`` that of all fields but itself (``sealed_json.py``), so that
no byte of a value changes unseen.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, cast

from hfdsl.errors import CheckpointError
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.runtime.rank.store import as_bytes
from hfdsl.runtime.saving.references import name_of
from hfdsl.runtime.saving.sealed_json import sealed
from hfdsl.types.batches import Batch
from hfdsl.types.columns import COLUMNS, Column, Metric, Obj
from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    import torch

PLAIN = {bool, str, type(None)}
"""The types whose values all have a JSON form."""

WRAPPERS: dict[str, type[Any]] = {
    **{f"${column.__name__}": column for column in COLUMNS.values()},
    "$obj": Obj,
    "$metric": Metric,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
    "$per_rank": PerRank,
    "$per_stage": PerStage,
}
"""The types built from one plain value, by their tags."""

TAGS = {kind: tag for tag, kind in WRAPPERS.items()}

MAX_DEPTH = 50
"""The maximum nesting of a value: a level takes up to four levels of JSON, of which ``parse_object`` allows 200."""


def write_value(file: Path, value: Any, *, script: bool) -> None:
    """Write a value to ``file`` with the suffixes ``.json``, ``.safetensors`` and ``.pkl``, the last two if needed.

    ``script`` is as in ``name_of``.

    Raises:
        CheckpointError: HF908 if an object of it cannot even be pickled.
    """
    from safetensors.numpy import save_file

    encoder = _Encoder(script)
    encoded = encoder.encode(value, "")
    files = dict[str, str]()
    if encoder.objects:
        beside(file, ".pkl").write_bytes(encoder.pickled())
        files[".pkl"] = file_digest(beside(file, ".pkl"))
    if encoder.arrays:
        arrays = beside(file, ".safetensors")
        arrays.touch()
        mode = arrays.stat().st_mode
        save_file({name: array.numpy() for name, array in encoder.arrays.items()}, arrays)
        arrays.chmod(mode)  # safetensors makes files that only their owner reads
        files[".safetensors"] = file_digest(arrays)
    pickled = [{"at": at, "type": _type_name(value)} for at, value in encoder.objects]
    beside(file, ".json").write_text(sealed({"value": encoded, "pickled": pickled, "files": files}), "utf-8")


def file_digest(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def is_written(file: Path) -> bool:
    """Whether a value was written to ``file``."""
    return beside(file, ".json").exists()


def beside(file: Path, suffix: str) -> Path:
    """The file with a suffix appended to its name, which may contain dots."""
    return file.with_name(file.name + suffix)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Encoder:
    """Encodes a value as JSON, and collects its arrays and the objects to pickle."""

    def __init__(self, script: bool) -> None:
        self.arrays: dict[str, torch.Tensor] = {}
        self.objects: list[tuple[str, Any]] = []
        self._script = script
        self._names: dict[Any, str] = {}  # of tensors by their memory

    def encode(self, value: Any, at: str, depth: int = 0) -> Any:
        """The JSON of a value ``at`` this place in the whole."""
        if type(value) in PLAIN or (type(value) is int and -(2**63) <= value < 2**63):
            return value
        if type(value) is float:
            return {"$nan": struct.pack(">d", value).hex()} if math.isnan(value) else value
        encoded = self._container(value, at, depth) if depth < MAX_DEPTH else None
        if encoded is None:
            encoded = self._leaf(value, at)
        if encoded is None:
            self.objects.append((at or "the value", value))
            return {"$pickle": len(self.objects) - 1}
        return encoded

    def _container(self, value: Any, at: str, depth: int) -> Any:
        """The JSON of a container, else None."""

        def inner(entry: Any, key: object) -> Any:
            path = f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key}" if at else str(key)
            return self.encode(entry, path, depth + 1)

        kind: Any = type(value)
        if kind is list:
            if set(map(type, value)) <= PLAIN:
                return value
            return [inner(entry, index) for index, entry in enumerate(value)]
        if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
            return {key: inner(entry, key) for key, entry in value.items()}
        if kind is dict or kind is OrderedDict:
            items = [[self.encode(key, at, depth + 1), inner(entry, key)] for key, entry in value.items()]
            if kind is dict:
                return {"$dict": items}
            return {"$ordered": items, "attributes": self.encode(vars(value), at, depth + 1)}  # metadata of torch
        if kind in (tuple, set, frozenset, PerRank, PerStage):
            return {TAGS[kind]: [inner(entry, index) for index, entry in enumerate(value)]}
        if isinstance(value, (Column, Obj, Metric)):
            return {TAGS[kind]: self.encode(value._value, at, depth + 1)} if kind in TAGS else None
        if kind is Jagged:
            return {"$jagged": [self.encode(part, at, depth + 1) for part in (value.values, value.offsets)]}
        return self._instance(value, kind, inner)

    def _instance(self, value: Any, kind: Any, inner: Callable[[Any, str], Any]) -> dict[str, Any] | None:
        """The JSON of an object that consists of its fields, else None."""
        name = name_of(kind, script=self._script)
        if name is None:
            return None
        if isinstance(value, Batch):
            return {"$record": name, "columns": {key: inner(entry, key) for key, entry in value.__hf_columns__.items()}}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            items = zip(value, kind._fields, strict=True)
            return {"$namedtuple": name, "items": [inner(entry, key) for entry, key in items]}
        if is_plain_dataclass(kind) and set(vars(value) if hasattr(value, "__dict__") else ()) <= state_names(kind):
            present = [field.name for field in fields(kind) if hasattr(value, field.name)]
            return {"$dataclass": name, "fields": {key: inner(getattr(value, key), key) for key in present}}
        return None

    def _encode_name(self, tag: str, named: Any, **content: Any) -> dict[str, Any] | None:
        name = name_of(named, script=self._script)
        return None if name is None else {tag: name, **content}

    def _leaf(self, value: Any, at: str) -> Any:
        """The JSON of a value without parts; None for a value that data cannot hold."""
        kind = type(value)
        if kind is int:
            return {"$int": hex(value)}  # Python limits the decimal digits that it reads
        if kind in (bytes, bytearray):
            return {f"${kind.__name__}": base64.b64encode(value).decode()}
        if kind is complex:
            return {"$complex": struct.pack(">dd", value.real, value.imag).hex()}
        if kind in (range, slice):
            return {f"${kind.__name__}": [value.start, value.stop, value.step]} if _counts(value) else None
        if isinstance(value, Enum):
            return self._encode_name("$enum", kind, member=value.name) if value.name in kind.__members__ else None
        if isinstance(value, type):
            return self._encode_name("$class", value)
        return self._encode_name("$function", value) if kind is FunctionType else self._array(value, at)

    def _array(self, value: Any, at: str) -> Any:
        """The JSON of an array, its dtype, device or size, for torch and NumPy types; else None."""
        import numpy as np
        import torch

        kind = type(value)
        if kind in (torch.Tensor, torch.nn.Parameter):
            return self._tensor(value, at)
        if kind in (torch.dtype, torch.device):
            return {f"${kind.__name__}": str(value).removeprefix("torch.")}
        if kind is torch.Size:
            return {"$size": list(value)}
        if not (kind is np.ndarray or isinstance(value, np.generic)) or value.dtype.hasobject or value.dtype.names:
            return None
        if kind is not np.ndarray:
            return {"$scalar": value.tobytes().hex(), "dtype": value.dtype.str}
        order: Literal["C", "F"] = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        content = torch.from_numpy(np.frombuffer(bytearray(value.tobytes(order)), np.uint8))
        name = self._keep(content, at)
        return {"$array": name, "dtype": value.dtype.str, "shape": list(value.shape), "order": order}

    def _tensor(self, value: torch.Tensor, at: str) -> dict[str, Any] | None:
        import torch

        if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            return None
        dense = value.detach().resolve_conj().resolve_neg()
        if _extent(dense) > dense.numel():
            dense = dense.clone()  # of a view, without the values between its own
        key = (value.device, value.data_ptr(), tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        if not value.numel() or (type(value), key) not in self._names:
            flat = dense.as_strided((_extent(dense),), (1,)).cpu()
            self._names[type(value), key] = self._keep(as_bytes(flat), at)
        encoded: dict[str, Any] = {
            "$tensor": self._names[type(value), key],
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
        }
        if dense.numel() and dense.stride() != torch.empty(dense.shape, device="meta").stride():
            encoded["stride"] = list(dense.stride())  # of a dim of size 1, too, where it has no meaning
        if value.is_cuda:
            encoded["cuda"] = True
        if type(value) is torch.nn.Parameter:
            encoded["parameter"] = True
        if value.requires_grad:
            encoded["requires_grad"] = True
        return encoded

    def _keep(self, array: torch.Tensor, at: str) -> str:
        name = at or "value"
        while name in self.arrays:
            name += "_"
        self.arrays[name] = array
        return name

    def pickled(self) -> bytes:
        """The pickle of an object that data cannot hold; its tensors, and classes of the script, are data again."""
        from hfdsl.single_controller.ray_internals import CloudPickler

        encoder = self

        class Pickler(CloudPickler):
            def persistent_id(self, value: Any) -> Any:
                import torch

                if type(value) in (torch.Tensor, torch.nn.Parameter):
                    return encoder._tensor(value, "pickled")
                if getattr(value, "__module__", None) == "__main__" and isinstance(value, (type, FunctionType)):
                    return encoder._leaf(value, "pickled")
                return None

        buffer = BytesIO()
        try:
            cast(Any, Pickler)(buffer).dump([value for _, value in self.objects])
        except Exception as error:  # noqa: BLE001  # an object's own code may raise anything
            kinds = ", ".join(f"{_type_name(value)} at '{at}'" for at, value in self.objects[:3])
            text = f"a recording cannot hold {kinds}: {type(error).__name__}: {error}"
            raise CheckpointError("HF908", text) from None
        return buffer.getvalue()


def _extent(tensor: torch.Tensor) -> int:
    """The number of elements between the first and the last element of a tensor in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _counts(value: range | slice) -> bool:
    return all(part is None or type(part) is int for part in (value.start, value.stop, value.step))


def is_plain_dataclass(kind: Any) -> bool:
    """Whether objects of a class consist of their fields: they are created and deleted without the class's code."""
    return (
        is_dataclass(kind)
        and kind.__new__ is object.__new__
        and kind.__reduce__ is object.__reduce__
        and kind.__reduce_ex__ is object.__reduce_ex__
        and getattr(kind.__getstate__, "__module__", None) in (None, "dataclasses")  # of object, or with slots
        and not hasattr(kind, "__del__")
    )


def state_names(kind: Any) -> set[str]:
    """The attributes that an object of a dataclass may have: its fields and its cached properties."""
    cached = {name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, cached_property)}
    return {field.name for field in fields(kind)} | cached
