"""State: which methods of a role read, write, export and load its weights.

A state has a name, such as ``"policy"``, and belongs to the role instance that holds it. Two roles hold copies of one
state where the one loads what the other exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from hfdsl.errors import DefinitionError
from hfdsl.protocols.layouts import Layout
from hfdsl.protocols.register import registered_methods
from hfdsl.types.numbers import brief, count_limit, is_count
from hfdsl.types.similar_names import nearest

F = TypeVar("F", bound=Callable[..., Any])

C = TypeVar("C")

EFFECTS = "__hf_effects__"
CORRECTS = "__hf_corrects__"
"""The attribute under which ``corrects`` leaves a lag by state."""

EffectKind: TypeAlias = Literal["reads", "writes", "exports", "loads"]

DeclaredLayout: TypeAlias = Layout | Callable[..., Layout | None]
"""A layout, or a function of the mesh and of what the role's constructor takes that returns one."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a method on a state.

    ``staleness`` is how many steps old it may be where it is read; ``ratio`` is the column of old log-probs that the
    loss divides by where it is written. ``layout`` is what ranks hold of it where it is exported or loaded, and
    ``during`` the method between whose tokens it may be loaded.
    """

    kind: EffectKind
    state: str
    staleness: int = 0
    ratio: str | None = None
    layout: DeclaredLayout | None = field(default=None, repr=False)
    during: str | None = field(default=None, repr=False)


def reads(state: str, *, staleness: int = 0) -> Callable[[F], F]:
    """The method's result depends on the state, as that of ``generate`` on the policy's weights.

    ``staleness`` is the number of steps whose updates the state may lack then: 0 is on-policy, 1 is one step off.

    Raises:
        DefinitionError: HF120 if ``state`` is not a name or ``staleness`` is not a whole number of at least 0.

    >>> @reads("policy", staleness=1)
    ... def generate(prompts: list[str]) -> list[str]: ...
    >>> effects_of(generate)
    (Effect(kind='reads', state='policy', staleness=1, ratio=None),)
    """
    if not is_count(staleness, least=0):
        raise DefinitionError(
            "HF120", f"reads({state!r}): staleness= takes a number of steps, 0 or more, got {brief(staleness)}"
        )
    return _effect("reads", state, staleness)


def writes(state: str, *, ratio: str | None = None) -> Callable[[F], F]:
    """The method changes the state, as ``update`` changes the policy's weights.

    ``ratio`` names the column of old log-probs that a loss such as PPO's divides by, ``"rollout.log_probs"`` where two
    arguments have one: those of this state, from before its updates on these rows. A call whose option has
    ``uses_ratio = False``, such as the loss ``hfdsl.rl.losses.Reinforce``, forms none.

    Raises:
        DefinitionError: HF120 if ``state`` is not a name, or ``ratio`` is neither a name nor None.

    >>> @writes("policy", ratio="log_probs")
    ... def update(log_probs: list[float], advantages: list[float]) -> None: ...
    >>> effects_of(update)
    (Effect(kind='writes', state='policy', staleness=0, ratio='log_probs'),)
    """
    if ratio is not None and not (isinstance(ratio, str) and ratio):
        raise DefinitionError("HF120", f'writes({state!r}): ratio= is a column, such as "log_probs", got {ratio!r}')
    return _effect("writes", state, ratio=ratio)


def corrects(state: str, *, lag: int) -> Callable[[C], C]:
    """Declare that a loss or a training method corrects for rows made under a state up to ``lag`` updates ago.

    A loss with importance ratios to the log-probs that rows were sampled with does, within limits that its author
    knows; a check asks for it where rows come from a queue. The mark may stand on a class, a function or a method.

    Raises:
        DefinitionError: HF120 if ``state`` is not a name or ``lag`` is not a whole number of at least 1.

    >>> @corrects("policy", lag=8)
    ... def update(log_probs: list[float], advantages: list[float]) -> None: ...
    >>> corrected_lag(update, "policy"), corrected_lag(update, "values")
    (8, 0)
    """
    if not isinstance(state, str) or not state:
        raise DefinitionError("HF120", f'corrects takes the name of a state, such as "policy", got {state!r}')
    if not is_count(lag):
        takes = f"a whole number of updates, {count_limit(lag)}"
        raise DefinitionError("HF120", f"corrects({state!r}): lag= takes {takes}, got {brief(lag)}")

    def declare(loss: C) -> C:
        if not callable(loss):
            raise DefinitionError(
                "HF120", f"corrects({state!r}) marks a class, a function or a method, got {brief(loss)}"
            )
        setattr(loss, CORRECTS, {**getattr(loss, CORRECTS, {}), state: lag})
        return loss

    return declare


def corrected_lag(loss: object, state: str) -> int:
    """The number of updates for which a loss or method corrects, as ``corrects`` declares; else 0."""
    return corrected_lags(loss).get(state, 0)


def corrected_lags(loss: object) -> Mapping[str, int]:
    """By state the number of updates for which a loss or method corrects."""
    lags: dict[str, int] = getattr(loss, CORRECTS, {})
    return lags


def exports(state: str, *, layout: DeclaredLayout | None = None) -> Callable[[F], F]:
    """The method returns the state for other roles to load.

    ``layout`` says which part of every parameter a rank has; without one, the method returns whole parameters. It is a
    layout of ``hfdsl.protocols.layouts``, or a function of the mesh and of the constructor's arguments.

    Raises:
        DefinitionError: HF120 if ``state`` is not a name, HF739 if ``layout`` is neither a layout nor a function.

    >>> from hfdsl.protocols.layouts import Slices
    >>> @exports("policy", layout=Slices(0))
    ... def weights(self: object) -> dict[str, float]: ...
    >>> effects_of(weights)[0].layout
    Slices(dim=0, axis='tp', blocks=(), interleaved=None, units=None, shared=False, padding=1)
    """
    return _effect("exports", state, layout=_layout("exports", state, layout))


def loads(state: str, *, layout: DeclaredLayout | None = None, during: str | None = None) -> Callable[[F], F]:
    """Declare that a method loads the state that another role exports; ``layout`` and errors as for ``exports``.

    ``during`` names a method that takes new weights between tokens: its body goes through the decode steps of
    ``hf.current_call().decode_steps``, before each of which this method may run.

    Raises:
        DefinitionError: HF120 if ``during`` is neither a name nor None.

    >>> @loads("policy")
    ... def load(self, weights: dict) -> None: ...
    >>> [(effect.kind, effect.state) for effect in effects_of(load)]
    [('loads', 'policy')]
    """
    if during is not None and not (isinstance(during, str) and during.isidentifier()):
        raise DefinitionError(
            "HF120", f'loads({state!r}): during= is a method, such as "generate", got {brief(during)}'
        )
    return _effect("loads", state, layout=_layout("loads", state, layout), during=during)


def _layout(kind: EffectKind, state: object, layout: DeclaredLayout | None) -> DeclaredLayout | None:
    if layout is None or isinstance(layout, Layout) or (callable(layout) and not isinstance(layout, type)):
        return layout
    raise DefinitionError(
        "HF739",
        f"{kind}({state!r}): layout= takes a layout, such as Slices(0), or a function of the mesh, got {layout!r}",
    )


def _effect(
    kind: EffectKind,
    state: str,
    staleness: int = 0,
    ratio: str | None = None,
    layout: DeclaredLayout | None = None,
    during: str | None = None,
) -> Callable[[F], F]:
    if not isinstance(state, str) or not state:
        raise DefinitionError("HF120", f'{kind} takes the name of a state, such as "policy", got {state!r}')

    def declare(fn: F) -> F:
        effect = Effect(kind=kind, state=state, staleness=staleness, ratio=ratio, layout=layout, during=during)
        setattr(fn, EFFECTS, (effect, *effects_of(fn)))
        return fn

    return declare


def effects_of(fn: Callable[..., Any]) -> tuple[Effect, ...]:
    """The effects that ``reads``, ``writes``, ``exports`` and ``loads`` declare on a method."""
    effects: tuple[Effect, ...] = getattr(fn, EFFECTS, ())
    return effects


def only_reads(fn: Callable[..., Any]) -> bool:
    """Whether a method declares that it uses or exports a state, and changes none.

    >>> only_reads(reads("policy")(lambda self: None)), only_reads(lambda self: None)
    (True, False)
    """
    kinds = {effect.kind for effect in effects_of(fn)}
    return bool(kinds) and kinds <= {"reads", "exports"}


def only_loads(fn: Callable[..., Any]) -> bool:
    """Whether a method declares that it replaces a state by its argument, and does nothing else to it.

    >>> only_loads(loads("policy")(lambda self, weights: None)), only_loads(lambda self, weights: None)
    (True, False)
    """
    kinds = {effect.kind for effect in effects_of(fn)}
    return kinds == {"loads"}


def methods_with(role: type, kind: EffectKind) -> dict[str, str]:
    """The registered methods of a role with this effect: state -> method."""
    return {
        effect.state: name
        for name in registered_methods(role)
        for effect in effects_of(getattr(role, name))
        if effect.kind == kind
    }


def sync_methods(source: type, target: type) -> tuple[tuple[str, str], ...]:
    """For every state that ``source`` exports and ``target`` loads, the methods that do so."""
    exported, loaded = methods_with(source, "exports"), methods_with(target, "loads")
    return tuple((method, loaded[state]) for state, method in exported.items() if state in loaded)


def no_sync(source: type, target: type) -> str:
    """Why nothing can be synced from ``source`` to ``target``."""
    exported, loaded = list(methods_with(source, "exports")), list(methods_with(target, "loads"))
    near = next((name for state in loaded if (name := nearest(state, exported)) is not None), None)
    declare = "declare a method with @hf.exports(state) and one with @hf.loads(state)"
    advice = declare if near is None else f"did you mean '{near}'?"
    return (
        f"{source.__name__} exports {', '.join(map(repr, exported)) or 'nothing'} and "
        f"{target.__name__} loads {', '.join(map(repr, loaded)) or 'nothing'}; {advice}"
    )


def not_in_flight(role: type, load: str, during: str) -> str | None:
    """Why a method of a role cannot load weights during another one; None if it declares that it can.

    >>> class Engine:
    ...     @loads("policy", during="generate")
    ...     def load(self, weights: dict) -> None: ...
    >>> not_in_flight(Engine, "load", "generate")
    >>> not_in_flight(Engine, "load", "score")
    "its 'load' may run during 'generate' only"
    >>> not_in_flight(Engine, "load", "genrate")
    "its 'load' may run during 'generate' only; did you mean 'generate'?"
    """
    declared = _in_flight(role, load)
    if during in declared:
        return None
    if declared:
        near = nearest(during, declared)
        meant = "" if near is None else f"; did you mean '{near}'?"
        return f"its '{load}' may run during {' and '.join(map(repr, declared))} only{meant}"
    # A ready-made role may have a variant that can, beside it.
    subclasses: list[type] = role.__subclasses__()
    variants = (cls for cls in subclasses if cls.__module__ == role.__module__ and during in _in_flight(cls, load))
    variant = next((cls.__name__ for cls in variants), None)
    use = "" if variant is None else f"; that of its subclass {variant} does"
    return f"its '{load}' does not declare that it may run between the tokens of '{during}'{use}"


def _in_flight(role: type, load: str) -> list[str]:
    """The methods between whose tokens a role's method may load weights."""
    return [effect.during for effect in effects_of(getattr(role, load)) if effect.kind == "loads" and effect.during]
