"""Settings that need or exclude one another."""

from __future__ import annotations

from collections.abc import Iterator

from hfdsl.interop.reporting import Problem, finding, setting_fix
from hfdsl.interop.settings import MISSING, Configuration, is_integer
from hfdsl.interop.verl.units import (
    ACTOR,
    CRITIC_MICRO,
    FSDP,
    MICRO,
    MODE,
    MODEL,
    REF,
    REF_MICRO,
    ROLLOUT,
    ROLLOUT_MICRO,
    SAMPLES,
    TRAIN,
    uses_critic,
    uses_reference,
)

COMPARES = (
    "grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", "gpg", "gdpo",
    "reinforce_plus_plus_baseline",
)  # fmt: skip
"""Estimators that compare the responses to one prompt."""


def required_keys_are_given(c: Configuration) -> Iterator[Problem]:
    """Keys without a default are given."""
    key = f"{ROLLOUT}.name"
    if c.value(key) == MISSING:
        yield finding(c, "HF974", f"{key} has no default: vllm, sglang or trtllm", key, advice=(f"add {key}=vllm",))
    if c.value(f"{ROLLOUT}.mode") == "sync":
        yield finding(
            c,
            "HF972",
            f"{ROLLOUT}.mode = sync is gone since verl 0.7: engines are servers now",
            f"{ROLLOUT}.mode",
            advice=(f"leave out {ROLLOUT}.mode",),
            fixes=setting_fix(c, f"{ROLLOUT}.mode", "async")[1],
        )


def micro_batches_are_given_once(c: Configuration) -> Iterator[Problem]:
    """A micro-batch size is given for each model, per GPU."""
    if c.value(f"{ACTOR}.use_dynamic_bsz"):
        return
    pairs = [(f"{ACTOR}.ppo_micro_batch_size", MICRO), (f"{ROLLOUT}.log_prob_micro_batch_size", ROLLOUT_MICRO)]
    if uses_reference(c) and not c.value(f"{REF}.log_prob_use_dynamic_bsz"):
        pairs.append((f"{REF}.log_prob_micro_batch_size", REF_MICRO))
    for old, new in pairs:
        yield from _one_of(c, old, new)
    if uses_critic(c) and not c.value("critic.use_dynamic_bsz"):
        yield from _one_of(c, "critic.ppo_micro_batch_size", CRITIC_MICRO)


def _one_of(c: Configuration, old: str, new: str) -> Iterator[Problem]:
    by_all, by_gpu = c.value(old), c.value(new)
    if by_all is None and by_gpu is None:
        yield finding(
            c,
            "HF974",
            f"{new} is not set, and {new.rpartition('.')[0]} has no dynamic batches",
            new,
            advice=(f"add {new}=1 or a larger one, or {ACTOR}.use_dynamic_bsz=True for all models",),
        )
    elif by_all is not None and by_gpu is not None:
        copied = c.owner(new) == old
        why = f"{new} copies it, and then both are set" if copied else "the former is the old name"
        yield finding(
            c,
            "HF974",
            f"{old} = {by_all} and {new} = {by_gpu} exclude each other: {why}",
            old,
            new,
            advice=(f"leave out {old} and set {new}",),
        )
    elif by_gpu is None:
        yield finding(
            c,
            "HF974",
            f"{old} is the old name, which the workers of verl 0.9 do not read: they need {new}",
            old,
            advice=(f"set {new} instead: rows a GPU rather than rows of all GPUs",),
        )


def dynamic_batches_agree(c: Configuration) -> Iterator[Problem]:
    """Updates and log-probs of the actor both have dynamic batches, or neither has."""
    update, log_probs = f"{ACTOR}.use_dynamic_bsz", f"{ROLLOUT}.log_prob_use_dynamic_bsz"
    if c.value(update) != c.value(log_probs):
        sentences = [setting_fix(c, log_probs, c.value(update)), setting_fix(c, update, c.value(log_probs))]
        yield finding(
            c,
            "HF974",
            f"{update} = {c.value(update)} and {log_probs} = {c.value(log_probs)}: the actor has one engine for "
            "both, and its worker refuses two modes",
            log_probs,
            update,
            advice=[sentence for sentence, _ in sentences[:1]],
            fixes=sentences[0][1],
        )


def critic_is_there_for_gae(c: Configuration) -> Iterator[Problem]:
    """GAE has a critic."""
    estimator, enabled = "algorithm.adv_estimator", "critic.enable"
    if c.value(estimator) == "gae" and c.value(enabled) is False:
        yield finding(
            c,
            "HF974",
            f"{estimator} = gae needs the values of a critic, and {enabled} = False",
            enabled,
            estimator,
            advice=(f"leave out {enabled}",),
        )


def pools_have_gpus(c: Configuration) -> Iterator[Problem]:
    """Pools of their own for reward models and teachers have nodes and GPUs."""
    for switch, table in (
        ("reward.reward_model.enable_resource_pool", "reward.reward_model"),
        ("distillation.enabled", "distillation"),
    ):
        if not c.value(switch):
            continue
        for name in ("n_gpus_per_node", "nnodes"):
            value = c.value(f"{table}.{name}")
            if is_integer(value) and value < 1:
                yield finding(
                    c,
                    "HF974",
                    f"{switch} = True needs a pool, and {table}.{name} = {value}",
                    switch,
                    f"{table}.{name}",
                    advice=(f"set {table}.{name}",),
                )


