"""Rewards of other libraries as functions of a verifier."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def score_of_verl(response: str, task: dict[str, Any]) -> float:
    """The score that verl's own functions give to a response, by the ``data_source`` of its row; this needs verl.

    Raises:
        ImportError: where verl is not installed.
    """
    compute_score = import_module("verl.utils.reward_score").default_compute_score
    score = compute_score(task["data_source"], response, task["reward_model"]["ground_truth"], task.get("extra_info"))
    return float(score["score"] if isinstance(score, dict) else score)
