"""Facts about a role that its class declares, known before any worker exists.

A role states a fact with a plain static method, which takes the constructor's arguments:

| method | returns |
|---|---|
| ``cached_tokens`` | by method, the tokens of all rows in progress that its engine has room for; none without a limit |
| ``gpu_bytes`` | bytes on a rank's GPU: parts by method, under ``""`` those between calls; it takes the mesh first |
| ``adapter_settings`` | what copies of an adapter that it sends or loads alone must share, by name |
| ``call_obstacles`` | by method, why its calls fail; none for others |
| ``computes`` | the dtype of its matrix products, such as ``"bfloat16"`` |
| ``concurrent_calls`` | by method, how many calls of it may be in progress in a process at a time; 1 for others |
| ``copied_settings`` | what copies of its model must share beside the weights, such as ``"rope_theta"``, by name |
| ``drops`` | by setting, the share of activations that its updates set to 0; none without dropout |
| ``equal_scores`` | why it gives every response the same score, such as ``"no head"``; None if it does not |
| ``in_flight_obstacle`` | why it cannot take weights between tokens; None if it can |
| ``kept_bytes`` | the bytes of the parts of its ``state()`` on a rank; it takes the mesh first |
| ``learning`` | how its parameters learn, as a ``Learning``: the rate, its schedule, the dtype |
| ``misses_end`` | the token that its model ends a text with, where its responses continue after that; else None |
| ``obstacles`` | why it cannot be constructed, as ``Obstacle``; it takes the mesh first |
| ``parameter_count`` | the number of parameters of its model; None if unknown |
| ``policy_temperature`` | the number that logits are divided by, to sample and for log-probs |
| ``repeats_responses`` | why all responses to a prompt are the same, such as ``"top_k = 1"``; None if they differ |
| ``reshards`` | the ``Resharding`` of weights within a method, by its name; it takes the mesh first |
| ``result_sizes`` | by method, the sizes of dims in its result, by the dim's name |
| ``samples_with`` | the engine that samples, such as ``"vllm"``, where its log-probs are not the trainer's; else None |
| ``sliced`` | the sizes of its model that the mesh's ``tp`` divides, by name |
| ``state_bytes`` | the bytes of each state as one rank exports it |
| ``state_parameters`` | the parameters of each state, as ``hfdsl.protocols.layouts.Parameter`` has them |
| ``truncates`` | how it samples from a part of the distribution, such as ``"top_p = 0.9"``; None from all of it |
| ``vocabulary`` | the number of tokens that its model has embeddings for |

A role without the method, and arguments that do not fit, state nothing: the check or the launch reports the latter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.mesh import Mesh
from hfdsl.types.numbers import is_count

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


def computing_dtype(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the dtype; None if the role does not state one.

    >>> class Engine:
    ...     @staticmethod
    ...     def computes(dtype: str = "bfloat16") -> str:
    ...         return dtype
    >>> computing_dtype(Engine, (), {}), computing_dtype(Engine, (), {"dtpe": 1}), computing_dtype(object, (), {})
    ('bfloat16', None, None)
    """
    return _text(_stated(role, "computes", args, kwargs))


