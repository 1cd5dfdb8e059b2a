"""Roles whose constructors say in files when they begin and end, and may wait for each other."""

from __future__ import annotations

import time
from pathlib import Path

import hfdsl as hf
from hfdsl import Dispatch, register


class Starting(hf.Worker):
    """Its constructor ends once those that it ``awaits`` have begun; with a ``fault`` it raises."""

    def __init__(self, folder: str, name: str, awaits: str = "", fault: str = "") -> None:
        notes = Path(folder)
        with (notes / "log").open("a") as log:
            log.write(f"{name} begins\n")
        (notes / name).touch()
        while awaits and not (notes / awaits).exists():
            time.sleep(0.01)
        if fault:
            raise ValueError(fault)
        with (notes / "log").open("a") as log:
            log.write(f"{name} ends\n")

    @register(Dispatch.ONE_TO_ALL)
    def number(self) -> int:
        """A number."""
        return 1


@hf.dataflow
def numbers(first: Starting, second: Starting, third: Starting) -> tuple[hf.PerRank[int], ...]:
    """One number of each role."""
    return first.number(), second.number(), third.number()
