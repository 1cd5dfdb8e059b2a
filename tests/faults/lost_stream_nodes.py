"""A script: a stream on a cluster of four nodes, of which one is lost within a call; prints its results.

Its arguments are the folder of faults, the call, what the queue does with late rows, and the log of decisions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import hfdsl as hf
from hfdsl.protocols.queueing import Late
from tests.faults.failing_programs import FOLDER, B
from tests.faults.lost_nodes import cluster_of, lose_within
from tests.faults.queued_programs import queued, queued_deployment, stream_prompts


def main(folder: Path, call: str, late: Late, log: Path) -> None:
    cluster, nodes = cluster_of(4)
    plan = queued.given(late=late).compile(queued_deployment(), dims={B: 4})
    group = next(group.name for group in plan.groups if call.partition(".")[0] in group.roles)
    retries = hf.Retries(wait=60.0)
    with plan.launch("ray", seed=5, worker_env={FOLDER: str(folder)}, deadline=120.0, retries=retries) as running:
        places: dict[str, list[str]] = running._processes.backend._hosts  # type: ignore[union-attr]  # of Ray
        (lost,) = (node for node in nodes if node.node_id == places[group][0])
        for number, metrics in enumerate(running.stream(stream_prompts(), log=log)):
            print("metrics", metrics.loss.value)
            if number == 1:
                lose_within(cluster, lost, folder, f"{call} 1")
        print("lost", *(name for recovered in running.recoveries for name in recovered.lost))


if __name__ == "__main__":
    (late,) = (known for known in get_args(Late) if known == sys.argv[3])
    main(Path(sys.argv[1]), sys.argv[2], late, Path(sys.argv[4]))
