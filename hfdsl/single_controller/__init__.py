"""The imperative layer: worker groups on resource pools, called from one controller. Plans are lowered onto it."""

from hfdsl.protocols import (
    Dispatch,
    Execute,
    Mesh,
    Worker,
    collect_all_to_all,
    get_predefined_dispatch_fn,
    register,
    register_dispatch_mode,
    update_dispatch_mode,
)
from hfdsl.single_controller.calls import Future
from hfdsl.single_controller.group import RayWorkerGroup
from hfdsl.single_controller.pool import RayResourcePool, merge_resource_pool, split_resource_pool
from hfdsl.single_controller.roles import (
    RayClassWithInitArgs,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
)

__all__ = [
    "Dispatch",
    "Execute",
    "Future",
    "Mesh",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "Worker",
    "collect_all_to_all",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "get_predefined_dispatch_fn",
    "merge_resource_pool",
    "register",
    "register_dispatch_mode",
    "split_resource_pool",
    "update_dispatch_mode",
]
