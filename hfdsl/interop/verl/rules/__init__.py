"""The rules of verl's configuration, each a function from a configuration to findings.

They follow what verl 0.9 computes with these keys in ``validate_config``, the workers and the V1 trainer. A rule that
needs a value which is not known raises ``NotKnown`` and is listed as not judged.
"""

from __future__ import annotations

from hfdsl.interop.reporting import Rule
from hfdsl.interop.verl.rules import lengths, placement, presence, rows, types, values

RULES: tuple[Rule, ...] = (
    values.sizes_are_positive,
    values.flags_are_booleans,
    types.values_have_types,
    values.choices_are_known,
    values.engines_have_memory,
    values.runs_have_steps,
    values.estimator_is_known,
    values.engine_has_its_strategy,
    presence.required_keys_are_given,
    presence.micro_batches_are_given_once,
    presence.dynamic_batches_agree,
    presence.critic_is_there_for_gae,
    presence.pools_have_gpus,
    presence.sequence_parallelism_needs_packed_rows,
    presence.validation_samples_with_a_temperature,
    rows.rows_divide_over_gpus,
    rows.mini_batches_fit_batches,
    rows.mini_batches_divide_over_ranks,
    rows.micro_batches_divide_mini_batches,
    rows.log_prob_batches_divide,
    rows.separate_batches_are_parts,
    rows.batches_are_whole_mini_batches,
    placement.model_parallelism_divides_gpus,
    placement.shards_divide_gpus,
    placement.engines_divide_gpus,
    placement.expert_parallelism_is_whole,
    values.engines_have_no_pipeline,
    presence.separate_rollout_has_gpus,
    values.off_policy_threshold_is_positive,
    lengths.token_budgets_hold_a_row,
    lengths.contexts_hold_a_row,
    presence.groups_have_members,
    presence.groups_differ,
    presence.filtered_groups_have_rewards,
    values.kl_control_has_a_horizon,
    presence.data_fill_a_batch,
)
