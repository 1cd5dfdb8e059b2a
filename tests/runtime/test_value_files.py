"""Values as files: what is read is what was written, bit for bit, and code of a recording waits for trust."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import struct
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from hfdsl import Metric, Obj, PerRank, PerStage, f32, i64
from hfdsl.errors import CheckpointError
from hfdsl.runtime.saving.sealed_json import sealed
from hfdsl.runtime.saving.value_files import file_digest, write_value
from hfdsl.runtime.saving.value_reading import read_value
from hfdsl.types.batches import Batch
from hfdsl.types.columns import Column
from hfdsl.types.ragged import Jagged
from tests.runtime import value_file_programs as p

TORCH_DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64,
    torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
NUMPY_DTYPES = ["<f8", "<f2", "<i4", "|u1", "|b1", "<c16", "<U3", "|S2", "<M8[s]"]


def main() -> Any:
    raise AssertionError("nothing here is of a script")


def again(value: Any, folder: Path, *, trust: bool = False) -> Any:
    write_value(folder / "v", value, script=False)
    return read_value(folder / "v", "the value", trust=trust, main=main)


# -- an oracle: bits and types of two values, seen without the code under test


def bits(value: Any) -> Any:  # noqa: C901  # a case for each type
    """A value as nested tuples of plain ones, in which two values are equal if all their types and bits are."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    match value:
        case torch.Tensor():
            dense = value.detach().contiguous().flatten()
            content = bytes(dense.view(torch.uint8).tolist()) if dense.numel() else b""
            own = value.detach().clone().stride() if dense.numel() else ()  # of a view, without the gaps
            return kind, str(value.dtype), tuple(value.shape), own, value.requires_grad, content
        case np.ndarray() | np.generic():
            return kind, value.dtype.str, value.shape, value.tobytes()
        case Batch():
            return kind, tuple((name, bits(column)) for name, column in value.__hf_columns__.items())
        case Column() | Obj() | Metric():
            return kind, bits(value._value)
        case Jagged():
            return kind, bits(value.values), bits(value.offsets)
        case Enum():
            return kind, value.name
        case float():
            return kind, struct.pack("<d", value)
        case complex():
            return kind, struct.pack("<dd", value.real, value.imag)
        case dict():
            inner = bits(vars(value)) if hasattr(value, "__dict__") else None
            return kind, tuple((bits(key), bits(entry)) for key, entry in value.items()), inner
        case set() | frozenset():
            return kind, frozenset(map(bits, value))
        case list() | tuple() | PerRank() | PerStage():
            return kind, tuple(map(bits, value))
        case p.Tree():
            return kind, bits(value.children)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return kind, tuple(bits(getattr(value, field.name)) for field in fields(value))
        case _:
            return kind, value


