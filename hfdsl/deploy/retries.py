"""Recovery of a run that has lost processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hfdsl.errors import ResourceError
from hfdsl.types.numbers import brief, is_count, is_number

Copies: TypeAlias = Literal["node", "peers"]
"""Where copies of states are kept: on the node of their ranks alone, or on another node, too."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeat a step whose processes died; its values are those that it would have had without the loss.

    The run returns to its last copy of all states and repeats the steps since then. It copies all states to host memory
    every ``every`` steps; with ``every=None`` it copies none, and returns to the state last loaded or saved (see
    ``Running.go_back_to``), or to its start. After ``attempts`` repeats of one step, the run ends with the error of the
    first loss. A call that ends its process for the third time ends the run at once, with an error that names its rows
    (HF842). Within ``wait`` seconds, the cluster must have room for new processes. Each copy is kept in the memory of
    the node of its ranks; with ``copies="peers"``, another node keeps a second one. Then the run survives the loss of a
    node, for twice the memory.

    Raises:
        ResourceError: HF841 if ``attempts`` or ``every`` is no whole number of at least 1, ``wait`` no positive
            number, or ``copies`` something else, or ``"peers"`` with ``every=None``.

    >>> Retries(every=10)
    Retries(attempts=3, every=10, wait=300.0, copies='node')
    """

    attempts: int = 3
    every: int | None = 1
    wait: float = 300.0
    copies: Copies = "node"

    def __post_init__(self) -> None:
        for name in ("attempts", "every"):
            value = getattr(self, name)
            if not is_count(value) and not (name == "every" and value is None):
                raise ResourceError("HF841", f"hf.Retries({name}=) takes a whole number, 1 or more; got {brief(value)}")
        if not is_number(self.wait) or not 0 < self.wait < math.inf:
            text = f"hf.Retries(wait=) must be a positive number of seconds; got {brief(self.wait)}"
            raise ResourceError("HF841", text)
        if self.copies not in get_args(Copies):
            text = f'hf.Retries(copies=) takes "node" or "peers"; got {brief(self.copies)}'
            raise ResourceError("HF841", text)
        if self.copies == "peers" and self.every is None:
            text = 'hf.Retries(copies="peers") duplicates each copy, but with every=None there are none; set every='
            raise ResourceError("HF841", text)
