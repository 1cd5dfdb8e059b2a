"""Preflight: checks for mistakes that a configured run would otherwise hit only after its launch.

Each check is a function from the subject to findings, and reports only certain ones. None imports torch, or a user's
module that the configuration merely names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hfdsl.check.findings import Finding, order
from hfdsl.deploy.cluster import Cluster
from hfdsl.rl.training.config import Loaded
from hfdsl.rl.training.preflight.adapters import adapters_reach_samplers, base_policies_have_adapters
from hfdsl.rl.training.preflight.architecture import model_keys_are_read, model_sizes_fit, model_types_exist
from hfdsl.rl.training.preflight.engines import (
    caches_hold_a_row,
    engines_fit_gpus,
    engines_have_rows,
    engines_suit_models,
    samplers_have_the_model,
)
from hfdsl.rl.training.preflight.folders import models_are_there, prompts_have_a_template, tokenizers_are_there
from hfdsl.rl.training.preflight.learning import evaluations_train_nothing, training_trains
from hfdsl.rl.training.preflight.models import models_fit_tokens, weights_fit_configurations
from hfdsl.rl.training.preflight.numbers import (
    coefficients_have_a_reference,
    divisors_are_lengths,
    dtypes_agree,
    lengths_agree,
    penalties_can_act,
    ratios_are_without_dropout,
    references_compute_alike,
    responses_of_a_prompt_differ,
    rollouts_are_of_the_whole_distribution,
    sizes_are_given,
    temperatures_agree,
    temperatures_leave_a_choice,
)
from hfdsl.rl.training.preflight.obstacles import roles_can_be_constructed
from hfdsl.rl.training.preflight.packages import packages_are_installed, sinks_have_access
from hfdsl.rl.training.preflight.rewards import (
    alphabets_agree,
    reward_models_have_heads,
    rules_are_in_the_sources,
    rules_are_there,
)
from hfdsl.rl.training.preflight.schedules import rates_suit_saved_weights, schedules_fit_the_run, small_steps_count
from hfdsl.rl.training.preflight.sharding import shards_have_processes
from hfdsl.rl.training.preflight.sources import data_can_be_read, evaluations_have_rows, prompts_differ
from hfdsl.rl.training.preflight.special_tokens import responses_end, responses_end_by_default
from hfdsl.rl.training.preflight.starting import (
    batches_can_be_fed,
    recorded_steps_are_taken,
    states_can_be_saved,
    steps_come_one_at_a_time,
    weights_in_flight_have_no_retries,
)
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.trials import ConfigTrials

ANYWHERE: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    batches_can_be_fed,
    steps_come_one_at_a_time,
    weights_in_flight_have_no_retries,
    recorded_steps_are_taken,
    states_can_be_saved,
    sizes_are_given,
    models_fit_tokens,
    roles_can_be_constructed,
    responses_end,
    alphabets_agree,
    rules_are_in_the_sources,
    lengths_agree,
    temperatures_agree,
    coefficients_have_a_reference,
    divisors_are_lengths,
    dtypes_agree,
    shards_have_processes,
    adapters_reach_samplers,
    base_policies_have_adapters,
    training_trains,
    evaluations_train_nothing,
    schedules_fit_the_run,
    small_steps_count,
    rates_suit_saved_weights,
    temperatures_leave_a_choice,
    penalties_can_act,
    responses_of_a_prompt_differ,
    rollouts_are_of_the_whole_distribution,
    references_compute_alike,
    ratios_are_without_dropout,
    evaluations_have_rows,
    prompts_differ,
    caches_hold_a_row,
    samplers_have_the_model,
    engines_fit_gpus,
    engines_have_rows,
    engines_suit_models,
)
"""Checks of the configuration alone, on any machine."""

HERE: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    packages_are_installed,
    sinks_have_access,
    data_can_be_read,
    models_are_there,
    weights_fit_configurations,
    model_types_exist,
    model_keys_are_read,
    model_sizes_fit,
    tokenizers_are_there,
    prompts_have_a_template,
    responses_end_by_default,
    rules_are_there,
    reward_models_have_heads,
)
"""Checks of the files and packages of this machine."""


def preflight(
    loaded: Loaded, *, elsewhere: bool = False, trials: ConfigTrials | None = None, cluster: Cluster | None = None
) -> tuple[Finding, ...]:
    """All findings; with ``elsewhere``, for a run on another machine, without checks of files and packages.

    ``trials`` tries changes of the file; without it, findings have no help.
    """
    subject = Subject.of(loaded, trials, cluster)
    checks = ANYWHERE if elsewhere else (*HERE, *ANYWHERE)
    findings: dict[tuple[object, ...], Finding] = {}
    for finding in (finding for check in checks for finding in check(subject)):
        findings.setdefault((finding.code, finding.message), finding)  # a reference repeats the value of a field
    return order(list(findings.values()))
