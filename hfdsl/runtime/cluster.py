"""The Ray cluster of a launch: the one that Ray finds, or a new one on this machine."""

from __future__ import annotations

import logging
import os
import socket

import ray
from ray._private.services import canonicalize_bootstrap_address

from hfdsl.errors import HfError

PATIENCE = 5.0
"""Seconds in which a cluster takes a connection. Ray itself tries for more than five minutes."""


def connect() -> None:
    """Connect to the cluster in ``RAY_ADDRESS``, or to that of ``ray start`` on this machine, or start one here.

    Raises:
        HfError: HF807 where nobody answers at the address: the cluster has gone and its address was left behind.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    address = None if "://" in named else canonicalize_bootstrap_address(None)  # type: ignore[arg-type]  # as documented
    if address is not None:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except OSError as error:
            where = "in RAY_ADDRESS" if named else "which `ray start` has left behind"
            mend = "set it to 'local' to start one here" if named else "`ray stop` removes it"
            raise HfError("HF807", f"no Ray cluster answers at {address}, {where} ({error}); {mend}") from None
    ray.init(include_dashboard=False, logging_level=logging.WARNING)