def call_obstacles(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
    """Why calls of a method fail when a role is built so, by method; none if the role states none.

    >>> class Policy:
    ...     @staticmethod
    ...     def call_obstacles(lora: bool) -> dict[str, str]:
    ...         return {} if lora else {"base_log_probs": "leaves out an adapter, and lora is not set"}
    >>> call_obstacles(Policy, (False,), {}), call_obstacles(Policy, (True,), {}), call_obstacles(object, (), {})
    ({'base_log_probs': 'leaves out an adapter, and lora is not set'}, {}, {})
    """
    by_method = _entries(_stated(role, "call_obstacles", args, kwargs))
    return {method: obstacle for method, obstacle in by_method.items() if isinstance(obstacle, str)}


def declared_settings(role: type, fact: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:
    """The settings that copies share, by name, of ``copied_settings`` or ``adapter_settings``; none if it states none.

    >>> class Policy:
    ...     @staticmethod
    ...     def copied_settings(theta: float = 1e4) -> dict[str, object]:
    ...         return {"rope_theta": theta}
    >>> declared_settings(Policy, "copied_settings", (5e5,), {}), declared_settings(object, "copied_settings", (), {})
    ({'rope_theta': 500000.0}, {})
    """
    return dict(_entries(_stated(role, fact, args, kwargs)))


def obstacles(role: type, mesh: Mesh, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Obstacle, ...]:
    """Why a role cannot be constructed so; none if the role states none.

    >>> class Policy:
    ...     @staticmethod
    ...     def obstacles(mesh: Mesh, lora: bool) -> list[Obstacle]:
    ...         return [Obstacle("HF715", f"tp = {mesh.tp} slices the adapter")] if lora and mesh.tp > 1 else []
    >>> [obstacle.message for obstacle in obstacles(Policy, Mesh(tp=2), (True,), {})]
    ['tp = 2 slices the adapter']
    >>> obstacles(Policy, Mesh(), (True,), {}), obstacles(object, Mesh(tp=2), (True,), {})
    ((), ())
    """
    fact = _stated(role, "obstacles", (mesh, *args), kwargs)
    entries = fact if isinstance(fact, (list, tuple)) else ()
    return tuple(obstacle for obstacle in entries if isinstance(obstacle, Obstacle))


def declared_cached_tokens(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """By method the tokens that an engine has room for; none if the role states none.

    >>> class Engine:
    ...     @staticmethod
    ...     def cached_tokens(tokens: int) -> dict[str, int]:
    ...         return {"generate": tokens}
    >>> declared_cached_tokens(Engine, (4096,), {}), declared_cached_tokens(Engine, (), {})
    ({'generate': 4096}, {})
    """
    return _counts(_stated(role, "cached_tokens", args, kwargs), least=1)


def declared_concurrency(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """How many calls of a method may be in progress in a process at a time; none if the role states none.

    >>> class Engine:
    ...     @staticmethod
    ...     def concurrent_calls(calls: int = 4) -> dict[str, int]:
    ...         return {"generate": calls}
    >>> declared_concurrency(Engine, (), {}), declared_concurrency(Engine, (0,), {})
    ({'generate': 4}, {})
    """
    return _counts(_stated(role, "concurrent_calls", args, kwargs), least=1)


def missed_end(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The token after which responses continue although its model ends a text with it; None where they end, or unknown.

    >>> class Engine:
    ...     @staticmethod
    ...     def misses_end(ends: tuple[int, ...]) -> int | None:
    ...         return None if 2 in ends else 2
    >>> missed_end(Engine, ((7,),), {}), missed_end(Engine, ((2, 7),), {}), missed_end(object, (), {})
    (2, None, None)
    """
    return _count(_stated(role, "misses_end", args, kwargs), least=0)


def sampling_engine(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The name of the engine; None if it is the trainer's, or the role does not state one.

    >>> class Engine:
    ...     @staticmethod
    ...     def samples_with(engine: str = "vllm") -> str | None:
    ...         return None if engine == "plain" else engine
    >>> sampling_engine(Engine, (), {}), sampling_engine(Engine, ("plain",), {}), sampling_engine(object, (), {})
    ('vllm', None, None)
    """
    return _text(_stated(role, "samples_with", args, kwargs))


def policy_temperature(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """The number that logits are divided by; None if the role does not state it.

    >>> class Engine:
    ...     @staticmethod
    ...     def policy_temperature(temperature: float = 1.0) -> float:
    ...         return temperature
    >>> policy_temperature(Engine, (0.7,), {}), policy_temperature(object, (), {})
    (0.7, None)
    """
    fact = _stated(role, "policy_temperature", args, kwargs)
    return float(fact) if isinstance(fact, (int, float)) else None


def repeated_responses(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why all responses to one prompt are the same; None if they differ, or the role does not say.

    >>> class Engine:
    ...     @staticmethod
    ...     def repeats_responses(top_k: int = 0) -> str | None:
    ...         return "top_k = 1" if top_k == 1 else None
    >>> repeated_responses(Engine, (1,), {}), repeated_responses(Engine, (), {})
    ('top_k = 1', None)
    """
    return _text(_stated(role, "repeats_responses", args, kwargs))


def stated_equal_scores(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why a role gives every response the same score; None if it does not, or does not say.

    >>> class Judge:
    ...     @staticmethod
    ...     def equal_scores(levels: int = 10) -> str | None:
    ...         return "levels = 1" if levels == 1 else None
    >>> stated_equal_scores(Judge, (1,), {}), stated_equal_scores(Judge, (), {})
    ('levels = 1', None)
    """
    return _text(_stated(role, "equal_scores", args, kwargs))


def truncated_sampling(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """How a role samples from a part of the distribution; None if it takes all of it, or does not say.

    >>> class Engine:
    ...     @staticmethod
    ...     def truncates(top_p: float = 1.0) -> str | None:
    ...         return f"top_p = {top_p}" if top_p < 1 else None
    >>> truncated_sampling(Engine, (0.9,), {}), truncated_sampling(Engine, (), {})
    ('top_p = 0.9', None)
    """
    return _text(_stated(role, "truncates", args, kwargs))


def declared_vocabulary(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The number of tokens in the vocabulary of a role's model; None if the role does not state it.

    >>> class Model:
    ...     @staticmethod
    ...     def vocabulary(tokens: int) -> int:
    ...         return tokens
    >>> declared_vocabulary(Model, (32000,), {}), declared_vocabulary(Model, (0,), {})
    (32000, None)
    """
    return _count(_stated(role, "vocabulary", args, kwargs), least=1)


def declared_result_sizes(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """By method the sizes of dims in its result, by name; none if the role states none.

    >>> class Engine:
    ...     @staticmethod
    ...     def result_sizes(tokens: int) -> dict[str, dict[str, int]]:
    ...         return {"generate": {"R": tokens}}
    >>> declared_result_sizes(Engine, (512,), {}), declared_result_sizes(Engine, (), {})
    ({'generate': {'R': 512}}, {})
    """
    by_method = _entries(_stated(role, "result_sizes", args, kwargs))
    return {method: _counts(sizes, least=1) for method, sizes in by_method.items()}


def declared_learning(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Learning | None:
    """How the parameters of a role learn; None if the role does not say.

    >>> class Trainer:
    ...     @staticmethod
    ...     def learning(rate: float) -> Learning:
    ...         return Learning(rate, "bfloat16")
    >>> declared_learning(Trainer, (1e-6,), {}), declared_learning(Trainer, (), {})
    (Learning(rate=1e-06, dtype='bfloat16', warmup=0, end=None, least_rate=0.0, pretrained=False, epsilon=None), None)
    """
    fact = _stated(role, "learning", args, kwargs)
    return fact if isinstance(fact, Learning) else None


def declared_dropout(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, float]:
    """The share of activations that the updates of a role set to 0, by setting; none if it drops or states none.

    >>> class Trainer:
    ...     @staticmethod
    ...     def drops(dropout: float = 0.0) -> dict[str, float]:
    ...         return {"dropout": dropout}
    >>> declared_dropout(Trainer, (0.1,), {}), declared_dropout(Trainer, (), {}), declared_dropout(object, (), {})
    ({'dropout': 0.1}, {}, {})
    """
    shares = _entries(_stated(role, "drops", args, kwargs))
    return {name: share for name, share in shares.items() if isinstance(share, float) and share > 0}


def in_flight_obstacle(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why a role cannot take weights between tokens when it is built so; None if it states no obstacle.

    >>> class Engine:
    ...     @staticmethod
    ...     def in_flight_obstacle(engine: str) -> str | None:
    ...         return None if engine == "plain" else f"engine={engine!r} samples whole responses"
    >>> in_flight_obstacle(Engine, ("vllm",), {}), in_flight_obstacle(Engine, ("plain",), {})
    ("engine='vllm' samples whole responses", None)
    """
    return _text(_stated(role, "in_flight_obstacle", args, kwargs))


def sliced_sizes(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that ``tp`` divides; none if the role states none.

    >>> class Model:
    ...     @staticmethod
    ...     def sliced(heads: int) -> dict[str, int]:
    ...         return {"heads": heads}
    >>> sliced_sizes(Model, (14,), {}), sliced_sizes(Model, (), {"head": 14}), sliced_sizes(object, (), {})
    ({'heads': 14}, {}, {})
    """
    return _counts(_stated(role, "sliced", args, kwargs), least=1)


def declared_kept_bytes(role: type, mesh: Mesh, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of the parts of a rank's ``state()``; none if the role states none.

    >>> class Model:
    ...     @staticmethod
    ...     def kept_bytes(mesh: Mesh, parameters: int) -> dict[str, int]:
    ...         return {"weights": 4 * parameters // mesh.tp}
    >>> declared_kept_bytes(Model, Mesh(tp=2), (8,), {}), declared_kept_bytes(object, Mesh(), (), {})
    ({'weights': 16}, {})
    """
    return _counts(_stated(role, "kept_bytes", (mesh, *args), kwargs), least=0)


def declared_state_bytes(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """The bytes of each state as one rank exports it; none if the role states none.

    >>> class Model:
    ...     @staticmethod
    ...     def state_bytes(parameters: int) -> dict[str, int]:
    ...         return {"policy": 2 * parameters}
    >>> declared_state_bytes(Model, (7,), {}), declared_state_bytes(Model, (), {}), declared_state_bytes(object, (), {})
    ({'policy': 14}, {}, {})
    """
    return _counts(_stated(role, "state_bytes", args, kwargs), least=0)


def stated_parameters(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, tuple[object, ...]]:
    """The entries that the role states for each state, which are to be its parameters as full tensors.

    >>> class Model:
    ...     @staticmethod
    ...     def state_parameters(width: int) -> dict[str, list[Parameter]]:
    ...         return {"policy": [Parameter("weight", (width, width))]}
    >>> stated_parameters(Model, (7,), {}), stated_parameters(object, (), {})
    ({'policy': (Parameter(name='weight', shape=(7, 7), dtype='bfloat16'),)}, {})
    """
    by_state = _entries(_stated(role, "state_parameters", args, kwargs))
    return {state: tuple(parameters) for state, parameters in by_state.items() if isinstance(parameters, Iterable)}


def declared_reshards(
    role: type, mesh: Mesh, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Resharding]:
    """The reshardings by method; none if the role states none.

    >>> declared_reshards(object, Mesh(), (), {})
    {}
    """
    by_method = _entries(_stated(role, "reshards", (mesh, *args), kwargs))
    return {method: resharding for method, resharding in by_method.items() if isinstance(resharding, Resharding)}


def declared_gpu_bytes(role: type, mesh: Mesh, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GpuBytes:
    """The parts on the GPU of a rank by method; none if the role states none.

    >>> class Model:
    ...     @staticmethod
    ...     def gpu_bytes(mesh: Mesh, parameters: int) -> dict[str, dict[str, int]]:
    ...         return {"": {"weights": 2 * parameters // mesh.tp}}
    >>> declared_gpu_bytes(Model, Mesh(tp=2), (7,), {}), declared_gpu_bytes(object, Mesh(), (), {})
    ({'': {'weights': 7}}, {})
    """
    by_method = _entries(_stated(role, "gpu_bytes", (mesh, *args), kwargs))
    return {method: _counts(parts, least=0) for method, parts in by_method.items()}


def parameter_count(role: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The number of parameters of a role's model; None if the role states none.

    >>> class Model:
    ...     @staticmethod
    ...     def parameter_count(width: int) -> int | None:
    ...         return width**2
    >>> parameter_count(Model, (7,), {}), parameter_count(object, (), {})
    (49, None)
    """
    return _count(_stated(role, "parameter_count", args, kwargs), least=1)


def _stated(role: type, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    try:
        return getattr(role, method)(*args, **kwargs)
    except Exception:  # noqa: BLE001  # it has no such method, or wrong arguments
        return None


def _text(fact: object) -> str | None:
    return fact if isinstance(fact, str) else None


def _count(fact: object, least: int) -> int | None:
    return fact if isinstance(fact, int) and is_count(fact, least=least) else None


def _counts(fact: object, least: int) -> dict[str, int]:
    """The entries that are counts."""
    return {name: size for name, size in _entries(fact).items() if is_count(size, least=least)}


def _entries(fact: object) -> Mapping[str, Any]:
    return fact if isinstance(fact, Mapping) else {}
