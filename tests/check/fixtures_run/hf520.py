"""A variable with which the group itself gives a process its rank."""

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.single_controller import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Counter(hf.Worker):
    def __init__(self) -> None:
        self.value = 0

    @register(Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        self.value += number
        return self.value


with RayResourcePool([1], use_gpu=False) as pool:
    # good: group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter), worker_env={"NCCL_DEBUG": "INFO"})
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter), worker_env={"RANK": "0"})  # <- bad
