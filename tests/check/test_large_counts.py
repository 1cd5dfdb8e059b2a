# mypy: disable-error-code="empty-body"
"""Numbers that no count can be, in every place that takes one: a typed finding or error, of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.rl.training.toml.tables import parse_value, read_toml


class B(hf.Dim): ...


class R(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B, R]


class Role(hf.Worker):
    def __init__(self, part: int = 1) -> None:
        self.part = part

    @register(Dispatch.DP_PROTO)
    @hf.requires("B % part == 0", "R < 100 * part")
    def apply(self, rows: Rows) -> Rows: ...


@hf.function
def noisy(rows: Rows, seed: int = 1) -> Rows: ...


@hf.dataflow
def program(rows: Rows, role: Role, *, times: int = 2, seed: int = 1) -> Rows:
    return role.apply(noisy(hf.repeat(rows, times), seed=seed))


@hf.dataflow
def halves(rows: Rows, role: Role, *, parts: int = 2) -> Rows:
    first, *_ = hf.minibatches(rows, parts)
    return role.apply(first)


@hf.dataflow
def first_rows(rows: Rows, role: Role, *, count: int = 2) -> Rows:
    return role.apply(hf.take(rows, count))


def deployment(processes: int = 2, dp: int = 2, part: int = 1) -> hf.Deployment:
    pool = hf.ResourcePool([processes])
    return hf.Deployment(role=hf.place(Role, part, pool=pool, mesh=hf.Mesh(dp=dp)))


def cluster(count: int = 1, gpus: int = 8, gib: int = 80) -> hf.Cluster:
    return hf.Cluster(hf.Nodes(count, gpus=gpus, gpu_memory_gib=gib, cpus=8))


def record(length: Any) -> object:
    class Fixed(hf.Batch):
        x: f32[B, Literal[length]]  # type: ignore[valid-type]

    return Fixed


SIZES = {B: 64, R: 4}

PLACES: dict[str, tuple[str, Callable[[int], object]]] = {
    "a size": ("HF302", lambda n: program.check(deployment(), {B: n, R: 4})),
    "one of several sizes": ("HF302", lambda n: program.check(deployment(), {B: (4, n), R: 4})),
    "an inner size": ("HF302", lambda n: program.check(deployment(), {B: 4, R: n})),
    "sizes without a deployment": ("HF302", lambda n: program.check(dims={B: n, R: 4})),
    "a pool": ("HF514", lambda n: deployment(processes=n)),
    "a part of a pool": ("HF514", lambda n: hf.ResourcePool([4]).split([n, 1])),
    "a mesh": ("HF501", lambda n: deployment(dp=n)),
    "nodes": ("HF523", lambda n: cluster(count=n)),
    "GPUs": ("HF523", lambda n: cluster(gpus=n)),
    "memory of a GPU": ("HF523", lambda n: cluster(gib=n)),
    "memory of a role": ("HF504", lambda n: hf.place(Role, pool=hf.ResourcePool([1]), gpu_memory=n)),  # type: ignore[arg-type]
    "a group": ("HF113", hf.Grouped),
    "a literal": ("HF101", record),
    "an option that repeats": ("HF304", lambda n: program.given(times=n).check(deployment(), SIZES)),
    "an option of mini-batches": ("HF304", lambda n: halves.given(parts=n).check(deployment(), SIZES)),
    "an option that takes": ("HF304", lambda n: first_rows.given(count=n).check(deployment(), SIZES)),
}
TOO_LARGE = {"2**63": 2**63, "401 digits": 10**400, "5,001 digits": 10**5000}


@pytest.mark.parametrize("number", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize(("code", "use"), PLACES.values(), ids=PLACES)
def test_a_number_that_no_count_can_be_is_refused(code: str, use: Callable[[int], object], number: int) -> None:
    try:
        report: Any = use(number)
    except hf.HfError as error:
        codes, text = {error.code}, str(error)
    else:
        codes, text = set(report.codes), str(report)
    assert codes == {code}
    assert len(text) < 3000


@pytest.mark.parametrize(("digits", "code"), [(19, "HF322"), (400, "HF322"), (5000, "HF323")])
def test_a_setting_that_a_requirement_names_may_be_large(digits: int, code: str) -> None:
    report = program.check(deployment(part=10**digits), SIZES)
    assert set(report.codes) == {code}
    assert "Exceeds the limit" not in str(report)


@pytest.mark.parametrize("number", [2**63 - 1, *TOO_LARGE.values()], ids=["2**63 - 1", *TOO_LARGE])
def test_a_number_that_counts_nothing_may_be_of_any_size(number: int) -> None:
    assert program.given(seed=number).check(deployment(), SIZES).codes == ()


@pytest.mark.parametrize("size", [2**62, 2**63 - 2])
def test_the_largest_counts_are_counted_with(size: int) -> None:
    assert set(program.check(deployment(), {B: size, R: 4}).codes) <= {"HF804"}  # what a driver can pass on


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 400, "9" * 5000, "1_" * 4400 + "1"], ids=len)
def test_a_whole_number_in_toml_has_64_bits(digits: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"a = 1\n[dims]\nB = {digits}\nR = [1, 2]\n")
    if len(digits) == 19:
        digits = str(2**63)
        file.write_text(f"[dims]\n\nB = [4, {digits}]\n")
    with pytest.raises(hf.HfError, match=r"HF901: .*2\*\*63 - 1") as raised:
        read_toml(file)
    assert str(raised.value.span) == f"{file}:3"
    with pytest.raises(hf.HfError, match=r"HF901: dims.B.*2\*\*63 - 1"):
        parse_value(digits, int, "dims.B")
    file.write_text(f"[[nodes]]\ncount = {digits}\ncpus = 8\n")
    with pytest.raises(hf.HfError, match="HF523: "):
        hf.Cluster.read(file)
