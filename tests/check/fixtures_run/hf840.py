"""A body whose process dies whenever it is run, however often it is repeated."""

import os
import signal
import warnings

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.errors import HfWarning


def end(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return pid


class Judge(hf.Worker):
    @register(Dispatch.ONE_TO_ALL)
    def count(self) -> int:
        # good: return os.getpid()
        return end(os.getpid())  # bad


@hf.dataflow
def program(judge: Judge) -> hf.PerRank[int]:
    return judge.count()


warnings.simplefilter("ignore", HfWarning)  # of each loss from which the run continues
deployment = hf.Deployment(judge=hf.place(Judge, pool=hf.ResourcePool([1], use_gpu=False, name="judges")))
with program.compile(deployment).launch("ray", retries=hf.Retries(attempts=1, every=None)) as running:
    running.step()  # <-