# -- values


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Tensors of every dtype and layout in memory: transposed, expanded, with steps, empty, cut out of others."""
    dtype, shape = draw(st.sampled_from(TORCH_DTYPES)), draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape)
    content = random.Random(draw(st.integers(0, 2**16))).randbytes(max(count, 1) * dtype.itemsize)
    if dtype is torch.bool:
        content = bytes(byte & 1 for byte in content)
    tensor = torch.frombuffer(bytearray(content), dtype=dtype)[:count].reshape(shape)
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor.movedim(0, -1)
    if tensor.dim() > 1 and draw(st.booleans()):
        tensor = tensor[:, :1].expand(-1, draw(st.integers(1, 3)), *tensor.shape[2:]) if tensor.shape[1] else tensor
    if dtype.is_floating_point and draw(st.booleans()):
        return torch.nn.Parameter(tensor, draw(st.booleans()))
    return tensor


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=2))
    content = random.Random(draw(st.integers(0, 99))).choices("01", k=max(math.prod(shape), 1))
    array = (
        np.array(content[: math.prod(shape)], dtype="<U1").reshape(shape).astype(draw(st.sampled_from(NUMPY_DTYPES)))
    )
    array = array.T if draw(st.booleans()) else array
    return array.flat[0] if array.size and draw(st.booleans()) else array.copy("K")


@st.composite
def records(draw: st.DrawFn, things: st.SearchStrategy[Any]) -> p.Rows:
    count = draw(st.integers(0, 3))
    lengths = [draw(st.integers(0, 2)) for _ in range(count)]
    hint: Any = draw(st.sampled_from([None, torch.rand(count)]))
    rows = p.Rows(
        x=torch.rand(count, 2, generator=torch.Generator().manual_seed(count)),
        tokens=i64([torch.arange(length) for length in lengths]),
        thing=[draw(things) for _ in range(count)],
        hint=hint,
    )
    return rows[draw(st.integers(0, count)) :]


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**60, 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.binary(max_size=9)
    | st.sampled_from([*p.Color, torch.float32, torch.device("cpu"), torch.Size([2]), range(3), slice(None, 2), p.Tree])
    | st.sampled_from([p.helper, float("-inf"), -0.0, "$tensor", "\ud800", bytearray(b"x"), 1e-310])
    | st.just(struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0])
    | tensors()
    | arrays()
)
keys = st.text(max_size=3) | st.just("$tensor") | st.integers() | st.none() | st.tuples(st.integers(), st.text())


def _above(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(values, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | lists.map(PerRank)
        | lists.map(PerStage)
        | lists.map(Obj)
        | st.dictionaries(keys, values, max_size=3)
        | st.dictionaries(keys, values, max_size=2).map(OrderedDict)
        | st.sets(st.integers() | st.text(), max_size=3)
        | st.frozensets(st.text(), max_size=3)
        | st.builds(p.Pair, values, values)
        | st.builds(p.Plain, values)
        | st.builds(p.Config, st.floats(), values)
        | st.builds(Metric, st.floats())
        | tensors().filter(lambda t: t.dtype is torch.float32 and t.dim() > 0).map(f32)
        | records(values)
    )


data = st.recursive(leaves, _above, max_leaves=8)


@given(data)
def test_data_are_read_bit_for_bit_without_a_pickle(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert bits(again(value, Path(folder))) == bits(value)
        assert {file.suffix for file in Path(folder).iterdir()} <= {".json", ".safetensors"}


@given(st.lists(st.builds(p.Tree, data, data), min_size=1, max_size=3), data)
@example([p.Tree(None, None)], torch.ones(2, 1).as_strided((2, 1), (1, 2)))
def test_what_is_no_data_is_pickled_with_its_tensors_apart(trees: list[p.Tree], beside: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, value = Path(name), {"trees": trees, "beside": beside}
        assert bits(again(value, folder, trust=True)) == bits(value)
        listed = json.loads((folder / "v.json").read_text())["pickled"]
        assert [entry["at"] for entry in listed] == [f"trees[{index}]" for index in range(len(trees))]
        assert b"torch._utils" not in (folder / "v.pkl").read_bytes()
        with pytest.raises(CheckpointError) as refused:
            read_value(folder / "v", "the value", trust=False, main=main)
        more = f" (and {len(trees) - 1} more)" if len(trees) > 1 else ""
        assert str(refused.value).startswith(
            f"HF915: the value: 'trees[0]' is of type tests.runtime.value_file_programs.Tree{more}, which is not plain"
        )


def test_the_field_of_an_object_is_set_without_its_constructor(tmp_path: Path) -> None:
    counted = object.__new__(p.Counted)
    counted.total, counted.made = 3, [1]
    assert counted.double == 6  # which it keeps
    loaded = again(counted, tmp_path)
    assert (loaded.total, loaded.made, loaded.double, type(loaded)) == (3, [1], 6, p.Counted)


def deep() -> Any:
    """Deeper than data go."""
    value: Any = []
    for _ in range(80):
        value = [value]
    return value


@pytest.mark.parametrize("value", [p.Deleted("x"), torch.ones(2).to_sparse(), np.array([None]), lambda: 0, deep()])
def test_what_could_do_something_is_no_data(value: Any, tmp_path: Path) -> None:
    write_value(tmp_path / "v", value, script=False)
    assert (tmp_path / "v.pkl").exists()


def test_an_object_of_a_class_without_a_name_is_pickled_as_one(tmp_path: Path) -> None:
    @dataclass
    class Local:
        tree: p.Tree
        x: torch.Tensor

    loaded = again([Local(p.Tree(1), torch.ones(2))], tmp_path, trust=True)
    assert (loaded[0].tree.children, loaded[0].x.tolist()) == ([1], [1.0, 1.0])
    [listed] = json.loads((tmp_path / "v.json").read_text())["pickled"]
    assert (listed["at"], listed["type"].rpartition(".")[2]) == ("[0]", "Local")
    assert set(load_file(tmp_path / "v.safetensors")) == {"pickled"}


def test_numbers_of_thousands_of_digits_are_read(tmp_path: Path) -> None:
    assert again([10**5000, -(2**63), 2**63], tmp_path) == [10**5000, -(2**63), 2**63]


def test_tensors_that_share_their_memory_are_written_once(tmp_path: Path) -> None:
    whole = torch.arange(10_000.0)
    first, second = again([whole, whole], tmp_path)
    assert first is second
    assert (tmp_path / "v.safetensors").stat().st_size < 1.1 * 40_000
    again(whole[:10], tmp_path / "..")
    assert (tmp_path / "../v.safetensors").stat().st_size < 200
    module = torch.nn.BatchNorm1d(2)
    loaded = again(module.state_dict(), tmp_path)
    assert vars(loaded) == vars(module.state_dict())  # versions by which torch loads
    module.load_state_dict(loaded)


def test_what_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"HF908: a recording cannot hold tests.*Tree at 'rows\[1\]': TypeError"):
        write_value(tmp_path / "v", {"rows": [1, p.Tree(threading.Lock())]}, script=False)


# -- files that lie


def written(folder: Path, value: Any) -> Path:
    (folder / "v.json").write_text(sealed({"value": value, "pickled": [], "files": {}}))
    return folder / "v"


def sealed_again(folder: Path, text: str, **changed: Any) -> None:
    """Write a value's JSON with the digests that fit, as an author of a recording can."""
    fields = json.loads(text)
    files = {suffix: file_digest(folder / f"v{suffix}") for suffix in fields["files"]}
    without_digest = {key: value for key, value in fields.items() if key != "sha256"}
    (folder / "v.json").write_text(sealed({**without_digest, "files": files, **changed}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"$pickle": 0}, "it refers to a pickle that it does not list"),
        ({"$dataclass": "subprocess:Popen", "fields": {}}, "'subprocess:Popen' is not what it was"),
        ({"$dataclass": "tests.runtime.value_file_programs:Deleted", "fields": {"path": "x"}}, "is not what it was"),
        ({"$dataclass": "tests.runtime.value_file_programs:Tree", "fields": {"children": []}}, "is not what it was"),
        ({"$record": "builtins:dict", "columns": {}}, "'builtins:dict' is not what it was"),
        ({"$record": "tests.runtime.value_file_programs:Rows", "columns": {"y": 1}}, "has the columns x, tokens"),
        ({"$enum": "os:environ", "member": "HOME"}, "'os:environ' is not what it was"),
        ({"$namedtuple": "builtins:list", "items": []}, "'builtins:list' is not what it was"),
        ({"$function": "os:system"}, "'os:system' is not what it was"),
        ({"$class": "os:no_such"}, "has no 'no_such' now"),
        ({"$class": "no_such_module:x"}, "No module named"),
        ({"$dtype": "load"}, "load"),
        ({"$tensor": "x", "dtype": "float32", "shape": [2]}, "v.safetensors"),
        ({"$no_such": 1}, "no_such"),
        ({"$tuple": 1}, "TypeError"),
        ({"$slice": [1, 2, 3, 4]}, "TypeError"),
        ([[]], None),
    ],
)
def test_data_make_nothing_but_data(value: Any, message: str | None, tmp_path: Path) -> None:
    file = written(tmp_path, value)
    if message is None:
        assert read_value(file, "the value", trust=False, main=main) == value
        return
    with pytest.raises(CheckpointError, match=rf"HF906: the value cannot be read: .*v.json: (?s:.*){message}"):
        read_value(file, "the value", trust=False, main=main)


