"""Preference losses of the user's: reported where a step lowers the preferred response of pairs, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.check.repair.edits import apply
from tests.check.loading import loaded
from tests.check.preference_programs import codes, gained, program

BOTH = (
    "chosen, rejected = self.log_probs(chosen_ids, chosen_mask), self.log_probs(rejected_ids, rejected_mask)\n"
    "margin = (chosen - ref_chosen) - (rejected - ref_rejected)\n"
    "swapped_margin = (rejected - ref_rejected) - (chosen - ref_chosen)\n"
).replace("swapped_margin", "other")
AVERAGES = (
    "chosen = self.log_probs(chosen_ids, chosen_mask, average=True)\n"
    "rejected = self.log_probs(rejected_ids, rejected_mask, average=True)\n"
)
CONCATENATED = (
    "ids = torch.cat([chosen_ids, rejected_ids], dim=0)\nmask = torch.cat([chosen_mask, rejected_mask], dim=0)\n"
    "logps = self.log_probs(ids, mask)\n"
)
ODDS = (
    "log_odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))\n"
    "nll = -chosen.mean()\n"
)
SCORED = "chosen, rejected = self.rewards(chosen_ids), self.rewards(rejected_ids)\n"
KTO = (
    "with torch.no_grad():\n    kl = (chosen - ref_chosen).mean().clamp(min=0)\n"
    "chosen_ratio, rejected_ratio = chosen - ref_chosen, rejected - ref_rejected\n"
)
TYPES = (
    "logits = {margin}\n"
    "if self.loss_type == 'sigmoid':\n"
    "    losses = -F.logsigmoid(self.beta * logits)\n"
    "elif self.loss_type == 'hinge':\n"
    "    losses = torch.relu(1 - self.beta * logits)\n"
    "elif self.loss_type == 'ipo':\n"
    "    losses = (logits - 1 / (2 * self.beta)) ** 2\n"
    "else:\n"
    "    raise ValueError(self.loss_type)\n"
    "loss = losses.mean()"
)
UNPACKED = (
    "better, worse = (chosen_ids, chosen_mask), (rejected_ids, rejected_mask)\n"
    "chosen, rejected = self.log_probs(*better), self.log_probs(*worse)\n"
)
RIGHT = {
    "DPO of tuples": UNPACKED + "loss = -F.logsigmoid(self.beta * (chosen - rejected)).mean()",
    "stacked above each other": BOTH + "both = torch.stack([chosen, rejected])\n"
    "loss = -F.logsigmoid(self.beta * (both[0] - both[1])).mean()",
    "stacked above each other, unbound": BOTH + "first, second = torch.stack((rejected, chosen), dim=0).unbind(0)\n"
    "loss = F.softplus(self.beta * (first - second)).mean()",
    "chances above each other": BOTH + "both = self.beta * torch.stack([rejected, chosen], 0)\n"
    "loss = -both.log_softmax(0)[1].mean()",
    "DPO of a tuple in a name": "pair = chosen_ids, chosen_mask\nchosen = self.log_probs(*pair)\n"
    "pair = rejected_ids, rejected_mask\nloss = -F.logsigmoid(chosen - self.log_probs(*pair)).mean()",
    "DPO": BOTH + "loss = -F.logsigmoid(self.beta * margin).mean()",
    "DPO of two ratios": BOTH
    + "logits = (chosen - rejected) - (ref_chosen - ref_rejected)\nloss = -F.logsigmoid(BETA * logits).mean()",
    "DPO by the other difference": BOTH + "loss = F.softplus(self.beta * other).mean()",
    "DPO by log and sigmoid": BOTH + "loss = -torch.log(torch.sigmoid(self.beta * margin) + 1e-8).mean()",
    "DPO as cross entropy": BOTH
    + "loss = F.binary_cross_entropy_with_logits(self.beta * margin, torch.ones_like(margin))",
    "DPO by log1p": BOTH + "loss = torch.log1p(torch.exp(-self.beta * margin)).mean()",
    "DPO of an object": BOTH
    + "losses, better, worse = self.dpo(chosen, rejected, ref_chosen, ref_rejected)\nloss = losses.mean()",
    "DPO with smoothed labels": BOTH
    + "e = self.label_smoothing\nlogits = self.beta * margin\n"
    + "loss = (-(1 - e) * F.logsigmoid(logits) - e * F.logsigmoid(-logits)).mean()",
    "DPO with smoothed labels of an object": BOTH
    + "losses, better, worse = self.smoothed(chosen, rejected, ref_chosen, ref_rejected)\nloss = losses.mean()",
    "robust DPO": BOTH
    + "e = self.label_smoothing\nlogits = self.beta * margin\n"
    + "loss = ((-F.logsigmoid(logits) * (1 - e) + F.logsigmoid(-logits) * e) / (1 - 2 * e)).mean()",
    "DPO with imitation": BOTH + "loss = -F.logsigmoid(self.beta * margin).mean() - 0.1 * chosen.mean()",
    "DPO weighted": BOTH
    + "weight = torch.exp(0.01 * (chosen + rejected)).clamp(max=1).detach()\n"
    + "loss = -(F.logsigmoid(self.beta * margin) * weight).mean()",
    "loss types of TRL": BOTH + TYPES.format(margin="margin"),
    "concatenated, in chunks": CONCATENATED
    + "chosen, rejected = logps.chunk(2)\nratio = chosen - ref_chosen - rejected + ref_rejected\n"
    + "loss = -F.logsigmoid(self.beta * ratio).mean()",
    "concatenated, in slices": CONCATENATED
    + "n = chosen_ids.shape[0]\nchosen, rejected = logps[:n], logps[n:]\n"
    + "loss = -F.logsigmoid(self.beta * (chosen - rejected)).mean()",
    "concatenated, rejected first": CONCATENATED.replace(
        "cat([chosen_ids, rejected_ids]", "cat([rejected_ids, chosen_ids]"
    )
    + "first, second = logps.split(len(chosen_ids))\nloss = -F.logsigmoid(self.beta * (second - first)).mean()",
    "IPO": AVERAGES + "loss = ((chosen - rejected - 1 / (2 * self.beta)) ** 2).mean()",
    "IPO as an error": AVERAGES
    + "gap = chosen - rejected\nloss = F.mse_loss(gap, torch.full_like(gap, 1 / (2 * BETA)))",
    "SimPO": AVERAGES + "loss = -F.logsigmoid(2.0 * (chosen - rejected) - GAMMA).mean()",
    "SimPO with a ratio of its margin": AVERAGES
    + "logits = chosen - rejected - 0.5\nloss = -F.logsigmoid(self.beta * logits).mean()",
    "hinge": BOTH + "loss = torch.relu(1 - self.beta * margin).mean()",
    "hinge by clamp": BOTH + "loss = (1 - (chosen - rejected)).clamp(min=0).mean()",
    "ORPO": AVERAGES + ODDS + "loss = nll - self.beta * F.logsigmoid(log_odds).mean()",
    "KTO of pairs": BOTH
    + KTO
    + "better = 1 - torch.sigmoid(self.beta * (chosen_ratio - kl))\n"
    + "worse = 1 - torch.sigmoid(self.beta * (kl - rejected_ratio))\n"
    + "loss = torch.cat((better, worse), 0).mean()",
    "a sum of log-probs": BOTH + "loss = (rejected - chosen).mean()",
    "imitation beside it": BOTH + "loss = -chosen.mean() + 0.1 * F.softplus(rejected).mean()",
    "a metric of the reverse": BOTH
    + "self.last = F.logsigmoid(margin).mean().item()\nloss = -F.logsigmoid(margin).mean()",
    "negated in the end": BOTH + "gain = F.logsigmoid(margin).mean()\nloss = -gain / self.gradient_accumulation_steps",
    "squared hinge": BOTH + "loss = (torch.relu(1 - margin) ** 2).mean()",
    "exponential": BOTH + "loss = torch.exp(-self.beta * margin).mean()",
    "a categorical": (
        "chosen = Categorical(logits=self.model(chosen_ids[:, :-1])).log_prob(chosen_ids[:, 1:]).sum(-1)\n"
        "rejected = Categorical(logits=self.model(rejected_ids[:, :-1])).log_prob(rejected_ids[:, 1:]).sum(-1)\n"
        "loss = -F.logsigmoid(chosen - rejected).mean()"
    ),
    "cross entropies": (
        "better = F.cross_entropy(self.model(chosen_ids[:, :-1]).flatten(0, 1), chosen_ids[:, 1:].flatten())\n"
        "worse = F.cross_entropy(self.model(rejected_ids[:, :-1]).flatten(0, 1), rejected_ids[:, 1:].flatten())\n"
        "loss = -F.logsigmoid(worse - better)"
    ),
    "less the partition": (
        "logits, labels = self.model(torch.cat([chosen_ids, rejected_ids])), torch.cat([chosen_ids, rejected_ids])\n"
        "picked = logits[:, :-1].gather(-1, labels[:, 1:, None]).squeeze(-1)\n"
        "logps = (picked - logits[:, :-1].logsumexp(-1)).sum(-1)\n"
        "loss = -F.logsigmoid(logps[: len(logps) // 2] - logps[len(logps) // 2 :]).mean()"
    ),
    "a cross entropy of both scores": BOTH
    + "scores = torch.stack([chosen, rejected], dim=1)\n"
    + "loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))",
    "a cross entropy of scaled scores": BOTH
    + "scores = self.beta * torch.stack((rejected - ref_rejected, chosen - ref_chosen), -1)\n"
    + "labels = torch.ones(scores.shape[0]).long()\nloss = F.cross_entropy(scores, labels)",
    "a cross entropy of joined scores": BOTH
    + "scores = torch.cat([chosen[:, None], rejected[:, None]], dim=1)\n"
    + "loss = F.cross_entropy(scores / 0.5, torch.full((len(scores),), 0))",
    "chances of both": BOTH + "loss = -torch.stack([chosen, rejected], dim=-1).log_softmax(dim=-1)[:, 0].mean()",
    "chances of both, by their logs": BOTH
    + "loss = -torch.stack([chosen, rejected], dim=1).softmax(-1).log()[..., 0].mean()",
    "each score by itself": BOTH
    + "scores = torch.cat([chosen - ref_chosen, rejected - ref_rejected])\n"
    + "labels = torch.cat([torch.ones_like(chosen), torch.zeros_like(rejected)])\n"
    + "loss = F.binary_cross_entropy_with_logits(scores, labels)",
}
WRONG = {
    "stacked above each other": BOTH + "both = torch.stack([rejected, chosen])\n"
    "loss = -F.logsigmoid(self.beta * (both[0] - both[1])).mean()",
    "stacked above each other, unbound": BOTH + "first, second = torch.stack((chosen, rejected), dim=0).unbind(0)\n"
    "loss = F.softplus(self.beta * (first - second)).mean()",
    "chances above each other": BOTH + "both = torch.stack([rejected, chosen], 0) * self.beta\n"
    "loss = -both.log_softmax(dim=0)[0, :].mean()",
    "DPO of a tuple in a name": "pair = chosen_ids, chosen_mask\nchosen = self.log_probs(*pair)\n"
    "pair = rejected_ids, rejected_mask\nloss = -F.logsigmoid(self.log_probs(*pair) - chosen).mean()",
    "DPO of tuples": UNPACKED + "loss = -F.logsigmoid(self.beta * (rejected - chosen)).mean()",
    "DPO swapped": BOTH + "loss = -F.logsigmoid(self.beta * other).mean()",
    "DPO without the minus": BOTH + "loss = F.logsigmoid(self.beta * margin).mean()",
    "DPO by softplus": BOTH + "loss = F.softplus(self.beta * margin).mean()",
    "DPO of two ratios": BOTH
    + "logits = (rejected - chosen) - (ref_rejected - ref_chosen)\nloss = -F.logsigmoid(BETA * logits).mean()",
    "DPO by log and sigmoid": BOTH + "loss = -torch.log(torch.sigmoid(self.beta * other) + 1e-8).mean()",
    "DPO by sigmoid": BOTH + "loss = torch.sigmoid(self.beta * margin).mean()",
    "DPO as cross entropy to zeros": BOTH
    + "loss = F.binary_cross_entropy_with_logits(self.beta * margin, torch.zeros_like(margin))",
    "DPO by log1p": BOTH + "loss = torch.log1p(torch.exp(self.beta * margin)).mean()",
    "DPO of an object": BOTH
    + "losses, better, worse = self.dpo(rejected, chosen, ref_rejected, ref_chosen)\nloss = losses.mean()",
    "DPO with smoothed labels": BOTH
    + "e = self.label_smoothing\nlogits = self.beta * other\n"
    + "loss = (-(1 - e) * F.logsigmoid(logits) - e * F.logsigmoid(-logits)).mean()",
    "DPO with smoothed labels of an object": BOTH
    + "losses, better, worse = self.smoothed(rejected, chosen, ref_rejected, ref_chosen)\nloss = losses.mean()",
    "DPO with imitation": BOTH + "loss = -F.logsigmoid(self.beta * other).mean() - 0.001 * chosen.mean()",
    "DPO weighted": BOTH
    + "weight = torch.exp(0.01 * (chosen + rejected)).clamp(max=1).detach()\n"
    + "loss = -(F.logsigmoid(self.beta * other) * weight).mean()",
    "loss types of TRL": BOTH + TYPES.format(margin="other"),
    "concatenated, in chunks": CONCATENATED
    + "rejected, chosen = logps.chunk(2)\nratio = chosen - rejected\n"
    + "loss = -F.logsigmoid(self.beta * ratio).mean()",
    "concatenated, in slices": CONCATENATED
    + "n = chosen_ids.shape[0]\nrejected, chosen = logps[:n], logps[n:]\n"
    + "loss = -F.logsigmoid(self.beta * (chosen - rejected)).mean()",
    "concatenated, rejected first": CONCATENATED.replace(
        "cat([chosen_ids, rejected_ids]", "cat([rejected_ids, chosen_ids]"
    )
    + "first, second = logps.split(len(chosen_ids))\nloss = -F.logsigmoid(self.beta * (first - second)).mean()",
    "IPO": AVERAGES + "loss = ((rejected - chosen - 1 / (2 * self.beta)) ** 2).mean()",
    "IPO below zero": AVERAGES + "loss = ((chosen - rejected + 1 / (2 * self.beta)) ** 2).mean()",
    "IPO as an error": AVERAGES
    + "gap = rejected - chosen\nloss = F.mse_loss(gap, torch.full_like(gap, 1 / (2 * BETA)))",
    "SimPO": AVERAGES + "loss = -F.logsigmoid(2.0 * (rejected - chosen) - GAMMA).mean()",
    "hinge": BOTH + "loss = torch.relu(1 + self.beta * margin).mean()",
    "hinge by clamp": BOTH + "loss = (1 + chosen - rejected).clamp(min=0).mean()",
    "hinge by maximum": BOTH + "loss = torch.maximum(1 + chosen - rejected, torch.zeros_like(chosen)).mean()",
    "squared hinge": BOTH + "loss = (torch.relu(1 + margin) ** 2).mean()",
    "ORPO": AVERAGES + ODDS + "loss = 0.001 * nll + self.beta * F.logsigmoid(log_odds).mean()",
    "KTO of pairs": BOTH
    + KTO
    + "better = 1 - torch.sigmoid(self.beta * (kl - chosen_ratio))\n"
    + "worse = 1 - torch.sigmoid(self.beta * (rejected_ratio - kl))\n"
    + "loss = torch.cat((better, worse), 0).mean()",
    "a sum of log-probs": BOTH + "loss = (chosen - rejected).mean()",
    "exponential": BOTH + "loss = torch.exp(self.beta * margin).mean()",
    "a categorical": (
        "chosen = Categorical(logits=self.model(chosen_ids[:, :-1])).log_prob(chosen_ids[:, 1:]).sum(-1)\n"
        "rejected = Categorical(logits=self.model(rejected_ids[:, :-1])).log_prob(rejected_ids[:, 1:]).sum(-1)\n"
        "loss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "cross entropies": (
        "better = F.cross_entropy(self.model(chosen_ids[:, :-1]).flatten(0, 1), chosen_ids[:, 1:].flatten())\n"
        "worse = F.cross_entropy(self.model(rejected_ids[:, :-1]).flatten(0, 1), rejected_ids[:, 1:].flatten())\n"
        "loss = -F.logsigmoid(better - worse)"
    ),
    "less the partition": (
        "logits, labels = self.model(torch.cat([chosen_ids, rejected_ids])), torch.cat([chosen_ids, rejected_ids])\n"
        "picked = logits[:, :-1].gather(-1, labels[:, 1:, None]).squeeze(-1)\n"
        "logps = (picked - logits[:, :-1].logsumexp(-1)).sum(-1)\n"
        "loss = -F.logsigmoid(logps[len(logps) // 2 :] - logps[: len(logps) // 2]).mean()"
    ),
    "a cross entropy of both scores": BOTH
    + "scores = torch.stack([chosen, rejected], dim=1)\n"
    + "loss = F.cross_entropy(scores, torch.ones(len(scores), dtype=torch.long))",
    "a cross entropy of scaled scores": BOTH
    + "scores = self.beta * torch.stack((chosen - ref_chosen, rejected - ref_rejected), -1)\n"
    + "labels = torch.ones(scores.shape[0]).long()\nloss = F.cross_entropy(scores, labels)",
    "a cross entropy of joined scores": BOTH
    + "scores = torch.cat([chosen[:, None], rejected[:, None]], dim=1)\n"
    + "loss = F.cross_entropy(scores / 0.5, torch.full((len(scores),), 1))",
    "chances of both": BOTH + "loss = -torch.stack([chosen, rejected], dim=-1).log_softmax(dim=-1)[:, 1].mean()",
    "chances of both, by their logs": BOTH
    + "loss = -torch.stack([chosen, rejected], dim=1).softmax(-1).log()[..., 1].mean()",
    "each score by itself": BOTH
    + "scores = torch.cat([chosen - ref_chosen, rejected - ref_rejected])\n"
    + "labels = torch.cat([torch.zeros_like(chosen), torch.ones_like(rejected)])\n"
    + "loss = F.binary_cross_entropy_with_logits(scores, labels)",
    "in parts": (
        "self.optimizer.zero_grad()\n"
        "for first, second in zip(chosen_ids.split(2), rejected_ids.split(2)):\n"
        "    gap = self.log_probs(first, chosen_mask[:2]) - self.log_probs(second, rejected_mask[:2])\n"
        "    loss = -F.logsigmoid(-gap).mean() / self.gradient_accumulation_steps\n"
        "    loss.backward()\n"
        "self.optimizer.step()\nreturn"
    ),
    "in a dictionary": BOTH
    + "scores = {'chosen': chosen, 'rejected': rejected}\n"
    + "loss = -F.logsigmoid(scores['rejected'] - scores['chosen']).mean()",
    "in branches": BOTH
    + "logits, parts = other, self.gradient_accumulation_steps\nif parts > 1:\n"
    + "    loss = -F.logsigmoid(logits).mean() / self.gradient_accumulation_steps\n"
    + "else:\n    loss = -F.logsigmoid(logits).mean()",
}
RIGHT_SCORES = {
    "a pairwise loss": SCORED + "loss = -F.logsigmoid(chosen - rejected).mean()",
    "with a margin": SCORED + "loss = -F.logsigmoid(chosen - rejected - pairs.margin.tensor).mean()",
    "of an object": SCORED + "loss = self.pairwise(chosen, rejected, pairs.margin.tensor)",
    "with centered rewards": SCORED
    + "loss = -F.logsigmoid(chosen - rejected).mean() + 0.01 * ((chosen + rejected) ** 2).mean()",
    "a ranking loss": SCORED + "loss = F.margin_ranking_loss(chosen, rejected, torch.ones_like(chosen), margin=1.0)",
    "concatenated": (
        "scores = self.head(self.model(torch.cat((chosen_ids, rejected_ids), dim=0)))[:, -1].squeeze(-1)\n"
        "n = len(chosen_ids)\nloss = -torch.log(torch.sigmoid(scores[:n] - scores[n:])).mean()"
    ),
}
WRONG_SCORES = {
    "a pairwise loss": SCORED + "loss = -F.logsigmoid(rejected - chosen).mean()",
    "with a margin": SCORED + "loss = -F.logsigmoid(rejected - chosen - pairs.margin.tensor).mean()",
    "of an object": SCORED + "loss = self.pairwise(rejected, chosen, pairs.margin.tensor)",
    "a ranking loss": SCORED + "loss = F.margin_ranking_loss(rejected, chosen, torch.ones_like(chosen), margin=1.0)",
    "concatenated": (
        "scores = self.head(self.model(torch.cat((chosen_ids, rejected_ids), dim=0)))[:, -1].squeeze(-1)\n"
        "n = len(chosen_ids)\nloss = -torch.log(torch.sigmoid(scores[n:] - scores[:n])).mean()"
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loss_that_prefers_the_rejected_response_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG[name])
    assert gained(module) < 0
    assert codes(module) == ("HF368",)


@pytest.mark.parametrize("name", RIGHT)
def test_a_loss_that_prefers_the_preferred_response_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert gained(module) > 0
    assert codes(module) == ()


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_a_reward_model_that_prefers_the_rejected_response_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, WRONG_SCORES[name], role="RewardModel")
    assert gained(module, "RewardModel") < 0
    assert codes(module) == ("HF368",)


@pytest.mark.parametrize("name", RIGHT_SCORES)
def test_a_reward_model_that_prefers_the_preferred_response_is_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT_SCORES[name], role="RewardModel")
    assert gained(module, "RewardModel") > 0
    assert codes(module) == ()


UNKNOWN = {
    "chances of other rows": BOTH + "both = torch.stack([rejected, chosen])\nloss = -both.log_softmax(1)[0].mean()",
    "columns of stacked rows": BOTH + "both = torch.stack([rejected, chosen])\n"
    "loss = -F.logsigmoid(both[:, 0] - both[:, 1]).mean()",
    "a cap on the margin": BOTH + "loss = -chosen.mean() + torch.relu(chosen - rejected - 5.0).mean()",
    "a cap by clamp": BOTH + "loss = -chosen.mean() + (margin - pairs.margin.tensor).clamp(min=0).mean()",
    "both directions": BOTH + "loss = F.softplus(margin).mean() - 2.0 * F.logsigmoid(margin).mean()",
    "a sign of the role": BOTH + "loss = -self.sign * F.logsigmoid(other).mean()",
    "a sign of each pair": BOTH + "loss = -F.logsigmoid(pairs.margin.tensor * other).mean()",
    "a sign by torch": BOTH + "loss = -F.logsigmoid(torch.where(ref_chosen > 0, margin, other)).mean()",
    "a branch": BOTH + "loss = -F.logsigmoid(margin).mean()\nif self.turned:\n    loss = -loss",
    "a square": BOTH + "loss = (margin**2).mean()",
    "a distance to a column": BOTH + "loss = ((other - pairs.margin.tensor) ** 2).mean()",
    "of one response": BOTH + "loss = chosen.mean()",
    "of unlikelihood": BOTH + "loss = -torch.log1p(-chosen.exp()).mean()",
    "an unknown term": BOTH + "loss = -F.logsigmoid(other).mean() + self.penalty(margin)",
    "an unknown weight": BOTH + "loss = -(F.logsigmoid(other) * self.weigh(margin)).mean()",
    "a chosen order of rows": CONCATENATED
    + "first, second = logps[self.order].chunk(2)\nloss = -F.logsigmoid(second - first).mean()",
    "every second row": CONCATENATED + "loss = -F.logsigmoid(logps[1::2] - logps[::2]).mean()",
    "more rows than a half": CONCATENATED
    + "n = len(chosen_ids)\nloss = -F.logsigmoid(logps[n - 1 :] - logps[: n + 1]).mean()",
    "a constant number of rows": CONCATENATED + "loss = -F.logsigmoid(logps[2:] - logps[:2]).mean()",
    "tokens of the other response": (
        "chosen = logps_of(self.model(rejected_ids), chosen_ids, chosen_mask)\n"
        "rejected = logps_of(self.model(chosen_ids), rejected_ids, rejected_mask)\n"
        "loss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "costs": (
        "chosen, rejected = self.cost_model(chosen_ids), self.cost_model(rejected_ids)\n"
        "loss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "negated log-probs": (
        "chosen, rejected = self.llm.neg_log_probs(chosen_ids), self.llm.neg_log_probs(rejected_ids)\n"
        "loss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "the loss of a model": (
        "chosen = self.model(chosen_ids, labels=chosen_ids).loss\n"
        "rejected = self.model(rejected_ids, labels=rejected_ids).loss\n"
        "loss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "three in one batch": (
        "logps = self.log_probs(torch.cat([chosen_ids, rejected_ids, chosen_ids]), chosen_mask.repeat(3, 1))\n"
        "first, second, third = logps.chunk(3)\nloss = -F.logsigmoid(second - first).mean()"
    ),
    "costs under the name of scores": (
        "scores = self.score_model(torch.cat([chosen_ids, rejected_ids]))\n"
        "chosen_costs, rejected_costs = scores.chunk(2)\n"
        "loss = -F.logsigmoid(rejected_costs - chosen_costs).mean()"
    ),
    "the greatest token": (
        "chosen = self.model(chosen_ids).log_softmax(-1).gather(-1, chosen_ids[..., None]).squeeze(-1).max(1)[0]\n"
        "rejected = self.log_probs(rejected_ids, rejected_mask)\nloss = -F.logsigmoid(rejected - chosen).mean()"
    ),
    "numbers without a name": (
        "first, second = self.head(self.model(chosen_ids)), self.head(self.model(rejected_ids))\n"
        "loss = -F.logsigmoid(second - first).mean()"
    ),
    "energies by name": (
        "chosen_energy, rejected_energy = self.head(self.model(chosen_ids)), self.head(self.model(rejected_ids))\n"
        "loss = -F.logsigmoid(rejected_energy - chosen_energy).mean()"
    ),
    "without gradients": BOTH
    + "self.last = F.logsigmoid(margin).mean().detach()\nloss = self.model.weight.mean() + self.last",
    "pairs that are swapped on purpose": BOTH + "swapped = other\nloss = -F.logsigmoid(swapped).mean()",
    "a gradient of its own": BOTH
    + "self.optimizer.zero_grad()\nF.logsigmoid(margin).mean().backward(torch.tensor(-1.0))\n"
    + "self.optimizer.step()\nreturn",
    "two losses": BOTH + "(-F.logsigmoid(margin).mean()).backward(retain_graph=True)\nloss = F.softplus(margin).mean()",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_said_of_what_is_not_certain(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, UNKNOWN[name])) == ()


def test_an_optimizer_that_maximizes_may_have_any_of_these(tmp_path: Path) -> None:
    module = program(tmp_path, WRONG["DPO without the minus"], options=", maximize=True")
    assert gained(module) > 0
    assert codes(module) == ()


def test_a_role_whose_name_says_that_it_is_an_opponent_may_learn_the_reverse(tmp_path: Path) -> None:
    assert codes(program(tmp_path, WRONG["DPO swapped"], role="Adversary")) == ()
    assert codes(program(tmp_path, WRONG["DPO swapped"], role="Unlearner")) == ()
    assert codes(program(tmp_path, WRONG_SCORES["a pairwise loss"], role="CostModel")) == ()


RECORDS = """
from __future__ import annotations
import torch
import torch.nn.functional as F
import hfdsl as hf

