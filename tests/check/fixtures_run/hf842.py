"""A body that one row of the batch ends, whenever it is run: the error names the rows that its rank had."""

import os  # bad
import signal  # bad
import warnings
from typing import Literal

import torch

import hfdsl as hf
from hfdsl import Dispatch, f32, register
from hfdsl.errors import HfWarning


class B(hf.Dim): ...


class Rows(hf.Batch):
    x: f32[B]


class Score(hf.Batch):
    mean: hf.Metric[float, Literal["mean"]]


def score(x: float) -> float:
    if x == 5:
        # good: return 0.0
        os.kill(os.getpid(), signal.SIGKILL)  # bad
    return 1 / (x - 5)


class Judge(hf.Worker):
    @register(Dispatch.DP_PROTO)
    def score(self, rows: Rows) -> Score:
        return Score(mean=sum(score(float(x)) for x in rows.x.tensor) / len(rows))


@hf.dataflow
def program(rows: Rows, judge: Judge) -> Score:
    return judge.score(rows)


warnings.simplefilter("ignore", HfWarning)  # of each loss from which the run continues
deployment = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([2], use_gpu=False, name="judges")))
with program.compile(deployment).launch("ray", retries=hf.Retries(every=None)) as running:
    running.step(Rows(x=torch.arange(8.0)))  # <-
