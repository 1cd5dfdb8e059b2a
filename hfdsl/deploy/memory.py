"""GPU memory that roles reserve: an amount, or a fraction of the device."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hfdsl.errors import ResourceError
from hfdsl.protocols.offloading import PARTS
from hfdsl.types.numbers import MAX_COUNT, brief, is_count


def total(amounts: Iterable[Fraction]) -> Fraction:
    """The sum of amounts."""
    return sum(amounts, Fraction(0))


_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?(GiB|MiB|%)")


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory that one rank keeps on its GPU: ``gib``, or a ``fraction`` of the GPU's.

    ``parts`` are the amounts of a role's parts, where each is stated.
    """

    text: str
    gib: Fraction = Fraction(0)
    fraction: Fraction = Fraction(0)
    parts: Mapping[str, GpuMemory] = field(default_factory=dict, hash=False)

    @classmethod
    def read(cls, setting: object, owner: str) -> GpuMemory:
        """An amount with its unit, or an amount for each part.

        Raises:
            ResourceError: HF504 for anything else, naming ``owner``.

        >>> GpuMemory.read("60%", "place(Actor)").fraction
        Fraction(3, 5)
        >>> str(GpuMemory.read({"weights": "14GiB", "optimizer": "42GiB"}, "place(Actor)"))
        '14GiB weights + 42GiB optimizer'
        """
        if not isinstance(setting, Mapping):
            return cls._amount(setting, owner)
        for name in setting:
            if name not in PARTS:
                part_names = " and ".join(map(repr, PARTS))
                raise ResourceError(
                    "HF504", f"{owner}: gpu_memory= has an amount for {name!r}; the parts are {part_names}"
                )
        parts = {name: cls._amount(amount, owner) for name, amount in setting.items()}
        if not parts:
            raise ResourceError("HF504", f"{owner}: gpu_memory={{}} has no amount")
        return cls._sum(parts)

    def without(self, away: Collection[str], all_away: bool) -> GpuMemory | None:
        """The memory that is kept while some parts, or all of them, are on the host.

        Without amounts for the parts, everything counts until all of them are away.
        """
        remaining = {name: amount for name, amount in self.parts.items() if name not in away}
        if all_away or (self.parts and not remaining):
            return None
        return self if len(remaining) == len(self.parts) else GpuMemory._sum(remaining)

    @classmethod
    def _sum(cls, parts: Mapping[str, GpuMemory]) -> GpuMemory:
        text = " + ".join(f"{amount} {name}" for name, amount in parts.items())
        return cls(text, total(p.gib for p in parts.values()), total(p.fraction for p in parts.values()), parts)

    @classmethod
    def _amount(cls, text: object, owner: str) -> GpuMemory:
        match = _AMOUNT.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            example = f'"{text}GiB"' if is_count(text) else '"40GiB"'
            raise ResourceError(
                "HF504",
                f'{owner}: gpu_memory= is text with a unit, such as {example} or "60%" of the device, '
                f"got {brief(text)}",
            )
        most = 100 if match[2] == "%" else MAX_COUNT
        number, unit = Fraction(match[1] if len(match[1]) <= 400 else most + 1), match[2]
        if not 0 < number <= most:
            raise ResourceError("HF504", f"{owner}: gpu_memory={brief(text)} is not a part of a GPU's memory")
        if unit == "%":
            return cls(f"{match[1]}%", fraction=number / 100)
        return cls(f"{match[1]}{unit}", gib=number if unit == "GiB" else number / 1024)

    def __str__(self) -> str:
        return self.text
