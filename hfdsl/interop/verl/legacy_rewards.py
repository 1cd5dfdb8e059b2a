"""The former keys of verl's rewards, which its trainer moves below ``reward`` before it reads any of them.

So ``custom_reward_function.path=rewards.py`` is ``reward.custom_reward_function.path=rewards.py``. A former key that
has a value wins over the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hfdsl.interop.settings import Setting

KEYS: Final = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.enable_resource_pool": "reward.reward_model.enable_resource_pool",
    "reward_model.n_gpus_per_node": "reward.reward_model.n_gpus_per_node",
    "reward_model.nnodes": "reward.reward_model.nnodes",
    "reward_model.model.path": "reward.reward_model.model_path",
}
"""Former and present keys."""

TABLES: Final = {
    "custom_reward_function.": "reward.custom_reward_function.",
    "reward_model.reward_kwargs.": "reward.reward_kwargs.",
    "reward_model.rollout.": "reward.reward_model.rollout.",
    "sandbox_fusion.": "reward.sandbox_fusion.",
}
"""The prefixes of keys in former and current tables."""


def present_key(key: str) -> str | None:
    """Where verl moves a former key; None for any other key.

    >>> present_key("reward_model.model.path"), present_key("custom_reward_function.name"), present_key("data.seed")
    ('reward.reward_model.model_path', 'reward.custom_reward_function.name', None)
    """
    for former, present in TABLES.items():
        if key.startswith(former):
            return present + key.removeprefix(former)
    return KEYS.get(key)


def moved(explicit: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings by present keys; a setting keeps its place in the file."""
    settings = dict(explicit)
    for key, setting in explicit.items():
        present = present_key(key)
        if present is not None and (setting.value is not None or setting.unknown):
            del settings[key]
            settings[present] = replace(setting, key=present)
    return settings
