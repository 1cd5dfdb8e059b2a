"""Types, choices and bounds of the values that a run of verl uses.

verl's dataclasses take a value of any type; the optimizer, the loss, the loader or the engine refuses it later. Types
and choices are in the table, bounds are those of PyTorch's optimizers and loaders, of the losses and of the engines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from hfdsl.interop.library_tables import table
from hfdsl.interop.reporting import Problem
from hfdsl.interop.settings import Configuration, NotKnown
from hfdsl.interop.value_types import (
    AT_LEAST_1,
    FRACTION,
    NOT_NEGATIVE,
    SHARE,
    ValueBounds,
    bounds_problem,
    choice_problem,
    is_number,
    type_problem,
)
from hfdsl.interop.verl.rules.values import CHOICES, SIZES
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MICRO,
    CRITIC_MINI,
    FSDP,
    MICRO,
    MODE,
    REF,
    REF_MICRO,
    ROLLOUT,
    ROLLOUT_MICRO,
    STRATEGY,
    uses_critic,
    uses_reference,
)

IN_FRACTIONS = (
    "trainer.save_freq", "trainer.test_freq", "trainer.critic_warmup", "trainer.total_epochs",
    "trainer.v1.sampler.max_off_policy_threshold", "trainer.log_val_generations", "algorithm.kl_ctrl.horizon",
    f"{ACTOR}.loss_scale_factor", f"{ACTOR}.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps",
    f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu",
    "critic.forward_max_token_len_per_gpu",
)  # fmt: skip  # a list of keys
"""Integers with which verl only compares and divides, so that a fraction does not stop it."""

OPTIONAL = ("data.seed", "data.gen_batch_size", "data.val_batch_size", "trainer.total_training_steps")
"""Integers without a default, whose type no dataclass states."""

BOUNDS: Mapping[str, ValueBounds] = {
    f"{ACTOR}.optim.lr": NOT_NEGATIVE, f"{ACTOR}.optim.weight_decay": NOT_NEGATIVE,
    "critic.optim.lr": NOT_NEGATIVE, "critic.optim.weight_decay": NOT_NEGATIVE,
    f"{ROLLOUT}.top_p": SHARE, f"{ROLLOUT}.top_k": ValueBounds(-1), f"{ROLLOUT}.max_num_seqs": AT_LEAST_1,
    f"{ROLLOUT}.val_kwargs.n": AT_LEAST_1, f"{ROLLOUT}.val_kwargs.temperature": NOT_NEGATIVE,
    f"{ROLLOUT}.trace.max_samples_per_step_per_worker": NOT_NEGATIVE,
    "data.dataloader_num_workers": NOT_NEGATIVE, "data.max_response_length": AT_LEAST_1,
    "data.max_prompt_length": AT_LEAST_1,
}  # fmt: skip  # a table
COSINE = (f"{ACTOR}.optim.min_lr_ratio", "critic.optim.min_lr_ratio")
"""Fractions for the cosine schedule."""

REPORTED = (*SIZES, *CHOICES, "algorithm.adv_estimator", MICRO, ROLLOUT_MICRO, REF_MICRO, CRITIC_MICRO, CRITIC_MINI)
"""Keys whose values other rules report."""

NOT_FOLLOWED = re.compile(
    r"(reward|reward_model|distillation|global_profiler|transfer_queue|ray_kwargs|actor_rollout_ref\.model)\."
    r"|.*\.(profiler|checkpoint|prometheus|qat|mtp|server|router_replay|multi_turn|disaggregation|rollout_correction)\."
)
"""Tables that matter only if they are switched on, in ways that no rule follows."""

Use = Callable[[Configuration], object]


def _switched(key: str) -> Use:
    return lambda c: c.value(key)


def _equals(key: str, *values: str) -> Use:
    return lambda c: c.value(key) in values


LOSS, ESTIMATOR = f"{ACTOR}.policy_loss.loss_mode", "algorithm.adv_estimator"
CLIPPED = ("vanilla", "clip_cov", "kl_cov", "gspo", "geo_mean", "cispo", "dppo_tv", "dppo_kl")
LOW, HIGH = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"


def _reads_clip_ratio(c: Configuration) -> bool:
    """Whether a bound of the clip is left to ``clip_ratio``, which no other loss reads."""
    return c.value(LOSS) == "vanilla" and None in (c.value(LOW), c.value(HIGH))


USES: Mapping[str, Use] = {
    "critic.": uses_critic,
    f"{REF}.": uses_reference,
    f"{ACTOR}.kl_loss_": _switched(f"{ACTOR}.use_kl_loss"),
    "algorithm.kl_": _switched("algorithm.use_kl_in_reward"),
    "algorithm.kl_ctrl.horizon": _equals("algorithm.kl_ctrl.type", "adaptive"),
    "algorithm.kl_ctrl.target_kl": _equals("algorithm.kl_ctrl.type", "adaptive"),
    "algorithm.lam": _equals(ESTIMATOR, "gae"),
    "algorithm.gamma": _equals(ESTIMATOR, "gae", "reinforce_plus_plus"),
    "algorithm.filter_groups.": _switched("algorithm.filter_groups.enable"),
    "algorithm.pf_ppo.": _switched("algorithm.use_pf_ppo"),
    f"{ACTOR}.clip_ratio_c": _equals(LOSS, "vanilla", "clip_cov", "kl_cov"),
    LOW: _equals(LOSS, *CLIPPED),
    HIGH: _equals(LOSS, *CLIPPED),
    f"{ACTOR}.policy_loss.clip_cov": _equals(LOSS, "clip_cov"),
    f"{ACTOR}.policy_loss.kl_cov": _equals(LOSS, "kl_cov"),
    f"{ACTOR}.policy_loss.ppo_kl_coef": _equals(LOSS, "kl_cov"),
    f"{ACTOR}.policy_loss.dro": _equals(LOSS, "dro"),
    f"{ACTOR}.tau_": _equals(LOSS, "sapo"),
    f"{ACTOR}.loss_scale_factor": _equals(f"{ACTOR}.loss_agg_mode", "seq-mean-token-sum-norm"),
    f"{ACTOR}.entropy_from_logits_chunk": _switched(f"{ACTOR}.entropy_from_logits_with_chunking"),
    f"{ACTOR}.ppo_max_token": _switched(f"{ACTOR}.use_dynamic_bsz"),
    f"{ACTOR}.ppo_micro": lambda c: not c.value(f"{ACTOR}.use_dynamic_bsz"),
    f"{ACTOR}.ppo_infer": lambda c: False,
    f"{ROLLOUT}.log_prob_max_token": _switched(f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    f"{ROLLOUT}.log_prob_micro": lambda c: not c.value(f"{ROLLOUT}.log_prob_use_dynamic_bsz"),
    f"{ROLLOUT}.nnodes": _equals(MODE, "separate_async"),
    f"{ROLLOUT}.n_gpus_per_node": _equals(MODE, "separate_async"),
    "trainer.v1.separate_async.": _equals(MODE, "separate_async"),
    "trainer.v1.colocate_async.": _equals(MODE, "colocate_async"),
    "trainer.v1.sampler.": _equals(MODE, "separate_async", "colocate_async"),
}  # fmt: skip  # a table
"""Keys, by how they begin, that a run uses only where something holds."""


def values_have_types(c: Configuration) -> Iterator[Problem]:
    """Values have the types, choices and bounds that verl needs."""
    options = {**table("verl").options, **{key: {"type": "int", "none": True} for key in OPTIONAL}}
    for key in c.explicit:
        if (key not in options and key not in BOUNDS) or key in REPORTED or c.owner(key) != key:
            continue
        with suppress(NotKnown):  # one value that is not known says nothing of others
            if _is_used(c, key) and (problem := _problem(c, key, options.get(key, {}))) is not None:
                yield problem


def _problem(c: Configuration, key: str, facts: Mapping[str, Any]) -> Problem | None:
    bounds = BOUNDS.get(key)
    schedule = key.replace("min_lr_ratio", "lr_scheduler_type")
    if key in COSINE and c.value(schedule) == "cosine":
        bounds = FRACTION
    if key.endswith(".clip_grad") and c.value(STRATEGY) in FSDP and is_number(c.value(key)):
        return None  # PyTorch converts what it clips to
    problem = type_problem(c, key, facts, fractions=key in IN_FRACTIONS)
    if problem is None and "choices" in facts and c.value(key) is not None:
        problem = choice_problem(c, key, facts["choices"])
    return bounds_problem(c, key, bounds) if problem is None and bounds is not None else problem


def _is_used(c: Configuration, key: str) -> bool:
    """Whether the run uses a value; one that only some optimizers or schedules read is left to them."""
    if NOT_FOLLOWED.match(key):
        return key.startswith(ACTOR) and "choices" in table("verl").options.get(key, {})  # the dataclass demands them
    if key == f"{ACTOR}.clip_ratio":
        return _reads_clip_ratio(c)
    head, _, name = key.rpartition(".")
    if head.endswith(".optim") and c.value(STRATEGY) in FSDP:
        steps = c.value(f"{head}.lr_warmup_steps")
        is_warmed = isinstance(steps, int) and steps > 0
        if name == "total_training_steps" or (name == "lr_warmup_steps_ratio" and is_warmed):
            return False
        if name in ("num_cycles", "min_lr_ratio") and c.value(f"{head}.lr_scheduler_type") != "cosine":
            return False
    return all(use(c) for begin, use in USES.items() if key.startswith(begin))
