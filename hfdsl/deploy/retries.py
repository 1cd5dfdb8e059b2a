"""Recovery of a run that has lost processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from hfdsl.errors import ResourceError
from hfdsl.types.numbers import brief, is_count

Copies: TypeAlias = Literal["node", "peers"]
"""Where copies of states are kept: on the node of their ranks alone, or on another node, too."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeat a step whose processes died; its values are those that it would have had without the loss.

    The run returns to its last copy of all states and repeats the steps since then. It copies all states to host memory
    every ``every`` steps; with ``every=None`` it copies none, and returns to the state last loaded or saved (see
    ``Running.go_back_to``), or to its start. A step is repeated at most ``attempts`` times before the run ends with
    the first loss; a call that ends its process for the third time ends it at once, and names its rows (HF842). Within
    ``wait`` seconds the cluster must have room for new processes. A copy is in the memory of the node whose processes
    it is of; with ``copies="peers"`` a second one is on another node, so that the run survives the loss of a node, for
    twice the memory.

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
        wait: object = self.wait
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < float("inf"):
            raise ResourceError("HF841", f"hf.Retries(wait=) must be a positive number of seconds; got {brief(wait)}")
        if self.copies not in get_args(Copies):
            text = f'hf.Retries(copies=) takes "node" or "peers"; got {brief(self.copies)}'
            raise ResourceError("HF841", text)
        if self.copies == "peers" and self.every is None:
            text = 'hf.Retries(copies="peers") duplicates each copy, but with every=None there are none; set every='
            raise ResourceError("HF841", text)
