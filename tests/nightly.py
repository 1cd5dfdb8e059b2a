"""What runs in the nightly run alone, with ``HFDSL_NIGHTLY=1``: launches that differ little, and most examples."""

from __future__ import annotations

import os

NIGHTLY = bool(os.environ.get("HFDSL_NIGHTLY"))


def examples(count: int) -> int:
    """How many examples a property tries: ``count`` in the nightly run; in any other an eighth of it, at least 2."""
    return count if NIGHTLY else max(count // 8, 2)
