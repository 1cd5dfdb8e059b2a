"""Reading values of ``write_value``: data as data, and pickles only if they are trusted."""

from __future__ import annotations

import base64
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from io import BytesIO
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from hfdsl.errors import CheckpointError
from hfdsl.runtime.saving.references import resolved
from hfdsl.runtime.saving.sealed_json import unsealed
from hfdsl.runtime.saving.value_files import PLAIN, WRAPPERS, beside, file_digest, is_plain_dataclass, state_names
from hfdsl.types.batches import Batch, rebuild, schema
from hfdsl.types.ragged import Jagged

if TYPE_CHECKING:
    import torch


def read_value(file: Path, subject: str, *, trust: bool, main: Callable[[], Any]) -> Any:
    """A value of ``write_value``; tensors from a GPU are on a GPU again if there is one.

    ``subject`` names it in messages, ``main`` loads the script whose classes and functions it may name.

    Raises:
        CheckpointError: HF906 if it is missing, was changed or cannot be read, HF915 if it has a pickle and is
            not trusted.
    """
    written = beside(file, ".json")
    try:
        content = unsealed(written.read_bytes())
        for suffix, digest in content["files"].items():
            if file_digest(beside(file, suffix)) != digest:
                text = f"{subject} cannot be read: {beside(file, suffix)} was changed after it was written"
                raise CheckpointError("HF906", text)
        pickled = [(str(entry["at"]), str(entry["type"])) for entry in content["pickled"]]
        if pickled and not trust:
            (at, kind), more = pickled[0], f" (and {len(pickled) - 1} more)" if len(pickled) > 1 else ""
            raise CheckpointError(
                "HF915",
                f"{subject}: '{at}' is of type {kind}{more}, which is not plain data; its pickle may run any code "
                f"when it is loaded: if you trust '{beside(file, '.pkl')}', replay with --trust",
            )
        return _Decoder(file, trust and bool(pickled), main).decode(content["value"])
    except CheckpointError:
        raise
    except Exception as error:  # noqa: BLE001  # a pickle may raise anything, and so may a module
        text = f"{subject} cannot be read: {written}: {type(error).__name__}: {error}"
        raise CheckpointError("HF906", text) from None


