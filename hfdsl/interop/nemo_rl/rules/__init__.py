"""The rules of NeMo-RL's configuration of GRPO, each a function from a configuration to findings.

They follow NeMo-RL 0.7: ``MasterConfig`` and ``setup`` in ``algorithms/grpo.py``, ``Policy`` in
``models/policy/lm_policy.py``, ``VllmGeneration``, ``ClippedPGLossFn``, and ``BatchedDataDict``, which divides rows. A
rule that needs a value which is not known raises ``NotKnown`` and is listed as not judged.
"""

from __future__ import annotations

from hfdsl.interop.nemo_rl.rules import batches, losses, placement, settings
from hfdsl.interop.reporting import Rule

RULES: tuple[Rule, ...] = (
    settings.sizes_are_positive,
    settings.runs_have_steps,
    settings.choices_are_known,
    settings.fractions_are_fractions,
    settings.one_backend_trains,
    settings.batching_is_one_kind,
    settings.parallelism_has_its_batches,
    settings.accuracy_needs_equal_batches,
    settings.asynchrony_is_whole,
    settings.environments_have_a_server,
    settings.filters_can_filter,
    settings.validation_has_batches,
    settings.checkpoints_name_a_metric,
    settings.quantization_is_whole,
    losses.losses_are_consistent,
    losses.importance_weights_have_bounds,
    losses.references_are_used,
    placement.generation_has_gpus,
    placement.ranks_divide_gpus,
    placement.engines_divide_gpus,
    placement.experts_divide_ranks,
    batches.steps_are_global_batches,
    batches.global_batches_divide_over_ranks,
    batches.ranks_have_whole_micro_batches,
    batches.ranks_have_whole_logprob_batches,
    batches.token_budgets_hold_a_row,
    batches.responses_fit_contexts,
    batches.groups_have_members,
    batches.loaders_divide_prompts,
)
