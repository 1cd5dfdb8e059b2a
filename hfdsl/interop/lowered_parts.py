"""Parts of lowered runs that libraries share: lengths, rewards by rule, engines on the actor's ranks, and samplers.

Ranks that share rows, by tensor or context parallelism or by ring attention, are ranks along ``tp``: so every
data-parallel rank has the rows that the library gives it. An example on 8 GPUs: where 2 of them share a row, the mesh
is dp = 4, tp = 2, and an engine may have both ranks along ``tp``, or one of them; one on 4 GPUs has no counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfdsl.interop.lowering import Draft, not_lowered
from hfdsl.interop.settings import is_integer

CACHE_TOKENS = 131_072
"""The default size of an engine's cache."""

MOST_LAG = 8
"""The lag that hfdsl's losses correct for."""

SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
"""Schedules of learning rates, by their names in transformers."""

SCORE_NOTE = "score(response, task) of your own"


@dataclass(frozen=True, slots=True)
class RoleMesh:
    """The ranks of a role: ``width`` of them share a row, in each of ``stages``; ``keys`` decide it."""

    ranks: int
    width: int
    keys: tuple[str, ...]
    stages: int = 1


def put_lengths(draft: Draft, longest: str, response: str, prompt: str = "") -> None:
    """The dims P and R of a library that bounds a prompt and its response together.

    Where a response may take all of it, the prompt's part is to be set: a quarter, as long as nothing says more.
    """
    c = draft.configuration
    total, tokens = c.size(longest), c.known(response)
    bound = c.known(prompt) if prompt and c.has(prompt) else None
    if is_integer(tokens) and 0 < tokens < total:
        draft.put("dims.P", total - tokens, longest, response)
        draft.put("dims.R", tokens, response)
        return
    if is_integer(bound) and 0 < bound < total:
        draft.put("dims.P", bound, prompt)
    else:
        draft.put("dims.P", max(1, total // 4), note="the most tokens of a prompt, which is bounded with its response")
    draft.put("dims.R", max(1, total - draft.fields["dims.P"].value), longest)
    draft.uses(response, prompt)


def put_lag(draft: Draft, key: str) -> None:
    """How many steps rows may be behind in a queue.

    Raises:
        NotLowered: HF981 for more than a loss corrects for.
    """
    c = draft.configuration
    if c.size(key) > MOST_LAG:
        raise not_lowered(c, key, f"its losses correct for rows of at most {MOST_LAG} steps ago")
    draft.put("options.lag", c.size(key), key)


def put_generation(draft: Draft, role: str, response: str) -> None:
    """The lengths of a role that samples; a row has its place in the engine's cache."""
    prompts, tokens = (draft.fields[name].value for name in ("dims.P", "dims.R"))
    draft.put(f"{role}.generation.max_tokens", tokens, response)
    if prompts + tokens > CACHE_TOKENS:
        draft.put(f"{role}.generation.cache_tokens", prompts + tokens, response)


def put_mesh(draft: Draft, role: str, pool: str, mesh: RoleMesh) -> None:
    """The place of a role."""
    draft.put(f"deployment.roles.{role}.pool", pool)
    for axis, count in (("pp", mesh.stages), ("dp", mesh.ranks), ("tp", mesh.width)):
        if count > 1 or axis == "dp":
            draft.put(f"deployment.roles.{role}.mesh.{axis}", count, *mesh.keys)


def put_engines(draft: Draft, mesh: RoleMesh, width: int, key: str) -> None:
    """Engines of ``width`` GPUs on the ranks of the actor."""
    if mesh.width == 1 and width > 1 and mesh.ranks % width == 0:
        draft.put("actor.generation.engine_tp", width, key)
    elif width < mesh.width and mesh.width % width == 0:
        if rows_of(draft) % (mesh.ranks * (mesh.width // width)):
            draft.leave_out(key, "the rows of a step do not split evenly over these engines")
        else:
            draft.put("deployment.roles.actor.mesh.gen_tp", width, key)
    elif width == mesh.width:
        draft.uses(key)
    else:
        draft.leave_out(key, f"an engine of hfdsl has the {mesh.width} ranks along tp, or a part of them")


def put_sampler(draft: Draft, processes: Sequence[int], mesh: RoleMesh, *keys: str, note: str = "") -> None:
    """A sampler on GPUs of its own, with the actor's model.

    Raises:
        NotLowered: HF981 for rows that do not split evenly over its engines.
    """
    demand_even_rows(draft, mesh, "engines")
    draft.refer("sampler.model", "actor.model")
    if "actor.training.autocast" in draft.fields:
        draft.refer("sampler.autocast", "actor.training.autocast")
    draft.put("deployment.pools.rollout.processes", list(processes), *keys, note=note)
    put_mesh(draft, "sampler", "rollout", mesh)


def rows_of(draft: Draft) -> int:
    """The rows of a step: prompts, each with its responses."""
    group = draft.fields.get("options.group")
    prompts: int = draft.fields["dims.B"].value
    return prompts if group is None else prompts * int(group.value)


def demand_even_rows(draft: Draft, mesh: RoleMesh, ranks: str) -> None:
    """Refuse rows that are not a whole number for each rank of a role; a library may give some ranks fewer.

    Raises:
        NotLowered: HF981.
    """
    rows = rows_of(draft)
    if rows % mesh.ranks:
        why = f"{rows:,} rows do not split evenly over {mesh.ranks} {ranks}"
        raise not_lowered(draft.configuration, mesh.keys[0], why)


def put_rule(draft: Draft, *keys: str) -> None:
    """A reward by a function, which runs on CPUs."""
    draft.put("roles.reward", "hfdsl.rl.workers:Verifier", *keys[:1])
    draft.put("reward.function", "rewards:score", *keys, note=SCORE_NOTE)
    draft.refer("reward.tokenizer", "data.tokenizer")
    draft.put("deployment.pools.judges.processes", [1])
    draft.put("deployment.pools.judges.gpu", value=False)
    draft.put("deployment.roles.reward.pool", "judges")


def put_reference(draft: Draft) -> None:
    """A reference with the model that the actor starts from, at its temperature."""
    draft.refer("reference.model", "actor.model")
    if "actor.training.autocast" in draft.fields:
        draft.refer("reference.autocast", "actor.training.autocast")
    if (temperature := draft.fields.get("actor.generation.temperature")) is not None:
        draft.put("reference.temperature", temperature.value, *temperature.keys)


def updates_of_a_step(draft: Draft) -> int:
    """The optimizer steps of a step, since some libraries' schedules count steps."""
    product = 1
    for name in ("options.updates", "options.mini_batches", "options.epochs"):
        product *= draft.fields[name].value if name in draft.fields else 1
    return product