def sequence_parallelism_needs_packed_rows(c: Configuration) -> Iterator[Problem]:
    """Ulysses sequence parallelism goes with remove-padding."""
    name = "ulysses_sequence_parallel_size"
    roles = [(ACTOR, f"{ACTOR}.{name}", MODEL), (ACTOR, f"{ACTOR}.fsdp_config.{name}", MODEL)]
    if uses_reference(c):
        roles += [(REF, f"{REF}.{name}", MODEL), (REF, f"{REF}.fsdp_config.{name}", MODEL)]
    if uses_critic(c):
        roles.append(("critic", f"critic.fsdp.{name}", "critic.model"))
    for role, size, model in {c.owner(entry[1]): entry for entry in reversed(roles)}.values():
        strategy, switch = c.known(f"{role}.strategy"), f"{model}.use_remove_padding"
        if strategy in FSDP and c.size(size) > 1 and not c.value(switch):
            sentence, fixes = setting_fix(c, switch, True)
            yield finding(
                c,
                "HF974",
                f"{size} = {c.size(size)} needs {switch}, which is {c.value(switch)}",
                size,
                switch,
                advice=(sentence,),
                fixes=fixes,
            )


def validation_samples_with_a_temperature(c: Configuration) -> Iterator[Problem]:
    """Validation that samples has a temperature above 0."""
    switch, temperature = f"{ROLLOUT}.val_kwargs.do_sample", f"{ROLLOUT}.temperature"
    value = c.value(temperature)
    if c.value(switch) and isinstance(value, int | float) and value <= 0:
        yield finding(
            c,
            "HF974",
            f"{switch} = True and {temperature} = {value}: verl refuses validation that samples at 0",
            temperature,
            switch,
            advice=(f"set {temperature} above 0",),
        )


def separate_rollout_has_gpus(c: Configuration) -> Iterator[Problem]:
    """An asynchronous trainer with separate GPUs has them, and a way to send weights there."""
    if c.value(MODE) != "separate_async":
        return
    for name in ("nnodes", "n_gpus_per_node"):
        key = f"{ROLLOUT}.{name}"
        if is_integer(c.value(key)) and c.value(key) < 1:
            yield finding(
                c,
                "HF974",
                f"{MODE} = separate_async, and {key} = {c.value(key)}: the rollout has no GPUs",
                key,
                MODE,
                advice=(f"set {key} to 1 or more",),
            )
    backend = f"{ROLLOUT}.checkpoint_engine.backend"
    if c.value(backend) == "naive":
        yield finding(
            c,
            "HF974",
            f"{MODE} = separate_async sends weights between processes, and {backend} = naive does not",
            backend,
            MODE,
            advice=(f"set {backend} to nccl or nixl",),
            fixes=setting_fix(c, backend, "nccl")[1],
        )
    pool = "reward.reward_model.enable_resource_pool"
    if c.value("reward.reward_model.enable") and not c.value(pool):
        yield finding(
            c,
            "HF974",
            f"{MODE} = separate_async never frees GPUs for a reward model, and {pool} = False",
            pool,
            MODE,
            advice=(f"set {pool} to True, with GPUs of its own",),
        )


def filtered_groups_have_rewards(c: Configuration) -> Iterator[Problem]:
    """Group filtering knows its metric when it samples."""
    switch, metric = "algorithm.filter_groups.enable", "algorithm.filter_groups.metric"
    if not c.value(switch):
        return
    if not c.value(metric):
        yield finding(
            c,
            "HF974",
            f"{switch} = True needs {metric}",
            switch,
            metric,
            advice=(f"set {metric} to acc, score or reward",),
        )
    pool = "reward.reward_model.enable_resource_pool"
    if c.value("reward.reward_model.enable") and not c.value(pool):
        yield finding(
            c,
            "HF974",
            f"{switch} = True needs rewards while it samples, and a reward model without a pool gives them later",
            switch,
            pool,
            advice=(f"set {pool} to True",),
        )


def data_fill_a_batch(c: Configuration) -> Iterator[Problem]:
    """A data set that is cut has the prompts of a batch."""
    key = "data.train_max_samples"
    value = c.value(key)
    batch = c.known("data.gen_batch_size") or c.size(TRAIN)
    if is_integer(value) and 0 < value < batch:
        yield finding(
            c,
            "HF974",
            f"{key} = {value} prompts are less than the {batch} of a batch: an epoch has no step",
            key,
            TRAIN,
            advice=(f"set {key} to {batch} or more, or leave it out",),
            fixes=setting_fix(c, key, batch)[1],
        )


def groups_differ(c: Configuration) -> Iterator[Problem]:
    """Responses that are compared are drawn, and so differ."""
    heat, name = f"{ROLLOUT}.temperature", c.value("algorithm.adv_estimator")
    if name in COMPARES and c.value(heat) == 0 and c.size(SAMPLES) > 1 and not c.value("distillation.enabled"):
        message = (
            f"{heat} = {c.value(heat)}: the {c.size(SAMPLES)} responses to a prompt are all alike, and advantages 0"
        )
        yield finding(c, "HF979", message, heat, SAMPLES, advice=(f"set {heat} above 0",))


def groups_have_members(c: Configuration) -> Iterator[Problem]:
    """An estimator that compares responses to one prompt has several."""
    key = "algorithm.adv_estimator"
    if c.value("distillation.enabled"):
        return  # a teacher's log-probs are learned, whatever the advantages are
    if c.value(key) in COMPARES and c.size(SAMPLES) == 1:
        fails = c.value(key) == "grpo_passk"
        effect = "fails" if fails else "has nothing to compare: each advantage is the reward itself"
        yield finding(
            c,
            "HF974" if fails else "HF979",
            f"{key} = {c.value(key)} compares the responses to a prompt, and with {SAMPLES} = 1 it {effect}",
            SAMPLES,
            key,
            advice=(f"set {SAMPLES} to 2 or more",),
        )