class _Decoder:
    """Decodes a value from JSON."""

    def __init__(self, file: Path, unpickles: bool, main: Callable[[], Any]) -> None:
        self._file, self._unpickles, self._main = file, unpickles, main
        self._tensors: dict[str, torch.Tensor] = {}

    @cached_property
    def _arrays(self) -> Mapping[str, Any]:
        from safetensors.numpy import load_file

        return load_file(beside(self._file, ".safetensors"))

    @cached_property
    def _objects(self) -> list[Any]:
        decoder = self
        if not self._unpickles:
            raise ValueError("it refers to a pickle that it does not list")

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, identity: Any) -> Any:
                return decoder.decode(identity)

        objects: list[Any] = Unpickler(BytesIO(beside(self._file, ".pkl").read_bytes())).load()
        return objects

    def decode(self, encoded: Any) -> Any:
        """The value of a JSON object."""
        if isinstance(encoded, list):
            return encoded if set(map(type, encoded)) <= PLAIN else list(map(self.decode, encoded))
        if not isinstance(encoded, dict):
            return encoded
        tag = next(iter(encoded), "")
        if not tag.startswith("$"):
            return {key: self.decode(value) for key, value in encoded.items()}
        content, fields = encoded[tag], {key: value for key, value in encoded.items() if key != tag}
        if tag in WRAPPERS:
            return WRAPPERS[tag](self.decode(content))
        return _READERS[tag](self, content, **fields)

    def resolve_name(self, name: str, kind: Callable[[Any], bool]) -> Any:
        """The class or function of a name; it must be of the given kind."""
        value = resolved(name, self._main)
        if not kind(value):
            problem = f"'{name}' is not what it was"
            raise TypeError(problem)
        return value

    def items(self, content: list[list[Any]]) -> list[tuple[Any, Any]]:
        """The items of a dict."""
        return [(self.decode(key), self.decode(value)) for key, value in content]

    def ordered(self, content: list[list[Any]], attributes: dict[str, Any]) -> OrderedDict[Any, Any]:
        """A dict of torch with its metadata."""
        ordered = OrderedDict(self.items(content))
        vars(ordered).update(self.decode(attributes))
        return ordered

    def record(self, name: str, columns: dict[str, Any]) -> Batch:
        """A record with the columns that its class declares."""
        kind = self.resolve_name(name, lambda value: isinstance(value, type) and issubclass(value, Batch))
        if list(columns) != list(schema(kind).fields):
            problem = f"'{name}' has the columns {', '.join(schema(kind).fields)}, and had {', '.join(columns)}"
            raise ValueError(problem)
        return rebuild(cast(type[Batch], kind), {column: self.decode(value) for column, value in columns.items()})

    def namedtuple(self, name: str, items: list[Any]) -> Any:
        """A named tuple, created without its class's code."""
        kind = self.resolve_name(name, lambda value: isinstance(value, type) and issubclass(value, tuple))
        return tuple.__new__(kind, map(self.decode, items))

    def dataclass(self, name: str, fields: dict[str, Any]) -> Any:
        """An object of a dataclass, created without its class's code."""
        kind = self.resolve_name(name, lambda value: isinstance(value, type) and is_plain_dataclass(value))
        instance = object.__new__(kind)
        for field in fields.keys() & state_names(kind):
            object.__setattr__(instance, field, self.decode(fields[field]))
        return instance

    def enum(self, name: str, member: str) -> Any:
        """A member of an enum."""
        kind = self.resolve_name(name, lambda value: isinstance(value, type) and issubclass(value, Enum))
        return kind.__members__[member]

    def array(self, name: str, dtype: str, shape: list[int], order: Any) -> Any:
        """A writable NumPy array."""
        import numpy as np

        return np.frombuffer(self._arrays[name].tobytes(), dtype).reshape(shape, order=order).copy(order)

    def tensor(self, name: str, dtype: str, shape: list[int], **options: Any) -> torch.Tensor:
        """A tensor, on a GPU if it was on one and there is one; tensors with the same memory become one tensor."""
        import torch

        if name in self._tensors:
            return self._tensors[name]
        flat = torch.empty(len(self._arrays[name]), dtype=torch.uint8)
        flat.numpy()[:] = self._arrays[name]
        values = flat.view(_dtype(dtype))
        tensor = values.as_strided(shape, options["stride"]) if "stride" in options else values.reshape(shape)
        tensor = tensor.cuda() if options.get("cuda") and torch.cuda.is_available() else tensor
        grad = bool(options.get("requires_grad"))
        tensor = torch.nn.Parameter(tensor, grad) if options.get("parameter") else tensor.requires_grad_(grad)
        return self._tensors.setdefault(name, tensor)

    def object(self, index: int) -> Any:
        """An object from the pickle."""
        return self._objects[index]


def _dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(name)
    return dtype


def _scalar(_: _Decoder, content: str, dtype: str) -> Any:
    import numpy as np

    return np.frombuffer(bytearray.fromhex(content), dtype)[0]


def _device(_: _Decoder, name: str) -> torch.device:
    import torch

    return torch.device(name)


def _size(_: _Decoder, sizes: list[int]) -> torch.Size:
    import torch

    return torch.Size(sizes)


_READERS: dict[str, Callable[..., Any]] = {
    "$nan": lambda _, text: struct.unpack(">d", bytes.fromhex(text))[0],
    "$int": lambda _, text: int(text, 16),
    "$complex": lambda _, text: complex(*struct.unpack(">dd", bytes.fromhex(text))),
    "$bytes": lambda _, text: base64.b64decode(text),
    "$bytearray": lambda _, text: bytearray(base64.b64decode(text)),
    "$range": lambda _, parts: range(*parts),
    "$slice": lambda _, parts: slice(*parts),
    "$dtype": lambda _, name: _dtype(name),
    "$device": _device,
    "$size": _size,
    "$scalar": _scalar,
    "$dict": lambda decoder, items: dict(decoder.items(items)),
    "$jagged": lambda decoder, parts: Jagged(*map(decoder.decode, parts)),
    "$class": lambda decoder, name: decoder.resolve_name(name, lambda value: isinstance(value, type)),
    "$function": lambda decoder, name: decoder.resolve_name(name, lambda value: isinstance(value, FunctionType)),
    "$ordered": _Decoder.ordered,
    "$record": _Decoder.record,
    "$namedtuple": _Decoder.namedtuple,
    "$dataclass": _Decoder.dataclass,
    "$enum": _Decoder.enum,
    "$array": _Decoder.array,
    "$tensor": _Decoder.tensor,
    "$pickle": _Decoder.object,
}
"""The decoders of values, by tag."""
