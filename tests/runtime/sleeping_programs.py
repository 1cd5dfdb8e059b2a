"""Roles that only sleep: what runs when is all that there is to see."""

from __future__ import annotations

import time

import hfdsl as hf

SECONDS = 0.3


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: hf.f32[B]


class Sleeper(hf.Worker):
    @hf.register(hf.Dispatch.DP_PROTO)
    def doze(self, rows: Rows) -> Rows:
        time.sleep(SECONDS)
        return Rows(x=rows.x.tensor + 1)


@hf.dataflow
def naps(rows: Rows, a: Sleeper, b: Sleeper, c: Sleeper) -> tuple[Rows, Rows]:
    rested = a.doze(rows)
    return b.doze(rested), c.doze(rested)
