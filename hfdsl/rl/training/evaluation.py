"""Ready-made evaluations: a policy's greedy answers to unseen prompts, and a reward model's order of unseen pairs."""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Outcome, PairOutcome, Pairs, Prompts, Rollout, Scores
from hfdsl.rl.functions import outcome, pair_outcome
from hfdsl.rl.sampling import synced
from hfdsl.rl.workers import Actor, Reward, RewardLearner, Sampler, Verifier


@hf.dataflow
def evaluate(
    prompts: Prompts, actor: Actor, reward: Reward, sampler: Sampler | None = None
) -> tuple[Outcome, Rollout, Scores]:
    """Greedy answers and their scores; the answers are returned for reading."""
    rollout = synced(actor, sampler).generate(prompts, greedy=True)
    scores = reward.score(prompts, rollout)
    return outcome(rollout, scores), rollout, scores


@hf.dataflow
def evaluate_by_rule(
    prompts: Prompts, actor: Actor, verifier: Verifier, sampler: Sampler | None = None
) -> tuple[Outcome, Rollout, Scores]:
    """Greedy answers and their scores by a rule, whatever rewards the training: a verifier with a table of its own.

    >>> evaluate_by_rule.trace().roles["verifier"].__name__
    'Verifier'
    """
    rollout = synced(actor, sampler).generate(prompts, greedy=True)
    scores = verifier.score(prompts, rollout)
    return outcome(rollout, scores), rollout, scores


@hf.dataflow
def evaluate_pairs(pairs: Pairs, reward: RewardLearner) -> PairOutcome:
    """The share of pairs that a reward model orders correctly, without learning from them.

    >>> evaluate_pairs.trace().roles["reward"].__name__
    'RewardLearner'
    """
    return pair_outcome(pairs, reward.score_pairs(pairs))
