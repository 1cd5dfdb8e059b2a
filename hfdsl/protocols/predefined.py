"""The six protocols of the field, as one table.

Axes: ``pp`` pipeline stages, ``dp`` data-parallel replicas, ``tp`` tensor ranks; ``gen_pp`` and ``gen_tp`` the same
inside a generation replica, of which one training replica holds ``micro_dp``; ``rank`` all ranks in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hfdsl.protocols.protocol import Protocol

ONE_TO_ALL = Protocol("ONE_TO_ALL", collect={"rank": "join"}, gives="per_rank")
ALL_TO_ALL = Protocol("ALL_TO_ALL", split=("rank",), collect={"rank": "join"}, gives="per_rank", takes="per_rank")
DP_PROTO = Protocol("DP_PROTO", split=("rank",), collect={"rank": "join"})
THREE_D_PROTO = Protocol("3D_PROTO", split=("dp",), collect={"dp": "join", "pp": "last", "tp": "first"})
THREE_D_ALL_MICRO_DP = Protocol(
    "3D_ALL_MICRO_DP",
    split=("dp", "micro_dp"),
    collect={"dp": "join", "micro_dp": "join", "gen_pp": "last", "gen_tp": "first"},
)
THREE_D_PP_ONLY = Protocol("3D_PP_ONLY", collect={"pp": "join", "dp": "first", "tp": "first"}, gives="per_stage")

PREDEFINED: Mapping[str, Protocol] = MappingProxyType(
    {
        "ONE_TO_ALL": ONE_TO_ALL,
        "ALL_TO_ALL": ALL_TO_ALL,
        "DP_PROTO": DP_PROTO,
        "THREE_D_PROTO": THREE_D_PROTO,
        "THREE_D_ALL_MICRO_DP": THREE_D_ALL_MICRO_DP,
        "THREE_D_PP_ONLY": THREE_D_PP_ONLY,
    }
)
"""Member name of ``Dispatch`` -> its declaration."""
