"""Facts about a role that its class states, known before any worker exists.

A role states a fact by a static method with the fact's name, which takes the constructor's arguments::

    class Model(hf.Worker):
        def __init__(self, heads: int) -> None: ...

        @staticmethod
        def sliced(heads: int) -> dict[str, int]:
            return {"heads": heads}

``role_facts.sliced.of(placement)`` reads it. A role without the method states nothing, and neither does one whose
method raises or returns something else: the check or the launch reports arguments that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.numbers import is_count

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

GpuBytes: TypeAlias = dict[str, dict[str, int]]
"""By method, and under ``""`` between calls, the bytes of each part."""


@dataclass(frozen=True, slots=True)
class Resharding:
    """Weights that ranks of a role hold in one layout, and in another one while a method runs.

    With ``in_place`` what a rank holds becomes a part of what it needs; else it keeps both. ``staging`` are the most
    bytes that are on their way to a rank, or from it, at a time.
    """

    state: str
    parameters: tuple[Parameter, ...]
    held: Layout
    needed: Layout
    in_place: bool
    staging: int


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a role cannot be constructed with its configuration on its mesh, and what removes it.

    ``setting`` is the one at fault, as a path of names in the configuration: each of ``values`` instead would do.
    ``conflicts`` are other settings that it does not fit, or the ``"mesh"``, each with its value in words.
    """

    code: str
    text: str
    setting: str = ""
    values: tuple[object, ...] = ()
    help: str = ""
    conflicts: tuple[tuple[str, str], ...] = ()

    @property
    def message(self) -> str:
        """The message of the error that the constructor raises."""
        return f"{self.text}; {self.help}" if self.help else self.text


@dataclass(frozen=True, slots=True)
class Learning:
    """How the parameters of a role learn.

    ``dtype`` is that of the parameters which the optimizer changes. The ``rate`` rises from 0 in ``warmup`` updates;
    with ``end`` it falls from there to ``least_rate`` at that update. ``pretrained`` parameters are those of a saved
    model, which a large rate would overwrite. ``epsilon`` is that of AdamW, if it is the optimizer.
    """

    rate: float
    dtype: str = "float32"
    warmup: int = 0
    end: int | None = None
    least_rate: float = 0.0
    pretrained: bool = False
    epsilon: float | None = None


class PlacedRole(Protocol):
    """A role with its mesh and its constructor's arguments, such as a ``Placement``."""

    @property
    def role(self) -> type:
        """Its class."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The mesh of its ranks."""
        ...

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments of its constructor."""
        ...

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """The arguments of its constructor by name."""
        ...


@dataclass(frozen=True, slots=True)
class RoleFact(Generic[T_co]):
    """A fact, stated by the static method ``name``; with ``takes_mesh`` the mesh is the method's first argument.

    ``checked`` drops whatever is not of the fact's type. Given None, for a role that states nothing, it returns None or
    an empty value.

    >>> class Model:
    ...     @staticmethod
    ...     def vocabulary(tokens: int) -> int:
    ...         return tokens
    >>> @dataclass
    ... class Placed:
    ...     role: type
    ...     args: tuple[object, ...]
    ...     kwargs: dict[str, object]
    ...     mesh: Mesh
    >>> vocabulary.of(Placed(Model, (32000,), {}, Mesh())), vocabulary.of(Placed(Model, (), {}, Mesh()))
    (32000, None)
    """

    name: str
    checked: Callable[[object], T_co]
    takes_mesh: bool = False

    def of(self, place: PlacedRole | None) -> T_co:
        """The fact that a role states; None or empty if it states none, or without a role."""
        return self.checked(None if place is None else self._stated(place))

    def _stated(self, place: PlacedRole) -> object:
        mesh = (place.mesh,) if self.takes_mesh else ()
        try:
            return getattr(place.role, self.name)(*mesh, *place.args, **place.kwargs)
        except Exception:  # noqa: BLE001  # it has no such method, or wrong arguments
            return None


def _text(fact: object) -> str | None:
    return fact if isinstance(fact, str) else None


def _number(fact: object) -> float | None:
    return float(fact) if isinstance(fact, (int, float)) else None


def _count(least: int) -> Callable[[object], int | None]:
    return lambda fact: fact if isinstance(fact, int) and is_count(fact, least=least) else None


def _counts(least: int) -> Callable[[object], dict[str, int]]:
    """By name the entries that are counts."""
    return lambda fact: {name: size for name, size in _entries(fact).items() if is_count(size, least=least)}


def _counts_by_method(least: int) -> Callable[[object], dict[str, dict[str, int]]]:
    counts = _counts(least)
    return lambda fact: {method: counts(sizes) for method, sizes in _entries(fact).items()}


def _instance(kind: type[T]) -> Callable[[object], T | None]:
    return lambda fact: fact if isinstance(fact, kind) else None


def _instances(kind: type[T]) -> Callable[[object], dict[str, T]]:
    """By name the entries of a type."""
    return lambda fact: {name: entry for name, entry in _entries(fact).items() if isinstance(entry, kind)}


def _settings(fact: object) -> dict[str, object]:
    return dict(_entries(fact))


def _shares(fact: object) -> dict[str, float]:
    return {name: share for name, share in _entries(fact).items() if isinstance(share, float) and share > 0}


def _obstacles(fact: object) -> tuple[Obstacle, ...]:
    entries = fact if isinstance(fact, (list, tuple)) else ()
    return tuple(obstacle for obstacle in entries if isinstance(obstacle, Obstacle))


def _parameters(fact: object) -> dict[str, tuple[object, ...]]:
    return {state: tuple(entries) for state, entries in _entries(fact).items() if isinstance(entries, Iterable)}


def _entries(fact: object) -> Mapping[str, Any]:
    return fact if isinstance(fact, Mapping) else {}


adapter_settings: Final = RoleFact("adapter_settings", _settings)
"""By name, the settings that copies of an adapter must share, if the adapter is sent or loaded alone."""

cached_tokens: Final = RoleFact("cached_tokens", _counts(least=1))
"""By method, the tokens of all rows in progress that the engine has room for; none without a limit."""

call_obstacles: Final = RoleFact("call_obstacles", _instances(str))
"""By method, why its calls fail; none for methods whose calls succeed."""

computes: Final = RoleFact("computes", _text)
"""The dtype of the matrix products, such as ``"bfloat16"``."""

concurrent_calls: Final = RoleFact("concurrent_calls", _counts(least=1))
"""By method, how many of its calls may be in progress in a process at a time; 1 for other methods."""

copied_settings: Final = RoleFact("copied_settings", _settings)
"""By name, the settings beside the weights that copies of the model must share, such as ``"rope_theta"``."""

drops: Final = RoleFact("drops", _shares)
"""By setting, the share of activations that updates set to 0; none without dropout."""

equal_scores: Final = RoleFact("equal_scores", _text)
"""Why every response gets the same score, such as ``"no head"``; None if scores differ."""

gpu_bytes: Final = RoleFact("gpu_bytes", _counts_by_method(least=0), takes_mesh=True)
"""The bytes of each part on a rank's GPU: by method, and under ``""`` between calls."""

