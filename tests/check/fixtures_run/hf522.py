"""A call after the group was shut down."""

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
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter))
    # good: group.add(1)
    group.shutdown()
    group.add(1)  # <- bad
