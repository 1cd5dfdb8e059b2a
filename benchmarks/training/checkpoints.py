"""How long the steps of a run wait for a checkpoint, behind the steps or before them, on CPUs.

``python -m benchmarks.training.checkpoints``: a policy and its optimizer, some 85 MB of state, imitate random tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hfdsl as hf
from hfdsl.rl import workers as w
from hfdsl.rl.batches import B, P, R, Sequences
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.dataflows.supervised import supervised
from hfdsl.rl.training.run_folder.checkpoints import CheckpointWriter, RunInputs, RunPosition
from hfdsl.runtime.running import Running

ROWS, LENGTH = 4, 16


def config(width: int) -> w.ActorConfig:
    """A decoder of four layers."""
    model = {
        "model_type": "llama", "vocab_size": 512, "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
        "pad_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip  # arguments of transformers
    return w.ActorConfig(w.ModelConfig(config=model), w.GenerationConfig(LENGTH))


def batch(step: int) -> Sequences:
    """Random tokens."""
    ids = torch.randint(2, 512, (ROWS, 2 * LENGTH), generator=torch.Generator().manual_seed(step))
    mask = torch.ones_like(ids, dtype=torch.bool)
    return Sequences(ids=ids, mask=mask, response_mask=mask[:, LENGTH:])


def pauses(running: Running, folder: Path, behind: bool, times: int) -> dict[str, Any]:
    """Milliseconds of ordinary steps, of those while a checkpoint is written, and of what the loop waits for it."""
    inputs = RunInputs(config={}, rows=ROWS, data={}, code={}, versions={})
    checkpoint_writer = CheckpointWriter(folder, running, inputs, 1, behind)
    plain, during, waits = list[float](), list[float](), list[float]()
    for number in range(times):
        plain += [milliseconds(partial(running.step, batch(seed))) for seed in range(4)]
        waits.append(milliseconds(partial(checkpoint_writer.write, RunPosition(number + 1, Cursor(0), 1))))
        while checkpoint_writer.in_progress:
            during.append(milliseconds(partial(running.step, batch(0))))
            waits[-1] += milliseconds(checkpoint_writer.poll)
    size = sum(file.stat().st_size for file in folder.glob("*/*.safetensors")) / 1e6
    return {
        "MB": round(size, 1),
        "step": round(statistics.median(plain), 1),
        "step meanwhile": round(statistics.median(during), 1) if during else None,
        "steps meanwhile": len(during) / times,
        "wait": round(statistics.median(waits), 1),
    }


def milliseconds(action: Callable[[], object]) -> float:
    """The time of an action."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=320, help="hidden size (320)")
    parser.add_argument("--times", type=int, default=5, help="checkpoints (5)")
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    options = parser.parse_args()
    pool = hf.ResourcePool([1], use_gpu=False)
    place = hf.Deployment(actor=hf.place(w.Actor, config(options.width), pool=pool))
    plan = supervised.compile(place, {B: ROWS, P: LENGTH, R: LENGTH})
    with plan.launch(options.backend) as running, tempfile.TemporaryDirectory() as folder:
        running.step(batch(0))
        for behind in (False, True):
            print(json.dumps({"behind": behind, **pauses(running, Path(folder) / str(behind), behind, options.times)}))


if __name__ == "__main__":
    main()
