# mypy: disable-error-code="empty-body"
"""Other sizes: which dims are looked at, what each size is compared with, and in which words it is offered."""

from __future__ import annotations

import hfdsl as hf
from hfdsl import Dispatch, Mul, register


class B(hf.Dim): ...


class N(hf.Dim): ...


class R(hf.Dim): ...


class P(hf.Dim): ...


class Q(hf.Dim): ...


class S(hf.Dim): ...


class T(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B, R]


class Numbers(hf.Batch):
    x: hf.f32[B]


class Table(hf.Batch):
    x: hf.f32[Mul[B, N]]


class Cube(hf.Batch):
    x: hf.f32[B, N, R]


class Wide(hf.Batch):
    x: hf.f32[B, N, P, Q, S, T]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def split(self, numbers: Numbers) -> None: ...

    @register(Dispatch.DP_PROTO)
    def read(self, table: Table) -> None: ...

    @register(Dispatch.DP_PROTO, pad="repeat_last")
    def count(self, numbers: Numbers) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("B % 4 == 0 and R <= 8")
    def pick(self, rows: Rows) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("R * B * N % 24 == 0", "B <= 6", "N <= 6", "R <= 6")
    def fill(self, cube: Cube) -> None: ...

    @register(Dispatch.ONE_TO_ALL)
    @hf.requires("P * Q * S * T % 2 == 0", "B % 3 == 0", "B * N % 8 == 0", "B <= 20")
    def look(self, wide: Wide) -> None: ...


def placed(**ranks: int) -> hf.Deployment:
    return hf.Deployment(
        **{name: hf.place(Role, pool=hf.ResourcePool([n], use_gpu=False, name=name)) for name, n in ranks.items()}
    )


@hf.dataflow
def picking(rows: Rows, role: Role) -> None:
    role.pick(rows)


def test_a_dim_without_a_size_is_not_given_one() -> None:
    [finding] = picking.check(dims={B: 6}).findings
    assert finding.help == ("set B to 4 or 8: every split and requirement then holds",)


@hf.dataflow
def counting(numbers: Numbers, sixteen: Role, five: Role) -> None:
    sixteen.split(numbers)
    five.count(numbers)


def test_a_size_of_several_is_compared_with_itself() -> None:
    split, padded = counting.check(placed(sixteen=16, five=5), {B: (512, 100)}).findings
    assert (split.code, padded.code) == ("HF310", "HF317")
    assert split.help == (), "96 and 112 rows would be padded, which 100 rows are not, though 512 are"
    assert split.notes == ("for B = 100 of 512, 100", "with B = 100 set to 96 or 112 this holds")


@hf.dataflow
def counting_and_reading(numbers: Numbers, table: Table, sixteen: Role, five: Role) -> None:
    sixteen.read(table)
    five.count(numbers)


def test_one_number_for_two_dims_is_tried_for_each() -> None:
    [finding] = counting_and_reading.check(placed(sixteen=16, five=5), {B: 10, N: 9}).findings
    sizes = "set N to 8 or 16: every split and requirement then holds"
    ranks = "give pool 'sixteen' 15 slots: processes [15] or 18 slots: processes [18]"
    assert finding.help == (sizes, ranks), "16 rows would be padded"


@hf.dataflow
def reading(table: Table, role: Role) -> None:
    role.read(table)


def test_the_nearest_size_is_one_that_works_with_all_sizes_of_another_dim() -> None:
    for finding in reading.check(placed(role=16), {B: 20, N: (2, 1)}):
        assert "set B to 16 or 32: every split and requirement then holds" in finding.help


@hf.dataflow
def filling(cube: Cube, role: Role) -> None:
    role.fill(cube)


def test_of_several_pairs_the_one_that_changes_least_is_offered() -> None:
    findings = filling.check(dims={B: 2, N: 5, R: 5}).findings
    assert [finding.help for finding in findings] == [
        ("set N to 4 and R to 6: every split and requirement then holds",)
    ]


@hf.dataflow
def looking(wide: Wide, role: Role) -> None:
    role.look(wide)


def test_pairs_without_a_dim_of_the_finding_are_not_looked_at() -> None:
    sizes = dict.fromkeys((P, Q, S, T), 2)
    findings = looking.check(dims={B: 10, N: 3, **sizes}).findings
    assert [finding.help for finding in findings] == [
        ("set B to 12 and N to 2: every split and requirement then holds",)
    ] * len(findings)


def test_a_pair_beside_another_mistake() -> None:
    findings = looking.check(dims={B: 10, N: 3, P: 1, Q: 1, S: 1, T: 1}).findings
    assert "set B to 12 and N to 2: this then holds" in [line for finding in findings for line in finding.help]


def test_no_pair_is_offered_for_a_dim_with_several_sizes() -> None:
    assert looking.check(dims={B: 12, N: 2, **dict.fromkeys((P, Q, S, T), 2)}).ok
    findings = looking.check(dims={B: (10, 12), N: 3, **dict.fromkeys((P, Q, S, T), 2)}).findings
    assert findings
    assert not any(" and " in line.partition(":")[0] for finding in findings for line in finding.help)
