"""One worker of two, which makes no group."""

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


with RayResourcePool([2], use_gpu=False) as pool, RayWorkerGroup(pool, RayClassWithInitArgs(Counter)) as group:
    # good: attached = RayWorkerGroup.from_detached(group.worker_names, RayClassWithInitArgs(Counter))
    attached = RayWorkerGroup.from_detached(group.worker_names[:1], RayClassWithInitArgs(Counter))  # <- bad
