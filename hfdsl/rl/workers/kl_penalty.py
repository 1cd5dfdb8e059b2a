"""An adaptive penalty on the KL to the reference: a role, since it has a state."""

from __future__ import annotations

from dataclasses import replace

import hfdsl as hf
from hfdsl import Dispatch, register
from hfdsl.rl.batches import ReferenceLogProbs, Rewards, Rollout, Scores
from hfdsl.rl.kl import AdaptiveKL, FixedKL
from hfdsl.rl.workers.gpu_memory import no_gpu_bytes
from hfdsl.rl.workers.kept_bytes import one_number


class KLPenalty(hf.Worker):
    """Token rewards under a KL controller; every rank has the same coefficient."""

    gpu_bytes = staticmethod(no_gpu_bytes)
    kept_bytes = staticmethod(one_number)

    def __init__(self, control: AdaptiveKL | FixedKL) -> None:
        self.control = control

    @register(Dispatch.THREE_D_PROTO)
    def rewards(self, rollout: Rollout, reference: ReferenceLogProbs, scores: Scores) -> Rewards:
        """The score at the last token less the penalty at every token; then the coefficient adapts to this KL."""
        import torch

        from hfdsl.rl.kl import kl_estimate
        from hfdsl.rl.masked import masked_sum
        from hfdsl.rl.rewards import kl_penalized, token_rewards

        mask, old, ref = rollout.response_mask.tensor, rollout.log_probs.tensor, reference.ref_log_probs.tensor
        rewards = kl_penalized(token_rewards(scores.score.tensor, mask), old, ref, mask, self.control.coefficient)
        # The sums of all ranks, so that all compute the same coefficient.
        sums = torch.tensor([masked_sum(kl_estimate(old, ref, "k1").double(), mask), len(mask)], dtype=torch.float64)
        kl, responses = self.axis("dp").all_reduce(sums).tolist()
        self.control = self.control.after(kl / responses)
        return Rewards(rewards=rewards)

    def state(self) -> dict[str, float]:
        """The state in a checkpoint."""
        return {"coefficient": self.control.coefficient}

    def load_state(self, state: dict[str, float]) -> None:
        """Continue from a checkpoint."""
        self.control = replace(self.control, coefficient=state["coefficient"])