class B(hf.Dim): ...
class T(hf.Dim): ...

class {first}(hf.Batch):
    ids: hf.i64[B, T]
    mask: hf.bool_[B, T]
class {second}(hf.Batch):
    ids: hf.i64[B, T]
    mask: hf.bool_[B, T]

class Learner(hf.Worker):
    def __init__(self, beta: float = 0.1) -> None:
        self.beta = beta
        self.model, self.ref_model = torch.nn.Embedding(8, 8), torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def log_probs(self, model, rollout) -> torch.Tensor:
        ids = rollout.ids.tensor
        tokens = model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        return (tokens * rollout.mask.tensor[:, 1:]).sum(-1)

    @hf.register(hf.Dispatch.DP_PROTO)
    @hf.writes("policy")
    def update(self, {names[0]}: {first}, {names[1]}: {second}) -> None:
        with torch.no_grad():
            ref_first = self.log_probs(self.ref_model, {names[0]})
            ref_second = self.log_probs(self.ref_model, {names[1]})
        first, second = self.log_probs(self.model, {names[0]}), self.log_probs(self.model, {names[1]})
        margin = (first - ref_first) - (second - ref_second)
        loss = -F.logsigmoid(self.beta * {sign}margin).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
{other}
@hf.dataflow
def step({names[0]}: {first}, {names[1]}: {second}, policy: Learner{more}) -> None:
    policy.update({names[0]}, {names[1]}){call}
