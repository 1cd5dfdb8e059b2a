"""A script: a cluster of four nodes, of which one is lost within a step, run by run; prints what follows.

Its argument is a folder for faults and for decisions. A lost node is replaced by another one before the next run.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch
from ray.cluster_utils import Cluster

import hfdsl as hf
from hfdsl.deploy.retries import Copies
from hfdsl.errors import HfError, HfWarning
from hfdsl.plan.compiled import CompiledPlan
from hfdsl.protocols.queueing import Late
from hfdsl.runtime import failures
from hfdsl.runtime.recovery import steps
from hfdsl.runtime.running import Running
from tests import fork_server
from tests.faults.failing_programs import FOLDER, PADDING, B, Prompts, deployment, ppo
from tests.faults.queued_programs import queued, queued_deployment, stream_prompts


class LostTrainer(NamedTuple):
    """The node of the trainer is lost: the bytes of its state, and where copies are kept."""

    padding: int
    copies: Copies


class LostInStream(NamedTuple):
    """The node of a call is lost while a stream runs whose queue treats late rows so."""

    late: Late
    call: str

    def plan(self) -> CompiledPlan:
        """The program, in two groups of processes."""
        return queued.given(late=self.late).compile(queued_deployment(), dims={B: 4})


# Ray keeps small states with the driver, and large ones on the node of the process that made them.
CASES: dict[str, LostTrainer | LostInStream] = {
    "small": LostTrainer(0, "node"),
    "large": LostTrainer(3_000_000, "node"),
    "large, two copies": LostTrainer(3_000_000, "peers"),
    "stream, engine": LostInStream("wait", "judge.score"),
    "stream, trainer": LostInStream("wait", "actor.update"),
    "stream that drops": LostInStream("drop", "actor.update"),
}


HEALTH_CHECKS = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
"""So that Ray finds out in 2 s that a node is gone, instead of 12."""


def log_of(folder: Path, name: str) -> Path:
    """The decisions of a stream."""
    return folder / f"log of {name}"


@dataclass
class Nodes:
    """A cluster whose driver has a node of its own, and the nodes that have room for two processes each."""

    cluster: Cluster
    nodes: list[Any]

    @classmethod
    def start(cls, count: int) -> Nodes:
        """A cluster with so many nodes for processes."""
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH_CHECKS}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = [cluster.add_node(num_cpus=2) for _ in range(count)]
        ray.init(address=cluster.address, log_to_driver=False)
        return cls(cluster, nodes)

    def lose_within(self, running: Running, folder: Path, call: str) -> None:
        """Lose the node of a call once it has begun on rank 1."""
        group = next(group.name for group in running.plan.groups if call.partition(".")[0] in group.roles)
        places: dict[str, list[str]] = running._processes.backend._hosts  # type: ignore[union-attr]  # of Ray
        (lost,) = (node for node in self.nodes if node.node_id == places[group][0])
        fault, reached = folder / f"{call} 1", folder / "reached"
        fault.write_text("slow")

        def lose() -> None:
            while not reached.exists():
                time.sleep(0.05)
            fault.unlink()
            reached.unlink()
            self.cluster.remove_node(lost, allow_graceful=False)

        self.nodes.remove(lost)
        threading.Thread(target=lose, daemon=True).start()

    def add(self) -> None:
        """Add a node in the place of the one that was lost."""
        self.nodes.append(self.cluster.add_node(num_cpus=2))


def run(nodes: Nodes, case: LostTrainer | LostInStream, folder: Path, log: Path) -> None:
    """One case."""
    if isinstance(case, LostTrainer):
        plan, copies, padding = ppo.compile(deployment("split")), case.copies, case.padding
    else:
        plan, copies, padding = case.plan(), "node", 0
    environment, retries = {FOLDER: str(folder), PADDING: str(padding)}, hf.Retries(wait=60.0, copies=copies)
    with plan.launch("ray", seed=5, worker_env=environment, deadline=120.0, retries=retries) as running:
        if isinstance(case, LostTrainer):
            prompts = Prompts(x=torch.arange(4.0))
            print("metrics", running.step(prompts).loss.value)
            nodes.lose_within(running, folder, "actor.update")
            try:
                print("metrics", running.step(prompts).loss.value)
            except HfError as error:
                print("error", type(error).__name__, error)
        else:
            for number, metrics in enumerate(running.stream(stream_prompts(), log=log)):
                print("metrics", metrics.loss.value)
                if number == 1:
                    nodes.lose_within(running, folder, case.call)
        print("lost", *(name for recovered in running.recoveries for name in recovered.lost))


def main(folder: Path) -> None:
    fork_server.use()
    warnings.simplefilter("ignore", HfWarning)
    steps.LOSS_SECONDS = failures.NODE_SECONDS = 6.0
    nodes = Nodes.start(3)
    faults = folder / "faults"
    faults.mkdir()
    for name, case in CASES.items():
        start = time.monotonic()
        print("case", name)
        run(nodes, case, faults, log_of(folder, name))
        print(f"seconds {time.monotonic() - start:.1f}", flush=True)
        nodes.add()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
