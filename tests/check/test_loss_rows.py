"""Mini-batches in updates: masks are followed through the rows that a body shuffles, sorts and takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.test_loss_masks import AVERAGE, codes, learns_prompts, program

START = "loss, whole = 0.0, experience.attention_mask.tensor\norder = torch.randperm(len(ids))\n"
BATCHES = START + "for start in range(0, len(ids), 2):\n    rows = order[start : start + 2]\n"
SPLIT = START + "for rows in order.split(2):\n"
PART = (
    "    part = ids[rows]\n    ratio = (selected(self.forward(part), part[:, 1:]) - old[rows, 1:]).exp()\n"
    "    mask = whole[rows, 1:]\n    loss = loss - (ratio * gain[rows] * mask).sum() / mask.sum()"
)
KL = (
    "\n    gap = ref[rows, 1:] - selected(self.forward(part), part[:, 1:])\n"
    "    loss = loss + self.beta * ((gap.exp() - gap - 1) * mask).sum() / mask.sum()"
)
OF_LOSS = ("attention_mask", "loss_mask")
PROMPTS = {
    "shuffled rows": BATCHES + PART,
    "shuffled rows of a split": SPLIT + PART,
    "shuffled rows of chunks": START + "for rows in torch.chunk(order.to(ids.device), 2):\n" + PART,
    "shuffled rows of an array": START.replace("torch.randperm", "np.random.permutation")
    + "for rows in np.array_split(order, 2):\n    rows = torch.from_numpy(rows)\n"
    + PART,
    "rows of a generator of NumPy": START
    + "rng = np.random.default_rng(0)\norder = rng.permutation(ids.shape[0])\n"
    + "for start in range(0, len(ids), 2):\n    rows = order[start : start + 2].tolist()\n"
    + PART,
    "shuffled lists of rows": START + "order = list(range(len(ids)))\nrandom.shuffle(order)\n"
    "for start in range(0, len(ids), 2):\n    rows = order[start : start + 2]\n" + PART,
    "a list of mini-batches": BATCHES.split("for")[0]
    + "parts = [order[start : start + 2] for start in range(0, len(ids), 2)]\nfor rows in parts:\n"
    + PART,
    "rows of a view": START + "for rows in order.view(-1, 2):\n" + PART,
    "rows by number": START + "parts = order.split(2)\nfor i in range(len(parts)):\n    rows = parts[i]\n" + PART,
    "rows of a sampler": START + "for rows in BatchSampler(SubsetRandomSampler(range(len(ids))), 2, False):\n" + PART,
    "slices by name": START + "for start in range(0, len(ids), 2):\n    rows = slice(start, start + 2)\n" + PART,
    "rows that are selected": BATCHES
    + "    part = ids.index_select(0, rows)\n    mask = torch.index_select(whole, 0, rows)[:, 1:]\n"
    + "    ratio = (selected(self.forward(part), part[:, 1:]) - old.index_select(0, rows)[:, 1:]).exp()\n"
    + "    loss = loss - (ratio * gain[rows] * mask).sum() / mask.sum()",
    "a loader": "loss, columns = 0.0, TensorDataset(ids, old, gain, experience.attention_mask.tensor)\n"
    "for part, before, g, mask in DataLoader(columns, batch_size=2, shuffle=True):\n"
    "    ratio = (selected(self.forward(part), part[:, 1:]) - before[:, 1:]).exp()\n"
    "    loss = loss - (ratio * g * mask[:, 1:]).sum() / mask[:, 1:].sum()",
    "a loader by name": "loss, columns = 0.0, TensorDataset(ids, old, gain, experience.attention_mask.tensor)\n"
    "loader = DataLoader(columns, batch_size=2, shuffle=True)\nfor i, (part, before, g, mask) in enumerate(loader):\n"
    "    ratio = (selected(self.forward(part), part[:, 1:]) - before[:, 1:]).exp()\n"
    "    loss = loss - (ratio * g * mask[:, 1:]).sum() / mask[:, 1:].sum()",
    "a dictionary of columns": BATCHES
    + "    columns = {'ids': ids, 'old': old, 'gain': gain, 'mask': whole}\n"
    + "    part = {name: x[rows] for name, x in columns.items()}\n    mask = part['mask'][:, 1:]\n"
    + "    ratio = (selected(self.forward(part['ids']), part['ids'][:, 1:]) - part['old'][:, 1:]).exp()\n"
    + "    loss = loss - (ratio * part['gain'] * mask).sum() / mask.sum()",
    "splits side by side": "loss = 0.0\nmasks = torch.split(experience.attention_mask.tensor, 2)\n"
    "for some, before, g, mask in zip(ids.split(2), old.split(2), gain.split(2), masks):\n    mask = mask[:, 1:]\n"
    "    ratio = (selected(self.forward(some), some[:, 1:]) - before[:, 1:]).exp()\n"
    "    loss = loss - (ratio * g * mask).sum() / mask.sum()",
    "splits of some sizes": "loss = 0.0\nmasks = experience.attention_mask.tensor.split([1, 1])\n"
    "for r, g, mask in zip(ratio.split(1), gain.split(1), masks):\n    mask = mask[:, 1:]\n"
    "    loss = loss - (r * g * mask).sum() / mask.sum()",
    "rows with an advantage": "keep = experience.advantages.tensor.abs() > 0.1\nmask = "
    "experience.attention_mask.tensor[keep][:, 1:]\nratio = ratio[keep]\ngain = gain[keep]\n" + AVERAGE,
    "tokens that are no padding, shuffled": BATCHES + PART.replace("whole[rows, 1:]", "(part != PAD)[:, 1:]"),
    "tokens that are no padding, before": BATCHES.replace("experience.attention_mask.tensor", "ids != PAD") + PART,
    "old log-probs of the body": "with torch.no_grad():\n    old = selected(self.forward(ids), ids[:, 1:])\n"
    + BATCHES
    + PART.replace("old[rows, 1:]", "old[rows]"),
}
FULL = START.replace(*OF_LOSS) + (
    "full = experience.response_mask.tensor.all(-1)\nsome = full if full.any() else ~full\n{rows}\n"
    "part, mask = ids[rows], whole[rows]\nratio = (selected(self.forward(part), part[:, 1:]) - old[rows, 1:]).exp()\n"
    "ratio, mask = ratio[:, -n:], mask[:, -n:]\nloss = -(ratio * gain[rows]).mean()"
)
WITHOUT_PADDING = {
    "a test": "rows = full",
    "rows of a test": "rows = torch.where(full)[0]",
    "numbers of a test": "rows = full.nonzero().squeeze(-1)",
    "a comparison of lengths": "rows = experience.response_mask.tensor.sum(-1) == n",
    "rows of a comparison": "rows = torch.where(experience.response_mask.tensor.sum(-1) == n)[0]",
    "an order by length": "rows = experience.response_mask.tensor.sum(-1).argsort()[-1:]",
    "chosen one by one": "rows = [i for i in range(len(ids)) if full[i]]",
    "sorted by length": "rows = sorted(range(len(ids)), key=lambda i: -experience.response_mask.tensor[i].sum())[:1]",
    "sampled": "rows = next(iter(BatchSampler(SubsetRandomSampler(torch.where(full)[0]), 2, False)))",
}
RIGHT = {
    "a loader": "loss, columns = 0.0, TensorDataset(ids, old, gain, experience.loss_mask.tensor)\n"
    "for part, before, g, mask in DataLoader(columns, batch_size=2, shuffle=True):\n"
    "    ratio = (selected(self.forward(part), part[:, 1:]) - before[:, 1:]).exp()\n"
    "    loss = loss - (ratio * g * mask[:, 1:]).sum() / mask[:, 1:].sum()",
    "a loader of tokens": "now = selected(self.forward(ids), ids[:, 1:])\n"
    "mask = experience.attention_mask.tensor[:, 1:]\n"
    "kept = experience.loss_mask.tensor[:, 1:].flatten()\nloss = 0.0\n"
    "columns = TensorDataset(now.flatten()[kept], gain.expand_as(now).flatten()[kept], mask.flatten()[kept])\n"
    "for part, g, mask in DataLoader(columns, batch_size=4):\n    loss = loss - (part * g * mask).sum() / mask.sum()",
    "shuffled rows": BATCHES.replace(*OF_LOSS) + PART,
    "shuffled rows of a split": SPLIT.replace(*OF_LOSS) + PART,
    "shuffled rows, and of their responses": BATCHES
    + "    part = ids[rows]\n    now = selected(self.forward(part), part[:, 1:])[:, -n:]\n"
    + "    ratio, mask = (now - old[rows, -n:]).exp(), whole[rows, -n:]\n"
    + "    loss = loss - (ratio * gain[rows] * mask).sum() / mask.sum()",
    "shuffled rows, and then their responses": BATCHES
    + "    part, mask = ids[rows], whole[rows][:, -n:]\n"
    + "    ratio = (selected(self.forward(part), part[:, 1:])[:, -n:] - old[rows][:, -n:]).exp()\n"
    + "    loss = loss - (ratio * gain[rows] * mask).sum() / mask.sum()",
    "rows and places": "rows, places = torch.where(experience.loss_mask.tensor[:, 1:])\n"
    "mask = experience.attention_mask.tensor[:, 1:][rows, places]\nratio, gain = ratio[rows, places], gain[rows, 0]\n"
    + AVERAGE,
    "tokens of a test": "keep = experience.loss_mask.tensor[:, 1:] > 0\nratio = ratio * torch.ones_like(gain)\n"
    "mask, gain = experience.attention_mask.tensor[:, 1:][keep], gain.expand_as(ratio)[keep]\nratio = ratio[keep]\n"
    + AVERAGE,
    "places in a turned mask": "order = torch.arange(ids.shape[1])[-n:]\n"
    "mask = experience.attention_mask.tensor.T[order].T\nratio = ratio[:, -n:]\n" + AVERAGE,
    "places in each row": "order = torch.arange(ids.shape[1] - 1)[-n:]\n"
    "mask = experience.attention_mask.tensor[:, 1:][:, order]\nratio = ratio[:, order]\n" + AVERAGE,
    "places that are selected": "order = torch.arange(ids.shape[1] - 1)[-n:]\n"
    "mask = experience.attention_mask.tensor[:, 1:].index_select(1, order)\nratio = ratio[:, order]\n" + AVERAGE,
    "places of each row by number": "loss = 0.0\nfor i in torch.randperm(len(ids)):\n"
    "    at = torch.arange(ids.shape[1] - 1)[-n:]\n    mask = experience.attention_mask.tensor[i][1:][at]\n"
    "    loss = loss - (ratio[i][at] * gain[i] * mask).sum() / mask.sum()",
    "places in a flat mask": "at = torch.where(experience.loss_mask.tensor[:, 1:].flatten())[0]\n"
    "mask = experience.attention_mask.tensor[:, 1:].reshape(-1)[at]\n"
    "ratio, gain = ratio.flatten()[at], gain.expand_as(ratio).flatten()[at]\n" + AVERAGE,
}
OTHER_COUNTS = {
    "shuffled rows": BATCHES.replace(*OF_LOSS) + PART.replace(").sum() / mask.sum()", ").mean()") + KL,
    "shuffled rows of a split": SPLIT.replace(*OF_LOSS) + PART.replace(").sum() / mask.sum()", ").mean()") + KL,
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_in_mini_batches_are_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, PROMPTS[name])
    assert learns_prompts(module)
    assert codes(module) == ("HF364",)


@pytest.mark.parametrize("name", RIGHT)
def test_mini_batches_of_responses_are_not(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, RIGHT[name])
    assert not learns_prompts(module)
    assert codes(module) == ()


@pytest.mark.parametrize("name", WITHOUT_PADDING)
def test_rows_that_may_have_no_padding_are_not(tmp_path: Path, name: str) -> None:
    assert codes(program(tmp_path, FULL.replace("{rows}", WITHOUT_PADDING[name]))) == ()


@pytest.mark.parametrize("order", ["order", "torch.arange(len(ids))", "experience.advantages.tensor.argsort()"])
def test_rows_with_padding_are_reported(tmp_path: Path, order: str) -> None:
    assert codes(program(tmp_path, FULL.replace("{rows}", f"rows = {order}[:1]"))) == ("HF355",)


@pytest.mark.parametrize("name", OTHER_COUNTS)
def test_another_count_in_mini_batches_is_reported(tmp_path: Path, name: str) -> None:
    module = program(tmp_path, OTHER_COUNTS[name])
    assert not learns_prompts(module)
    assert codes(module) == ("HF355",)