"""
OTHER = """
class Other(Learner):
    pass
"""


@pytest.mark.parametrize(
    ("first", "second", "names", "is_pair"),
    [
        ("Rollout", "Sample", ("chosen", "rejected"), True),
        ("Rollout", "Sample", ("winner", "loser"), True),
        ("Rollout", "Sample", ("winning_rollout", "losing_rollout"), True),
        ("Chosen", "Rejected", ("a", "b"), True),
        ("PreferredRollout", "RejectedRollout", ("a", "b"), True),
        ("Rollout", "Sample", ("a", "b"), False),
        ("Rollout", "Sample", ("chosen", "prompts"), False),
        ("Rollout", "Sample", ("positive_pair", "negative"), False),
    ],
)
def test_records_are_pairs_by_their_names_or_classes(
    tmp_path: Path, first: str, second: str, names: tuple[str, str], is_pair: bool
) -> None:
    for sign, expected in (("-", ("HF368",) if is_pair else ()), ("", ())):
        text = RECORDS.format(first=first, second=second, names=names, sign=sign, other="", more="", call="")
        assert codes(loaded(tmp_path, text)) == expected


def test_a_role_that_plays_against_another_one_may_learn_the_reverse(tmp_path: Path) -> None:
    parts = {"other": OTHER, "more": ", critic: Other", "call": "\n    critic.update(chosen, rejected)"}
    text = RECORDS.format(first="Rollout", second="Sample", names=("chosen", "rejected"), sign="-", **parts)
    assert codes(loaded(tmp_path, text)) == ()


@pytest.mark.parametrize(
    ("body", "mended"),
    [
        ("loss = -F.logsigmoid(self.beta * (rejected - chosen)).mean()", "(chosen - rejected)"),
        ("loss = F.logsigmoid(self.beta * (chosen - rejected)).mean()", "= -F.logsigmoid("),
        ("gap = rejected - chosen\nloss = torch.log1p(torch.exp(-gap)).mean()", "gap = chosen - rejected"),
    ],
)
def test_the_minus_and_the_difference_are_mended(tmp_path: Path, body: str, mended: str) -> None:
    module = program(tmp_path, BOTH + body)
    [finding] = module.step.check(dims={module.B: 4}).findings
    [fix] = finding.fixes
    text = apply(Path(module.__file__).read_text("utf-8"), fix.edits)
    assert mended in text
    repaired = loaded(tmp_path, text)
    assert gained(repaired) > 0
    assert codes(repaired) == ()
