"""Sampling by the actor itself or by a sampler with a copy of its weights: parts of a dataflow, as plain functions.

A line of GRPO, and what it stands for without a sampler and with one::

    rollout = sample(questions, actor, synced(actor, sampler))

    rollout = actor.generate(questions)          hf.sync(actor, sampler)
                                                 sampled = sampler.generate(questions)
                                                 policy = actor.log_probs(sampled)
                                                 rollout = Rollout(ids=sampled.ids, ..., log_probs=policy.ref_log_probs,
                                                                   engine_log_probs=sampled.log_probs)

The sync comes before the first tokens of a step. So they are sampled from the weights of the last update, in the first
step from the actor's initial weights, and in a resumed run from the checkpoint's.
"""

from __future__ import annotations

import hfdsl as hf
from hfdsl.rl.batches import Prompts, Rollout
from hfdsl.rl.workers.actor import Actor
from hfdsl.rl.workers.sampler import Sampler


def synced(actor: Actor, sampler: Sampler | None) -> Actor | Sampler:
    """The role that samples, with the actor's weights: the sampler after ``hf.sync``, or without one the actor.

    >>> @hf.dataflow
    ... def greedy(prompts: Prompts, actor: Actor, sampler: Sampler | None = None) -> Rollout:
    ...     return synced(actor, sampler).generate(prompts, greedy=True)
    >>> [call.label for call in greedy.trace().calls]
    ['actor.generate']
    >>> greedy.given(sampler=Sampler).trace().calls[-1].label
    'sampler.generate'
    """
    if sampler is None:
        return actor
    hf.sync(actor, sampler)
    return sampler


def sample(prompts: Prompts, actor: Actor, source: Actor | Sampler) -> Rollout:
    """Responses of ``source`` with the actor's log-probs; a sampler's own become ``engine_log_probs``.

    Losses correct for the gap between the two.

    >>> @hf.dataflow
    ... def flow(prompts: Prompts, actor: Actor, sampler: Sampler | None = None) -> Rollout:
    ...     return sample(prompts, actor, synced(actor, sampler))
    >>> [call.label for call in flow.trace().calls]
    ['actor.generate']
    >>> [call.label for call in flow.given(sampler=Sampler).trace().calls]
    ['actor.weights', 'sampler.load', 'sampler.generate', 'actor.log_probs']
    """
    sampled = source.generate(prompts)
    return sampled if source is actor else with_proximal(sampled, actor)


def with_proximal(rollout: Rollout, actor: Actor) -> Rollout:
    """Rows of a queue with the current actor's log-probs; those of sampling become ``engine_log_probs``.

    So an update has the three policies of decoupled PPO (Hilton et al., 2022, Batch Size-Invariance for Policy
    Optimization, section 3): the one that learns; the proximal policy, near which the loss holds it; and the behavior
    policy, which sampled up to ``lag`` updates ago. Losses weight by proximal / behavior: see ``Correction``.

    >>> @hf.dataflow
    ... def flow(prompts: Prompts, actor: Actor, sampler: Sampler) -> Rollout:
    ...     return with_proximal(hf.queue(sampler.generate(prompts), lag=2, late="wait"), actor)
    >>> [call.label for call in flow.trace().calls]
    ['sampler.generate', 'actor.log_probs']
    """
    # A record of columns rather than a function: readers of the tokens alone do not wait for the actor's pass.
    return Rollout(
        ids=rollout.ids,
        mask=rollout.mask,
        response_mask=rollout.response_mask,
        log_probs=actor.log_probs(rollout).ref_log_probs,
        engine_log_probs=rollout.log_probs,
    )
