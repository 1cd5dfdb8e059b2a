"""``check_worker``: roles that are the same on every mesh pass, others are reported with the meshes."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import hfdsl as hf
from hfdsl.errors import WiringError
from hfdsl.rl import workers as w
from hfdsl.rl.batches import Sequences
from hfdsl.testing import BrokenWorker, check_worker


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Sum(hf.Batch):
    total: hf.Metric[float, Literal["mean"]]


@hf.requires("pp == 1")
class Model(hf.Worker):
    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.calls = scale, 0

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def scaled(self, rows: Rows, by: float = 1.0) -> Rows:
        return Rows(x=rows.x.tensor * self.scale * by)

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def centered(self, rows: Rows) -> Rows:
        """Forgets that other ranks have other rows."""
        return Rows(x=rows.x.tensor - rows.x.tensor.mean())

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def truly_centered(self, rows: Rows) -> Rows:
        peers = self.axis("dp")
        mean = peers.all_reduce(rows.x.tensor.sum()) / (len(rows) * peers.size)
        return Rows(x=rows.x.tensor - mean)

    @hf.register(hf.Dispatch.THREE_D_PROTO)
    def split_over_tensor_ranks(self, rows: Rows) -> Rows:
        """Right on its first tensor rank where there is one alone: the others have the rest of the sum."""
        share = rows.x.tensor / self.mesh.tp
        return Rows(x=share if self.mesh.tp > 2 else share * self.mesh.tp)

    @hf.register(hf.Dispatch.DP_PROTO)
    def learns(self, rows: Rows) -> Sum:
        """Its second step is another on several ranks."""
        self.calls += 1
        return Sum(total=float(self.calls if self.calls == 1 else self.calls + self.world_size))

    @hf.register(hf.Dispatch.ONE_TO_ALL)
    def everywhere(self, rows: Rows) -> Rows:
        return rows


ROWS = Rows(x=torch.arange(12.0))


def test_methods_with_the_same_values_on_all_meshes_pass() -> None:
    check_worker(Model, "scaled", ROWS, init=(2.0,))
    check_worker(Model, "scaled", ROWS, given={"by": 0.5})
    check_worker(Model, "truly_centered", ROWS, tolerance=1e-6)
    check_worker(Model, "learns", ROWS, meshes=[hf.Mesh(dp=2)])


def test_a_method_that_forgets_the_other_ranks_is_reported_with_the_meshes() -> None:
    with pytest.raises(BrokenWorker) as raised:
        check_worker(Model, "centered", ROWS, meshes=[hf.Mesh(dp=2), hf.Mesh(tp=2), hf.Mesh(pp=2)])
    assert str(raised.value) == (
        "Model.centered gives other values on 1 of 2 meshes than on one rank\n"
        "  hf.Mesh(dp=2): column 'x', row 0 is -2.5 (and 11 more of 12 values) instead of -5.5"
    )


def test_every_mesh_that_the_role_claims_is_tried() -> None:
    with pytest.raises(
        BrokenWorker, match=r"on 2 of \d+ meshes than on one rank\n  hf\.Mesh\(tp=3\): .*\n  hf.Mesh\(tp=4\)"
    ):
        check_worker(Model, "split_over_tensor_ranks", ROWS, meshes=[hf.Mesh(tp=n) for n in (1, 2, 3, 4)])


def test_rows_that_a_mesh_does_not_divide_say_nothing_of_it() -> None:
    check_worker(Model, "scaled", Rows(x=torch.arange(2.0)))


def test_later_steps_are_compared_too() -> None:
    with pytest.raises(BrokenWorker, match=r"hf\.Mesh\(dp=2\): step 1: column 'total' is 4\.0 instead of 3\.0"):
        check_worker(Model, "learns", ROWS, meshes=[hf.Mesh(dp=2)], steps=2)


class Named(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def scaled(self, role: Rows, rows: Rows, steps: int, meshes: float = 1.0) -> Rows:
        return Rows(x=(role.x.tensor + rows.x.tensor) * steps * meshes)


def test_parameters_may_have_the_names_of_options() -> None:
    check_worker(Named, "scaled", ROWS, ROWS, given={"steps": 3, "meshes": 0.5}, meshes=[hf.Mesh(dp=2)], steps=2)


def test_a_ready_role_with_the_model_of_the_demo() -> None:
    """Over data-parallel ranks it computes other micro-batches, over tensor ranks parts of sums."""
    from examples import grpo_reasoning as demo

    ids = torch.randint(2, 20, (8, 18), generator=torch.Generator().manual_seed(0))
    sequences = Sequences(ids=ids, mask=ids > 0, response_mask=ids[:, 9:] > 0)
    config = w.ReferenceConfig(w.ModelConfig(config=demo.DECODER))
    meshes = [hf.Mesh(dp=2), hf.Mesh(dp=2, tp=2, order=("tp", "dp", "pp"))]
    check_worker(w.Reference, "log_probs", sequences, init=(config,), meshes=meshes, tolerance=1e-5)


class Remembering(hf.Worker):
    """What its class holds outlives each of its processes."""

    seen: list[int] = []  # noqa: RUF012  # the mistake

    @hf.register(hf.Dispatch.DP_PROTO)
    def count(self, rows: Rows) -> Rows:
        self.seen.append(len(rows))
        return Rows(x=rows.x.tensor + len(self.seen))


def test_state_outside_an_object_is_reported_as_what_it_is() -> None:
    with pytest.raises(
        BrokenWorker,
        match=r"Remembering\.count is not deterministic: it keeps state outside .*\n"
        r"  a second run on one rank: column 'x', row 0 is 2\.0 \(and 3 more of 4 values\) instead of 1\.0$",
    ):
        check_worker(Remembering, "count", Rows(x=torch.zeros(4)), meshes=[hf.Mesh(dp=2)])


class Numbered(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def number(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + self.rank)

    @hf.register(hf.Dispatch.DP_PROTO)
    def write(self, rows: Rows) -> Rows:
        rows.x.tensor.mul_(2)
        return rows


def test_a_report_shows_the_smallest_meshes() -> None:
    meshes = [hf.Mesh(dp=dp) for dp in (2, 3, 4, 6, 8, 12)]
    with pytest.raises(BrokenWorker, match=r"on 6 of 6 meshes") as raised:
        check_worker(Numbered, "number", Rows(x=torch.zeros(24)), meshes=meshes)
    _, *lines = str(raised.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[:-1]] == [f"hf.Mesh(dp={dp})" for dp in (2, 3, 4, 6)]
    assert lines[-1] == "  and on 2 more"


def test_errors_name_the_role() -> None:
    with pytest.raises(WiringError, match=r"'Numbered\.write' wrote into column 'x' of its argument 'rows'"):
        check_worker(Numbered, "write", Rows(x=torch.zeros(4)))