def test_a_tensor_has_no_more_memory_than_its_file(tmp_path: Path) -> None:
    again(torch.ones(4), tmp_path)
    content = json.loads((tmp_path / "v.json").read_text())
    text = json.dumps(content)
    for changed in (
        text.replace("[4]", '[4], "stride": [1000]'),
        text.replace("[4]", "[9]"),
        text.replace("float32", "float64"),
    ):
        assert changed != text
        sealed_again(tmp_path, changed)
        with pytest.raises(CheckpointError, match=r"HF906: (?!.*digest)"):
            read_value(tmp_path / "v", "the value", trust=False, main=main)


@given(st.data())
def test_no_byte_changes_unseen(drawn: st.DataObject) -> None:
    """Whatever byte changes or is cut off, reading says what it was, and before any of it is loaded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        value = {"rows": torch.ones(3), "texts": ["a", p.Config(1.0), p.Color.RED], "tree": p.Tree(1)}
        write_value(folder / "v", value, script=False)
        file = folder / drawn.draw(st.sampled_from(["v.json", "v.safetensors", "v.pkl"]))
        content = bytearray(before := file.read_bytes())
        at = drawn.draw(st.integers(0, len(content) - 1))
        content[at] = drawn.draw(st.integers(0, 255))
        changed = bytes(content[: drawn.draw(st.sampled_from([at, None]))])
        file.write_bytes(changed)
        assume(changed != before and not (file.suffix == ".json" and _same_json(changed, before)))
        with pytest.raises(CheckpointError, match="HF906: the value cannot be read: .*" + re.escape(str(file))):
            read_value(folder / "v", "the value", trust=True, main=main)


def _same_json(one: bytes, other: bytes) -> bool:
    """Whether only the space between tokens differs."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_a_pickle_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    write_value(tmp_path / "v", [p.Tree(1)], script=False)
    text = (tmp_path / "v.json").read_text()
    (tmp_path / "v.pkl").write_bytes(pickle.dumps([p.Evil()]))
    p.RAN.clear()
    for pickled in (json.loads(text)["pickled"], list[Any]()):
        sealed_again(tmp_path, text, pickled=pickled)
        with pytest.raises(CheckpointError, match=r"HF915|does not list"):
            read_value(tmp_path / "v", "the value", trust=False, main=main)
    assert p.RAN == []
    sealed_again(tmp_path, text)
    read_value(tmp_path / "v", "the value", trust=True, main=main)
    assert p.RAN == [1]
