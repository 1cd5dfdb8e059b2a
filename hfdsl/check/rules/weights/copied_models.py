"""Copied models: is the model that loads a policy's weights the policy's in all that weights do not carry?

A worked example, a sampler with the rotary embeddings of another model, which ``copied_settings`` states::

    actor     rope_theta = 10000     learns
    sampler   rope_theta = 500000    has the actor's weights after hf.sync, and computes other log-probs from them

Names and shapes agree, so the sync succeeds. The rule does not compare a setting that one side does not state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from hfdsl.check.context import Context
from hfdsl.check.findings import Finding, Label
from hfdsl.deploy.deployment import Placement
from hfdsl.deploy.weight_syncs import WeightSync, overrides, weight_syncs
from hfdsl.protocols import role_facts
from hfdsl.protocols.role_facts import RoleFact

ONE_OF_TWO = ("tie_word_embeddings",)
"""Settings by which a model has one weight of two names: it can send both, but not keep two."""

MOST_SETTINGS = 3
"""How many settings a message names."""


def copies_have_the_model(context: Context) -> Iterator[Finding]:
    """HF960, HF963: both sides of a sync state the same settings of the model, and of an adapter that is sent alone."""
    reported = set[tuple[str, str]]()
    for sync in weight_syncs(context.program.graph, context.program.deployment):
        learner, copy = sync.source.role, sync.target.role
        if (learner, copy) in reported:
            continue
        reported.add((learner, copy))
        models, adapters = (_settings(sync, fact) for fact in (role_facts.copied_settings, role_facts.adapter_settings))
        model = None if has_other_shapes(sync) else other_model(learner, copy, *models)
        adapter = _differences(learner, *adapters)
        if model is not None:
            yield _finding(sync, "HF960", model)
        elif adapter:
            yield _finding(sync, "HF963", f"'{copy}' adds the adapter of '{learner}' in another way: {adapter}")


def other_model(learner: str, copy: str, learned: Mapping[str, object], sampled: Mapping[str, object]) -> str | None:
    """The message for a copy whose settings differ from those of the role that learns; None if none do."""
    if differences := _differences(learner, learned, sampled):
        return f"'{copy}' samples with the weights of '{learner}', but its model differs: {differences}"
    return None


def _differences(learner: str, learned: Mapping[str, object], sampled: Mapping[str, object]) -> str:
    both = [name for name in learned if name in sampled]
    unlike = [name for name in both if name not in ONE_OF_TWO and _differ(learned[name], sampled[name])]
    unlike += [name for name in ONE_OF_TWO if name in both and sampled[name] and not learned[name]]
    more = f" and {len(unlike) - MOST_SETTINGS} more" if len(unlike) > MOST_SETTINGS else ""
    named = [f"{name} = {sampled[name]!r} ({learned[name]!r} in '{learner}')" for name in unlike[:MOST_SETTINGS]]
    return f"{', '.join(named)}{more}"


def _differ(left: Any, right: Any) -> bool:
    """Whether two values of a setting differ; of tokens, ``[2]`` is 2."""
    left, right = (sorted(value) if isinstance(value, list) else [value] for value in (left, right))
    return bool(left != right)


def has_other_shapes(sync: WeightSync) -> bool:
    """Whether both sides state parameters that differ by more than an output layer: HF730 to HF732 name them."""
    exported, loaded = (Counter(entry.shape for entry in side.parameters) for side in (sync.source, sync.target))
    differing = (exported - loaded).total() + (loaded - exported).total()
    return bool(exported and loaded) and differing > 1


def _settings(sync: WeightSync, fact: RoleFact[dict[str, object]]) -> tuple[dict[str, object], dict[str, object]]:
    return _stated(sync.source.placement, fact), _stated(sync.target.placement, fact)


def _stated(place: Placement[Any], fact: RoleFact[dict[str, object]]) -> dict[str, object]:
    """The settings that a role states; none if a class below builds its model in another way."""
    return {} if overrides(place.role, "__init__", fact.name) else fact.of(place)


def _finding(sync: WeightSync, code: str, message: str) -> Finding:
    source, target = sync.source, sync.target
    return Finding(
        code,
        message,
        Label(target.placement.span, f"'{target.role}' is placed here"),
        (Label(source.placement.span, f"'{source.role}' learns"), Label(target.node.span, "gets its weights")),
        notes=(f"configure both alike: a sync sends '{target.role}' weights, and no settings",),
    )
