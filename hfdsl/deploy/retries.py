"""How a run goes on after it has lost processes."""

from __future__ import annotations

from dataclasses import dataclass

from hfdsl.errors import ResourceError
from hfdsl.types.numbers import brief, is_count


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeat a step whose processes died, with the values that it would have had.

    The run goes back to its last copy of all states, and repeats the steps since. It takes a copy in host memory every
    ``every`` steps; with ``every=None`` it takes none, and goes back to what was loaded or saved last (see
    ``Running.go_back_to``), or to its start. ``attempts`` is how often a step is repeated before the run ends with the
    first loss, and ``wait`` the seconds in which the cluster must have room for new processes.

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
