"""A step that another thread begins while the first one has not returned."""

from threading import Event, Thread

import torch

import hfdsl as hf
from hfdsl import Dispatch, register

begun, done = Event(), Event()


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Slow(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def wait(self, rows: Rows) -> Rows:
        begun.set()
        done.wait(60)
        return rows


@hf.dataflow
def program(rows: Rows, slow: Slow) -> Rows:
    return slow.wait(rows)


plan = program.compile(hf.Deployment(slow=hf.place(Slow, pool=hf.ResourcePool([1], name="pool"))))
with plan.launch("local") as running:
    first = Thread(target=running.step, args=(Rows(x=torch.zeros(2)),), name="first")
    first.start()
    try:
        begun.wait(60)
        # good: done.set()
        # good: first.join()
        running.step(Rows(x=torch.zeros(2)))  # <-
    finally:
        done.set()
        first.join()
