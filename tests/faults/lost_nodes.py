"""A script: a cluster of four nodes, of which the one with the trainer is lost within a step; prints what follows.

Its arguments are the folder of faults, the bytes of the trainer's state, and where copies of states are kept.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any, get_args

import ray
import torch
from ray.cluster_utils import Cluster

import hfdsl as hf
from hfdsl.deploy.retries import Copies
from hfdsl.errors import HfError
from tests.faults.failing_programs import FOLDER, PADDING, Prompts, deployment, ppo


def cluster_of(count: int) -> tuple[Cluster, list[Any]]:
    """A cluster of so many nodes, and those that have room for two processes: all but the one of the driver."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=2) for _ in range(count - 1)]
    ray.init(address=cluster.address)
    return cluster, nodes


def lose_within(cluster: Cluster, node: Any, folder: Path, call: str) -> None:
    """Lose a node once this call has begun on a rank of it."""
    fault = folder / call
    fault.write_text("slow")

    def lose() -> None:
        while fault.exists() and not (folder / "reached").exists():
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)
        fault.unlink()

    threading.Thread(target=lose).start()


def main(folder: Path, padding: str, retries: hf.Retries) -> None:
    cluster, nodes = cluster_of(4)
    plan = ppo.compile(deployment(True))
    prompts = Prompts(x=torch.arange(4.0))
    environment = {FOLDER: str(folder), PADDING: padding}
    with plan.launch("ray", worker_env=environment, deadline=120.0, retries=retries) as running:
        print("metrics", running.step(prompts).loss.value)
        places: dict[str, list[str]] = running._processes.backend._hosts  # type: ignore[union-attr]  # of Ray
        (lost,) = (node for node in nodes if node.node_id == places["actor"][0])
        lose_within(cluster, lost, folder, "actor.update 1")
        try:
            print("metrics", running.step(prompts).loss.value)
        except HfError as error:
            print("error", type(error).__name__, error)


if __name__ == "__main__":
    (copies,) = (place for place in get_args(Copies) if place == sys.argv[3])
    main(Path(sys.argv[1]), sys.argv[2], hf.Retries(wait=60.0, copies=copies))
