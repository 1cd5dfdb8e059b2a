"""How long calls take on a virtual clock: drawn from a distribution, or from the durations of an earlier run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from hfdsl.errors import WiringError
from hfdsl.plan.plan import Plan
from hfdsl.runtime.queues.device_sharing import Sharing
from hfdsl.types.numbers import brief, is_number
from hfdsl.types.similar_names import closest

P99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


UTILIZATIONS: Final = ("utilization", "interference", "engine_utilization")
"""What a duration says of the call's device and engine."""


class CallSeconds(Protocol):
    """The duration of calls of a node."""

    def of(self, *call: object) -> float:
        """The seconds of a call; the same call always takes the same time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """The parts of its device and of its engine that a call keeps busy while it runs alone.

    Beside the call, one that keeps the device busy takes ``1 + interference`` times as long; None is the
    ``utilization``, as without MPS. With an ``engine_utilization`` below 1, a call alone leaves room in the batch of an
    engine that runs several calls at once. Durations that are no ``Utilization`` occupy all of both.

    Raises:
        WiringError: HF202 for a part that is no number from 0 to 1, or an interference above the utilization.
    """

    utilization: float = 1.0
    interference: float | None = None
    engine_utilization: float = 1.0

    def __post_init__(self) -> None:
        for name in UTILIZATIONS:
            part = getattr(self, name)
            is_default = part is None and name == "interference"
            if not is_default and not (is_number(part) and 0 <= part <= 1):
                raise WiringError("HF202", f"{name} is a number from 0 to 1, got {brief(part)}")
        if self.interference is not None and self.interference > self.utilization:
            raise WiringError(
                "HF202",
                f"interference is at most utilization, {self.utilization:g}, got {self.interference:g}: a call slows "
                "others down only while it has kernels",
            )

    @property
    def sharing(self) -> Sharing:
        """How a call shares its device with those of other processes."""
        return Sharing(self.utilization, self.utilization if self.interference is None else self.interference)


@dataclass(frozen=True, slots=True)
class DrawnSeconds(Utilization):
    """A lognormal distribution of ``median`` seconds, whose 99th percentile is ``tail`` times as long.

    >>> DrawnSeconds(2.0).of("actor.update", 7), 1.0 < DrawnSeconds(2.0, tail=3.0).of("actor.update", 7) < 12.0
    (2.0, True)
    """

    median: float
    tail: float = 1.0

    def __post_init__(self) -> None:
        Utilization.__post_init__(self)
        if not (is_duration(self.median) and is_duration(self.tail) and self.tail >= 1):
            text = "a duration takes a median of at least 0 seconds and a tail of at least 1"
            raise WiringError("HF202", f"{text}, got median={self.median!r}, tail={self.tail!r}")

    def of(self, *call: object) -> float:
        """The seconds of a call."""
        if self.tail == 1.0:
            return self.median
        return self.median * random_stream(call).lognormvariate(0.0, math.log(self.tail) / P99)


@dataclass(frozen=True, slots=True)
class RecordedSeconds(Utilization):
    """Durations of calls in an earlier run; each call takes one of them, drawn at random."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        Utilization.__post_init__(self)
        if not isinstance(self.seconds, tuple) or not self.seconds:
            raise WiringError("HF202", f"recorded durations are a tuple of seconds, got {brief(self.seconds)}")

    def of(self, *call: object) -> float:
        """The seconds of a call."""
        return self.seconds[0] if len(self.seconds) == 1 else random_stream(call).choice(self.seconds)


def call_durations(
    plan: Plan, seconds: Mapping[str, float | CallSeconds], subject: str = "seconds="
) -> dict[str, CallSeconds]:
    """The durations of calls, of which a number is that of every call.

    Raises:
        WiringError: HF202 for a call that the plan does not have, or what is no duration; ``subject`` begins the text.
    """
    labels = [step.label for step in plan.steps]
    if not isinstance(seconds, Mapping):
        raise WiringError("HF202", f"{subject} takes a dict of calls, got {brief(seconds)}")
    for label, duration in seconds.items():
        if label not in labels:
            raise WiringError("HF202", f"{subject}: '{plan.name}' has no call '{label}'; {closest(str(label), labels)}")
        draws = callable(getattr(duration, "of", None)) and not isinstance(duration, type)
        if not (draws or is_duration(duration)):
            kinds = "a number, 0 or more, or an object with a method of(*call)"
            raise WiringError("HF202", f"{subject}: '{label}' takes {kinds}, got {duration!r}")
    return {
        label: DrawnSeconds(duration) if isinstance(duration, (int, float)) else duration
        for label, duration in seconds.items()
    }


def is_duration(value: object) -> bool:
    """Whether a value is a finite number of seconds, 0 or more.

    >>> is_duration(0), is_duration(-1.0), is_duration(float("inf"))
    (True, False, False)
    """
    return is_number(value) and 0 <= value < math.inf


def random_stream(call: Iterable[object]) -> random.Random:
    """The random stream of a call, or of another event: always the same."""
    return random.Random(" ".join(map(str, call)))
