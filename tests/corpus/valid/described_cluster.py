"""Two nodes of 8 GPUs with 80 GiB: engine and actor fill one to the last GiB, reference and critic a half."""

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
    Reference,
    RefLogProbs,
    Reward,
    Rollout,
    Scores,
    Values,
    prompts_of,
)


@hf.function
def estimated(rollout: Rollout, scores: Scores, ref: RefLogProbs, values: Values) -> Estimates:
    returns = scores.reward.tensor[:, None] - (rollout.log_probs.tensor - ref.ref_log_probs.tensor)
    return Estimates(returns=returns, advantages=returns - values.values.tensor)


@hf.dataflow
def program(
    prompts: Prompts, engine: Actor, actor: Actor, reference: Reference, critic: Critic, reward: Reward
) -> tuple[ActorMetrics, CriticMetrics]:
    rollout = engine.generate(prompts)
    estimates = estimated(rollout, reward.score(rollout), reference.log_probs(rollout), critic.values(rollout))
    return actor.update(rollout, estimates), critic.update(rollout, estimates)


config = PolicyConfig()
first, second = hf.ResourcePool([8]), hf.ResourcePool([4])
experiment = hf.Experiment(
    program,
    hf.Deployment(
        engine=hf.place(Actor, config, pool=first, mesh=hf.Mesh(dp=4, tp=2), gpu_memory="60%"),
        actor=hf.place(Actor, config, pool=first, mesh=hf.Mesh(dp=2, tp=4), gpu_memory="32GiB"),
        reference=hf.place(Reference, config, pool=second, gpu_memory="20GiB"),
        critic=hf.place(Critic, config, pool=second, gpu_memory="75%"),
        reward=hf.place(Reward, pool=hf.ResourcePool([16, 16], use_gpu=False)),
    ),
    dims={B: 32, P: 3, R: 4},
    batches=prompts_of(32),
    cluster=hf.Cluster(hf.Nodes(2, gpus=8, gpu_memory_gib=80, cpus=64)),
)
