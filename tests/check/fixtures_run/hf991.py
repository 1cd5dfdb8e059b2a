"""The times of another dataflow than the one that is drawn."""

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.plan.timeline import Interval, Timeline


class B(hf.Dim): ...


class Rows(hf.Batch):
    ids: hf.i64[B]


class Role(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def work(self, rows: Rows) -> Rows:
        return rows


@hf.dataflow
def program(rows: Rows, role: Role) -> Rows:
    return role.work(rows)


plan = program.compile(hf.Deployment(role=hf.place(Role, pool=hf.ResourcePool([2], use_gpu=False))), {B: 4})
# good: label = "role.work"
label = "critic.values"  # bad
step = Timeline("program", 0, 0.0, 1.0, (Interval(("role", 0), "call", label, 0.0, 1.0),))
plan.to_networkx(step)  # <-
