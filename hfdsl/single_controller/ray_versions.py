"""The tested versions of Ray: hfdsl uses private interfaces, which any release may change."""

from __future__ import annotations

import re
import warnings
from typing import Final

import ray

from hfdsl.errors import HfWarning, ResourceError

TESTED_VERSIONS: Final = ("2.55", "2.60")
"""The oldest and the newest tested minor version; 2.54 has no ``ray.experimental.rdt`` yet."""


def check_version(version: str = ray.__version__) -> None:
    """Refuse a version of Ray that is too old, and warn of one newer than all tested ones.

    Raises:
        ResourceError: HF526 for a version before the oldest tested one.

    >>> check_version("2.55.0")
    >>> check_version("2.54.1")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hfdsl.errors.ResourceError: HF526: Ray 2.54.1 is untested: hfdsl uses ...
    """
    oldest, newest = map(_numbers, TESTED_VERSIONS)
    if _numbers(version) < oldest:
        raise untried(version)
    if _numbers(version)[:2] > newest:
        warnings.warn(HfWarning("HF526", untried(version).message), stacklevel=3)


def untried(version: str, problem: object = "") -> ResourceError:
    """The error for an untested version of Ray, with the problem it causes."""
    oldest, newest = TESTED_VERSIONS
    major, minor = _numbers(newest)[:2]
    lacks = f" ({problem})" if problem else ""
    return ResourceError(
        "HF526",
        f"Ray {version} is untested{lacks}: hfdsl uses private interfaces of Ray, and is tested with {oldest} to "
        f"{newest}; pip install 'ray>={oldest},<{major}.{minor + 1}'",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
