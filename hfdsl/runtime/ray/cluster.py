"""The Ray cluster of a launch: an existing one, or a new one on this machine."""

from __future__ import annotations

import logging
import os
import socket

import ray

from hfdsl.errors import HfError
from hfdsl.single_controller.interrupts import delayed_interrupts
from hfdsl.single_controller.ray_internals import bootstrap_address

CONNECT_SECONDS = 5.0
"""The time in which a cluster must accept a connection. Ray itself tries for more than five minutes."""


def connect() -> None:
    """Connect to the cluster in ``RAY_ADDRESS``, or to that of ``ray start`` on this machine, or start one.

    Raises:
        HfError: HF807 if nothing answers at the address: the cluster is gone and left its address behind.
        KeyboardInterrupt: once the cluster has started, where SIGINT arrived before.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    address = None if "://" in named else bootstrap_address()
    if address is not None:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            where = "in RAY_ADDRESS" if named else "which `ray start` has left behind"
            fix = "set it to 'local' to start one here" if named else "`ray stop` removes it"
            raise HfError("HF807", f"no Ray cluster answers at {address}, {where} ({error}); {fix}") from None
    with delayed_interrupts():
        ray.init(include_dashboard=False, logging_level=logging.WARNING)
