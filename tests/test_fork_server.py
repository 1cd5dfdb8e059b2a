"""Ray's workers in tests are forks, except where libraries would find another environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("variables", "forked"),
    [
        ({}, True),
        ({"NAME": "a"}, True),
        ({"PYTHONBREAKPOINT": "ray.util.rpdb.set_trace"}, True),  # as Ray sets it
        ({"CUDA_VISIBLE_DEVICES": ""}, not Path("/dev/nvidiactl").exists()),
        ({"HF_HOME": "/a"}, False),
    ],
)
def test_a_worker_is_forked_unless_libraries_read_other_variables(
    ray_cluster: Any, variables: dict[str, str], forked: bool
) -> None:
    def in_worker() -> tuple[str, dict[str, str | None]]:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text("utf-8").split("\0")
        return parent[1], {name: os.environ.get(name) for name in variables}

    remote = ray_cluster.remote(in_worker).options(num_cpus=0, runtime_env={"env_vars": variables})
    parent, seen = ray_cluster.get(remote.remote())
    assert parent.endswith("fork_server.py") is forked
    assert seen == variables
