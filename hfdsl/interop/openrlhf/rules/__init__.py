"""The rules of OpenRLHF's options, each a function from a configuration to findings.

They follow OpenRLHF 0.11: the checks at the end of ``cli/train_ppo_ray.py``, those of ``train`` in the same file, the
trainers, the replay buffer, and the batch sizes that DeepSpeed demands. A rule that needs a value which is not known
raises ``NotKnown`` and is listed as not judged.
"""

from __future__ import annotations

from hfdsl.interop.openrlhf.rules import batches, placement, settings
from hfdsl.interop.reporting import Rule

RULES: tuple[Rule, ...] = (
    settings.sizes_are_positive,
    settings.fractions_are_fractions,
    settings.optimizers_can_step,
    settings.models_and_prompts_are_named,
    settings.groups_have_members,
    settings.filters_can_filter,
    settings.evaluations_have_rewards,
    settings.asynchrony_is_whole,
    settings.generation_is_not_larger,
    settings.images_go_with_their_trainer,
    settings.dtypes_are_supported,
    settings.penalties_fit_lengths,
    settings.prompts_have_room,
    settings.settings_have_an_effect,
    placement.ranks_divide_gpus,
    placement.references_share_gpus,
    placement.critics_share_gpus,
    placement.engines_share_gpus_evenly,
    batches.ranks_have_sample_batches,
    batches.train_batches_divide,
    batches.ranks_train_equally,
    batches.steps_have_optimizer_steps,
    batches.samples_are_used,
    batches.generation_fills_batches,
)