in_flight_obstacle: Final = RoleFact("in_flight_obstacle", _text)
"""Why the role cannot take weights between tokens; None if it can."""

kept_bytes: Final = RoleFact("kept_bytes", _counts(least=0), takes_mesh=True)
"""The bytes of each part of a rank's ``state()``."""

learning: Final = RoleFact("learning", _instance(Learning))
"""How the parameters learn: the rate, its schedule, the dtype."""

misses_end: Final = RoleFact("misses_end", _count(least=0))
"""The token that the model ends a text with, if responses continue after it; else None."""

obstacles: Final = RoleFact("obstacles", _obstacles, takes_mesh=True)
"""Why the role cannot be constructed."""

parameter_count: Final = RoleFact("parameter_count", _count(least=1))
"""The number of parameters of the model; None if unknown."""

policy_temperature: Final = RoleFact("policy_temperature", _number)
"""The number that divides the logits, both to sample and for log-probs."""

repeats_responses: Final = RoleFact("repeats_responses", _text)
"""Why all responses to a prompt are the same, such as ``"top_k = 1"``; None if they differ."""

reshards: Final = RoleFact("reshards", _instances(Resharding), takes_mesh=True)
"""By method, how it changes the layout of the role's own weights."""

result_sizes: Final = RoleFact("result_sizes", _counts_by_method(least=1))
"""By method, the sizes of dims in its result, by the dim's name."""

samples_with: Final = RoleFact("samples_with", _text)
"""The engine that samples, such as ``"vllm"``, if its log-probs are not the trainer's; else None."""

sliced: Final = RoleFact("sliced", _counts(least=1))
"""By name, the sizes of the model that the mesh's ``tp`` must divide."""

state_bytes: Final = RoleFact("state_bytes", _counts(least=0))
"""The bytes of each state as one rank exports it."""

state_parameters: Final = RoleFact("state_parameters", _parameters)
"""By state, its parameters as full tensors, each a ``hfdsl.protocols.layouts.Parameter``; the check reports others."""

truncates: Final = RoleFact("truncates", _text)
"""How sampling leaves out a part of the distribution, such as ``"top_p = 0.9"``; None if it leaves out nothing."""

vocabulary: Final = RoleFact("vocabulary", _count(least=1))
"""The number of tokens that the model has embeddings for."""

FACTS: Final[tuple[RoleFact[Any], ...]] = tuple(value for value in globals().values() if isinstance(value, RoleFact))
