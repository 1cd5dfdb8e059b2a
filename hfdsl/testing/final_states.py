"""The states that roles have at the end of a run: where an update returns nothing, its mistakes show in them alone.

A worked example, an update without a result, of a role whose ``load_state`` forgets its random generator::

    results of an uninterrupted run    None None None     of one that was saved, launched again and loaded: the same
    state of the actor at the end      weight 0.25        weight 0.75, of other random numbers
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.runtime.running import Running
from hfdsl.runtime.saving.driver import parse_manifest
from hfdsl.runtime.saving.state_files import read_file, unflatten_state
from hfdsl.testing.compare import first_difference


def final_states(running: Running, folder: Path) -> Mapping[str, Any]:
    """The state of every rank of a run, by its name in messages; none of roles that cannot be saved.

    Raises:
        RoleError: HF806 if a role's ``state()`` raises.
    """
    try:
        running.save(folder)
    except CheckpointError as error:
        if error.code != "HF908":
            raise
        return {}
    read = lru_cache(maxsize=None)(lambda file: unflatten_state(read_file(folder / file)))  # replicas share a file
    return {
        f"rank {rank} of '{role}'": read(saved["file"])
        for role, ranks in parse_manifest(folder).roles.items()
        for rank, saved in enumerate(ranks)
    }


def repeated_states(states: Mapping[str, Any], again: Mapping[str, Any]) -> Mapping[str, Any]:
    """The states that a run without interruptions repeats; others, such as those with a time of day, show nothing."""
    return {
        rank: state for rank, state in states.items() if rank in again and first_difference(state, again[rank]) is None
    }


def state_difference(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> str | None:
    """The first state of ``expected`` that another run has not ended with, in words."""
    for rank, state in expected.items():
        difference = first_difference(state, actual[rank]) if rank in actual else None
        if difference is not None:
            return f"another state of {rank}, which its state() or load_state() may lack: {difference.message}"
    return None
