"""The update of a policy lowers its advantages, which are made of costs and of the KL to the reference."""

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import B, Experience, P, Prompts, R
from hfdsl.rl.functions import kl_penalized_costs, normalized_returns
from tests.corpus.ready_records import Judge, Loss, Policy, Reference, prompts_of
from tests.corpus.vocabulary import PolicyConfig


class Careful(Policy):
    @register(Dispatch.THREE_D_PROTO)
    @hf.writes("policy", ratio="log_probs")
    def avoid(self, experience: Experience) -> Loss:
        return self.learn(
            Experience(
                ids=experience.ids,
                mask=experience.mask,
                response_mask=experience.response_mask,
                log_probs=experience.log_probs,
                advantage=-experience.advantage.tensor,
            )
        )


@hf.dataflow
def program(prompts: Prompts, policy: Careful, reference: Reference, judge: Judge) -> Loss:
    rollout = policy.sample(prompts)
    charged = kl_penalized_costs(rollout, reference.log_probs(rollout), judge.cost(rollout))
    return policy.avoid(hf.merge(Experience, rollout, normalized_returns(rollout, charged)))


pool, config = hf.ResourcePool([2]), PolicyConfig()
experiment = hf.Experiment(
    program,
    hf.Deployment(
        policy=hf.place(Careful, config, pool=pool),
        reference=hf.place(Reference, config, pool=pool),
        judge=hf.place(Judge, pool=pool),
    ),
    dims={B: 8, P: 3, R: 4},
    batches=prompts_of(8),
)
