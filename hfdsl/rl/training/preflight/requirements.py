"""The packages that every run of a configuration needs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from hfdsl.errors import PackageError

NEEDED = ("torch", "transformers", "safetensors")


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None


def require_packages() -> None:
    """Refuse a run where a package is missing that all ready-made roles need.

    Raises:
        PackageError: HF990 naming the missing ones.
    """
    if missing := [package for package in NEEDED if not is_installed(package)]:
        text = f"the ready-made roles need {', '.join(missing)}, not installed here: pip install 'hfdsl[rl]'"
        raise PackageError("HF990", text)
