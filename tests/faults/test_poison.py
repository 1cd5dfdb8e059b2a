"""A row that ends the process of its call every time: on Ray the error names the call, and the rows that it had."""

from __future__ import annotations

import re
from typing import Any

import pytest

import hfdsl as hf
from hfdsl.errors import RoleError
from hfdsl.protocols.queueing import Late
from tests.faults.poison_programs import batches, poisoned


def train(late: Late, how: str) -> None:
    with poisoned(late).launch("ray", worker_env={"POISON": how}, retries=hf.Retries()) as running:
        list(running.stream(batches()))


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::hfdsl.errors.HfWarning")  # of the deaths from which the run continues
@pytest.mark.parametrize(("late", "how"), [("wait", "SIGKILL"), ("drop", "exit")])
def test_the_rows_of_a_call_that_dies_every_time_are_named(late: Late, how: str, ray_cluster: Any) -> None:
    """In a stream; the program of HF842's page steps without one."""
    with pytest.raises(RoleError, match="HF842") as failure:
        train(late, how)
    rows = "rows 0 to 3 of 8 of 'rollout', made of rows 0 to 1 of 'prompts'"
    of_loader = ", of prompts 12 to 13 of the loader" if late == "drop" else ""
    message = failure.value.message
    assert message.startswith("'judge.score' ended its process 3 times on rank 0 of 'judge', in step 3 of '")
    assert f"; the rank had {rows}{of_loader}\n" in message
    assert len(set(re.findall(r"\n  death \d: pid (\d+) on node \S+ ended", message))) == 3
