"""Test tools: laws of protocols, hypothesis strategies, checks of roles and functions, fakes, placements and replay.

Nothing is loaded before it is used, and hypothesis by the strategies alone.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hfdsl.testing.conformance import SuiteReport, run_suite
    from hfdsl.testing.fakes import fake, fake_batch, faked
    from hfdsl.testing.laws.check import BrokenLaws, check_laws, lawful
    from hfdsl.testing.laws.table import LAWS, Law
    from hfdsl.testing.layouts import BrokenLayoutError, check_layout, check_layouts
    from hfdsl.testing.loaders import BrokenLoaderError, check_loader
    from hfdsl.testing.placements import DivergedError, check_placements
    from hfdsl.testing.queues import QUEUE_LAWS, BrokenQueueError, broken_laws, check_decisions, check_prompts
    from hfdsl.testing.replaying import Replayed, replay
    from hfdsl.testing.rows import BrokenRows, check_rows
    from hfdsl.testing.streams import check_stream
    from hfdsl.testing.workers import BrokenWorker, check_worker

__all__ = [
    "LAWS",
    "QUEUE_LAWS",
    "BrokenLaws",
    "BrokenLayoutError",
    "BrokenLoaderError",
    "BrokenQueueError",
    "BrokenRows",
    "BrokenWorker",
    "DivergedError",
    "Law",
    "Replayed",
    "SuiteReport",
    "broken_laws",
    "check_decisions",
    "check_laws",
    "check_layout",
    "check_layouts",
    "check_loader",
    "check_placements",
    "check_prompts",
    "check_rows",
    "check_stream",
    "check_worker",
    "fake",
    "fake_batch",
    "faked",
    "lawful",
    "replay",
    "run_suite",
]

_HOMES = {
    "DivergedError": "placements",
    "Replayed": "replaying",
    "SuiteReport": "conformance",
    "check_placements": "placements",
    "QUEUE_LAWS": "queues",
    "BrokenQueueError": "queues",
    "broken_laws": "queues",
    "check_decisions": "queues",
    "check_prompts": "queues",
    "check_stream": "streams",
    "fake": "fakes",
    "fake_batch": "fakes",
    "faked": "fakes",
    "replay": "replaying",
    "run_suite": "conformance",
    "BrokenLayoutError": "layouts",
    "check_layout": "layouts",
    "check_layouts": "layouts",
    "BrokenLoaderError": "loaders",
    "check_loader": "loaders",
    "BrokenLaws": "laws.check",
    "BrokenRows": "rows",
    "BrokenWorker": "workers",
    "LAWS": "laws.table",
    "Law": "laws.table",
    "check_laws": "laws.check",
    "check_rows": "rows",
    "check_worker": "workers",
    "lawful": "laws.check",
}
"""Public names, by the module that defines them."""


def _load(name: str) -> object:
    """A name of this module that is used for the first time.

    Raises:
        AttributeError: if there is none.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value  # the next use finds it without this
    return value


if not TYPE_CHECKING:  # or a type checker would take any name for one of this module's
    __getattr__ = _load
