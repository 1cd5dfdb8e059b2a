"""Recovery of a run that has lost processes."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.errors import ResourceError
from hfdsl.types.numbers import brief, is_count


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeat a step whose processes died; its values are those that it would have had without the loss.

    The run returns to its last copy of all states and repeats the steps since then. It copies all states to host memory
    every ``every`` steps; with ``every=None`` it copies none, and returns to the state last loaded or saved (see
    ``Running.go_back_to``), or to its start. A step is repeated at most ``attempts`` times before the run ends with
    the first loss; within ``wait`` seconds the cluster must have room for new processes.

    Raises:
        ResourceError: HF841 where ``attempts`` or ``every`` is no whole number of at least 1, or ``wait`` no positive
            number.

    >>> Retries(every=10)
    Retries(attempts=3, every=10, wait=300.0)
    """

    attempts: int = 3
    every: int | None = 1
    wait: float = 300.0

    def __post_init__(self) -> None:
        for name in ("attempts", "every"):
            value = getattr(self, name)
            if not is_count(value) and not (name == "every" and value is None):
                raise ResourceError("HF841", f"hf.Retries({name}=) takes a whole number, 1 or more; got {brief(value)}")
        wait: object = self.wait
        if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 < wait < float("inf"):
            raise ResourceError("HF841", f"hf.Retries(wait=) takes a positive number of seconds; got {brief(wait)}")
