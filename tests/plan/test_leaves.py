"""Bodies that leave their output otherwise than they were given their input: the collected value is the whole value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfdsl as hf
from hfdsl import register


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


GATHERED = hf.Protocol("GATHERED", split=("dp",), collect={"dp": "first", "tp": "first", "pp": "last"})
SLICE = hf.Protocol("SLICE", collect={"dp": "join", "tp": "join", "pp": "last"})
FINER = hf.Protocol("FINER", split=("dp",), collect={"dp": "join", "tp": "join", "pp": "last"})


class Role(hf.Worker):
    @register(GATHERED, leaves={"dp": hf.Replicated()})
    def gathered(self, rows: Rows) -> Rows:
        return Rows(x=torch.cat(self.axis("dp").all_gather(rows.x.tensor)) + 1)

    @register(SLICE, leaves={"dp": hf.Sharded(0), "tp": hf.Sharded(0)})
    def cut(self, rows: Rows) -> Rows:
        at = self.coordinates
        return Rows(x=rows.x.tensor.chunk(self.mesh.dp * self.mesh.tp)[at.dp * self.mesh.tp + at.tp] + 1)

    @register(FINER, leaves={"tp": hf.Sharded(0)})
    def finer(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor.chunk(self.mesh.tp)[self.coordinates.tp] + 1)

    @register(hf.Dispatch.THREE_D_PROTO, leaves={"pp": hf.Replicated()})
    def everywhere(self, rows: Rows) -> Rows:
        return Rows(x=rows.x.tensor + 1)


MESHES = hf.Mesh(dp=2, tp=2), hf.Mesh(dp=4), hf.Mesh(tp=4), hf.Mesh(pp=2, dp=2, tp=2, order=("tp", "dp", "pp"))


@hf.dataflow
def gathered(rows: Rows, role: Role) -> Rows:
    return role.gathered(role.gathered(rows))


@hf.dataflow
def cut(rows: Rows, role: Role) -> Rows:
    return role.cut(role.cut(rows))


@hf.dataflow
def finer(rows: Rows, role: Role) -> Rows:
    return role.cut(role.finer(rows))


@hf.dataflow
def everywhere(rows: Rows, role: Role) -> Rows:
    return role.finer(role.everywhere(rows))


@pytest.mark.parametrize("flow", [gathered, cut, finer, everywhere], ids=lambda flow: flow.__name__)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_collected_outputs_are_the_whole_value(flow: Any, mesh: hf.Mesh) -> None:
    pool = hf.ResourcePool([mesh.world_size], use_gpu=False)
    deployment = hf.Deployment(role=hf.place(Role, pool=pool, mesh=mesh))
    assert flow.check(deployment, dims={B: 8}).findings == ()
    with flow.compile(deployment, dims={B: 8}).launch() as running:
        assert running.step(Rows(x=torch.arange(8.0))).x.tensor.tolist() == [x + 2 for x in range(8)]


def test_pad_rows_and_balanced_rows_come_back_where_they_went() -> None:
    with pytest.raises(hf.ProtocolError, match=r"HF418.*leaves dp=R: pad rows are found only where"):
        register(GATHERED, pad="cycle", leaves={"dp": hf.Replicated()})
    with pytest.raises(hf.ProtocolError, match=r"HF418.*leaves tp=S\(0\)"):
        register(FINER, pad="cycle", leaves={"tp": hf.Sharded(0)})
    with pytest.raises(hf.ProtocolError, match=r"HF425.*leaves dp=R: rows are put back into the caller's order only"):
        register(GATHERED, balance="x", leaves={"dp": hf.Replicated()})
    assert callable(register(FINER, balance="x", leaves={"dp": hf.Sharded(0), "pp": hf.Replicated()}))
    assert callable(register(FINER, pad="cycle", leaves={"dp": hf.Sharded(0), "pp": hf.Replicated()}))


def test_parts_that_a_body_cuts_are_equal() -> None:
    pool = hf.ResourcePool([4], use_gpu=False)
    deployment = hf.Deployment(role=hf.place(Role, pool=pool, mesh=hf.Mesh(dp=2, tp=2)))
    [finding] = finer.check(deployment, dims={B: 6}).findings
    assert (finding.code, finding.help[0].partition(":")[0]) == ("HF310", "set B to 4 or 8")
    assert finding.message.startswith("'role.finer': B = 6 rows do not make 4 equal parts, one for each collected rank")
    assert gathered.check(deployment, dims={B: 6}).findings == ()
