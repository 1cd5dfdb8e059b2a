"""Parameters of a model as a checkpoint has them, and their dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hfdsl.errors import ProtocolError
from hfdsl.types.numbers import brief, is_count

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        name: size
        for size, names in {
            8: ("float64", "int64"),
            4: ("float32", "int32"),
            2: ("bfloat16", "float16", "int16"),
            1: ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"),
        }.items()
        for name in names
    }
)
"""The bytes of an element, by torch's names of dtypes."""

FLOATS: Final = ("float64", "float32", "bfloat16", "float16")
"""The dtypes that a sync converts to each other."""


def converts(dtype: str, other: str) -> bool:
    """Whether a sync converts weights of one dtype to another one.

    >>> converts("float32", "bfloat16"), converts("int8", "bfloat16"), converts("int8", "int8")
    (True, False, True)
    """
    return dtype == other or (dtype in FLOATS and other in FLOATS)


class UnstatedDtype(str):
    """The dtype of a parameter for which the user wrote none: a string as any other."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as a checkpoint has it: its name, full shape, and dtype by torch's name.

    ``contiguous`` says that each rank keeps its part in a row-major tensor of this dtype on its pool's device, so that
    large parts travel without a buffer: a plan then counts no memory for them.

    Raises ``ProtocolError`` (HF739) for a shape or dtype that there is not.

    >>> Parameter("lm_head.weight", (8, 4)).bytes
    64
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = UnstatedDtype("bfloat16")
    contiguous: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ProtocolError("HF739", f"the name of a parameter must be a string, got {brief(self.name)}")
        if not isinstance(self.shape, Iterable):
            raise ProtocolError(
                "HF739", f"the shape of {self.name!r} must be a tuple of sizes, got {brief(self.shape)}"
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        if not all(is_count(size, least=0) for size in self.shape):
            raise ProtocolError(
                "HF739", f"the sizes of {self.name!r} must be whole numbers, 0 or more, got {self.shape}"
            )
        if not isinstance(self.dtype, str) or self.dtype not in ITEM_BYTES:
            raise ProtocolError(
                "HF739", f"the dtype of {self.name!r} must be one of {', '.join(ITEM_BYTES)}, got {self.dtype!r}"
            )

    @property
    def has_default_dtype(self) -> bool:
        """Whether the user wrote no dtype; a copy by ``dataclasses.replace`` knows it, too."""
        return isinstance(self.dtype, UnstatedDtype)

    @property
    def item_bytes(self) -> int:
        """The bytes of an element."""
        return ITEM_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """The bytes of the full tensor."""
        count = self.item_bytes
        for size in self.shape:
            count *= size
        return count
