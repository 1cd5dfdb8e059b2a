"""GPU memory that roles say they keep: an amount, or a part of the device."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from hfdsl.errors import ResourceError

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?(GiB|MiB|%)")


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What one rank keeps of its GPU's memory: ``gib``, or a ``fraction`` of what the GPU has."""

    text: str
    gib: Fraction = Fraction(0)
    fraction: Fraction = Fraction(0)

    @classmethod
    def read(cls, text: object, owner: str) -> GpuMemory:
        """An amount with its unit.

        Raises:
            ResourceError: HF504 for anything else, naming ``owner``.

        >>> GpuMemory.read("60%", "place(Actor)").fraction
        Fraction(3, 5)
        """
        found = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            example = f'"{text}GiB"' if isinstance(text, int) and not isinstance(text, bool) else '"40GiB"'
            raise ResourceError(
                "HF504",
                f'{owner}: gpu_memory= is text with a unit, such as {example} or "60%" of the device, got {text!r}',
            )
        number, unit = Fraction(found[1]), found[2]
        if number == 0 or (unit == "%" and number > 100):
            raise ResourceError("HF504", f"{owner}: gpu_memory={text!r} is no part of a GPU's memory")
        if unit == "%":
            return cls(f"{found[1]}%", fraction=number / 100)
        return cls(f"{found[1]}{unit}", gib=number if unit == "GiB" else number / 1024)

    def __str__(self) -> str:
        return self.text
