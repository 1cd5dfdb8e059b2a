"""The dtypes of columns: one table."""

from __future__ import annotations


class DType:
    """An element type; ``name`` is hfdsl's spelling, ``torch_name`` torch's, ``itemsize`` is in bytes."""

    name: str
    torch_name: str
    itemsize: int


class Float64(DType):
    """64-bit floating point."""

    name, torch_name, itemsize = "f64", "float64", 8


class Float32(DType):
    """32-bit floating point."""

    name, torch_name, itemsize = "f32", "float32", 4


class BFloat16(DType):
    """16-bit brain floating point."""

    name, torch_name, itemsize = "bf16", "bfloat16", 2


class Float16(DType):
    """16-bit floating point."""

    name, torch_name, itemsize = "f16", "float16", 2


class Int64(DType):
    """64-bit signed integer."""

    name, torch_name, itemsize = "i64", "int64", 8


class Int32(DType):
    """32-bit signed integer."""

    name, torch_name, itemsize = "i32", "int32", 4


class Int16(DType):
    """16-bit signed integer."""

    name, torch_name, itemsize = "i16", "int16", 2


class Int8(DType):
    """8-bit signed integer."""

    name, torch_name, itemsize = "i8", "int8", 1


class UInt8(DType):
    """8-bit unsigned integer."""

    name, torch_name, itemsize = "u8", "uint8", 1


class Bool(DType):
    """Truth value, one byte."""

    name, torch_name, itemsize = "bool_", "bool", 1


DTYPES: tuple[type[DType], ...] = (
    Float64, Float32, BFloat16, Float16, Int64, Int32, Int16, Int8, UInt8, Bool,
)  # fmt: skip  # a table: one row reads better than ten
FLOATS = (Float64, Float32, BFloat16, Float16)
BY_TORCH_NAME: dict[str, type[DType]] = {dtype.torch_name: dtype for dtype in DTYPES}
