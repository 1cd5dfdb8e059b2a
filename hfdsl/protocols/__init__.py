"""Transfer of values into a worker group and back: coordinates, the protocols, and the declarations of role methods."""

from hfdsl.protocols.conditions import requirements_of, requires
from hfdsl.protocols.dispatch import (
    Dispatch,
    Execute,
    Functions,
    collect_all_to_all,
    get_predefined_dispatch_fn,
    register_dispatch_mode,
    update_dispatch_mode,
)
from hfdsl.protocols.kinds import PerRank, PerStage
from hfdsl.protocols.mesh import Coordinates, Mesh
from hfdsl.protocols.predefined import PREDEFINED
from hfdsl.protocols.protocol import Protocol
from hfdsl.protocols.register import Registration, register, registered_methods, registration_of
from hfdsl.protocols.worker import RankContext, Worker, current_rank

__all__ = [
    "PREDEFINED",
    "Coordinates",
    "Dispatch",
    "Execute",
    "Functions",
    "Mesh",
    "PerRank",
    "PerStage",
    "Protocol",
    "RankContext",
    "Registration",
    "Worker",
    "collect_all_to_all",
    "current_rank",
    "get_predefined_dispatch_fn",
    "register",
    "register_dispatch_mode",
    "registered_methods",
    "registration_of",
    "requirements_of",
    "requires",
    "update_dispatch_mode",
]
