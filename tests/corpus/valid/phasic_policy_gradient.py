"""PPG: a policy phase, then an auxiliary phase with the values of a second critic; a dataflow within a dataflow."""

import hfdsl as hf
from tests.corpus.vocabulary import (
    Actor,
    ActorMetrics,
    B,
    Critic,
    CriticMetrics,
    Estimates,
    P,
    PolicyConfig,
    Prompts,
    R,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)

AUXILIARY_EPOCHS = 2


@hf.function
def estimated(rollout: Rollout, scores: Scores, values: Values) -> Estimates:
    returns = scores.reward.tensor[:, None] * rollout.response_mask.tensor
    return Estimates(advantages=returns - values.values.tensor, returns=returns)


@hf.dataflow
def policy_phase(prompts: Prompts, actor: Actor, critic: Critic, reward: Reward) -> tuple[Rollout, ActorMetrics]:
    rollout = actor.generate(prompts)
    return rollout, actor.update(rollout, estimated(rollout, reward.score(rollout), critic.values(rollout)))


@hf.dataflow
def program(
    prompts: Prompts, actor: Actor, critic: Critic, auxiliary: Critic, reward: Reward
) -> tuple[ActorMetrics, list[CriticMetrics]]:
    rollout, metrics = policy_phase(prompts, actor, critic, reward)
    estimates = estimated(rollout, reward.score(rollout), auxiliary.values(rollout))
    updates = [auxiliary.update(rollout, estimates) for _ in range(AUXILIARY_EPOCHS)]
    return metrics, [critic.update(rollout, estimates), *updates]


pool, config = hf.ResourcePool([2, 2]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        actor=hf.place(Actor, config, pool=pool),
        critic=hf.place(Critic, config, 1, pool=pool, mesh=hf.Mesh(dp=2, tp=2)),
        auxiliary=hf.place(Critic, config, pool=pool, mesh=hf.Mesh(pp=2, dp=2)),
        reward=hf.place(Reward, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
