"""Steps of a model of 5.9 billion parameters: the whole model on two GPUs, or an adapter of it on one.

    python -m benchmarks.training.model_7b              # FSDP2 trains on two GPUs, an engine of vLLM on both samples
    python -m benchmarks.training.model_7b --lora 16    # an adapter of rank 16 on one GPU, which vLLM has as well
    python -m benchmarks.training.model_7b --tiny       # on CPUs, without vLLM: it only runs; also with --lora

Dr. GRPO, 256 responses of 512 tokens, random weights. Prints the seconds of every call of a step, and beside the memory
that the plan predicts the most that was in use on each GPU, and the most that torch allocated and kept in each process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.beside_trl import Case, of_row, to_toml, write_words
from benchmarks.training.models import llama
from hfdsl.rl.data.tokenizers import Characters, load_tokenizer
from hfdsl.rl.workers import Actor, ActorConfig

PEAKS = "HFDSL_BENCHMARK_PEAKS"
"""Names the folder of what processes measure."""

LARGE = Case(32, 8, 16, 512, full=True, hidden=4096, layers=32, vocabulary=32_000, heads=32, kv_heads=8)
TINY = Case(4, 4, 16, 24, full=True, hidden=64, layers=2, heads=2, kv_heads=1)


def configuration(case: Case, folder: Path, *, tiny: bool, lora: int, steps: int) -> dict[str, Any]:
    """The run, as a TOML file has it; with a rank of LoRA other than 0 on one GPU."""
    gpus, dtype = (1, "bfloat16") if lora else (2, "float32")
    cache_tokens = case.rows * (case.prompt + case.response)
    engine = {} if tiny else {"engine": "vllm", "engine_tp": gpus, "cache_tokens": cache_tokens}
    adapter = {"actor.lora": {"rank": lora, "alpha": 2 * lora}} if lora else {}
    sharding = {} if lora else {"sharding": "fsdp"}
    return {
        "algorithm": "hfdsl.rl.dataflows.dr_grpo:dr_grpo",
        "backend": "ray",
        "options": {"group": case.group, "updates": 2},
        "output": str(folder / "run"),
        "steps": steps,
        "dims": {"B": case.prompts, "P": case.prompt, "R": case.response},
        "deployment": {"pools": {"all": {"processes": [gpus], "gpu": not tiny}}, "default": {"pool": "all"}},
        "roles.actor": "benchmarks.training.model_7b:MeasuredActor",
        "roles.reward": "hfdsl.rl.workers:Verifier",
        "data.tokenizer": {"kind": "Pretrained", "path": str(folder / "tokenizer")},
        "data.prompt.text": "{prompt}",
        "data.source": {"kind": "JsonLines", "path": str(folder / "words.jsonl")},
        "checkpoints.every": 10**9,
        "actor.model": {"path": str(folder / "model"), "end_tokens": [], "dtype": dtype},
        "actor.generation": {"max_tokens": case.response, **engine},
        "actor.batching": {"tokens": 16_384, "packing": True},
        "actor.training": {
            "optimizer": {"learning_rate": 1e-6},
            "autocast": "bfloat16",
            "checkpointing": True,
            **sharding,
        },
        **adapter,
        "reward.function": f"{of_row.__module__}:{of_row.__name__}",
        "reward.tokenizer": "$data.tokenizer",
    }


def save_model(case: Case, folder: Path) -> None:
    """Save a model with random weights, drawn on the GPU, in bfloat16."""
    from transformers import AutoConfig, AutoModelForCausalLM

    inner = 11008 if case.hidden == 4096 else None
    config = llama(case.hidden, case.layers, case.vocabulary, 1024, inner, share=case.heads // case.kv_heads)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    print(f"{model.num_parameters() / 1e9:.2f} billion parameters", flush=True)


class EnoughStepsError(Exception):
    """The run is over after its last measured step: a run that ends by itself writes a checkpoint of 70 GiB."""


class MeasuredActor(Actor):
    """An actor that writes the most that torch has allocated and kept, in MiB, to a file of its rank."""

    def __init__(self, config: ActorConfig) -> None:
        super().__init__(config)
        if torch.cuda.is_available():
            threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        file = Path(os.environ[PEAKS]) / f"rank {self.rank}"
        while True:
            time.sleep(0.5)
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            file.write_text(" of ".join(str(peak // 2**20) for peak in peaks))


class Meter:
    """The most memory in use on each GPU, sampled in a thread."""

    def __init__(self) -> None:
        self.most, self.stop = [0] * torch.cuda.device_count(), threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        if self.most:
            self.thread.start()

    def _watch(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # of which nvidia-smi knows nothing
        query += [f"--id={visible}"] if visible else []
        while not self.stop.wait(0.1):
            used = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
            self.most = [max(pair) for pair in zip(self.most, map(int, used), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--lora", type=int, default=0, help="the rank of an adapter, on one GPU; 0 is none")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    from hfdsl.rl.training.config import load
    from hfdsl.rl.training.loop import train

    case = TINY if args.tiny else LARGE
    with tempfile.TemporaryDirectory() as temporary:
        folder, peak_folder = Path(temporary), Path(temporary) / "peaks"
        peak_folder.mkdir()
        load_tokenizer(Characters(case.alphabet)).save_pretrained(folder / "tokenizer")
        drawing = get_context("spawn").Process(target=save_model, args=(case, folder / "model"))
        drawing.start()
        drawing.join()  # what it has on the GPU ends with it
        write_words(folder / "words.jsonl")
        toml = folder / "run.toml"
        run = configuration(case, folder, tiny=args.tiny, lora=args.lora, steps=args.steps + 1)
        toml.write_text(to_toml(run), "utf-8")
        subprocess.run([sys.executable, "-m", "hfdsl", "plan", str(toml)], check=True)
        meter, start = Meter(), time.perf_counter()

        def show(record: Any) -> None:
            now = time.perf_counter()
            if not record.step:
                return
            peaks = ", ".join(file.read_text() for file in sorted(peak_folder.iterdir()))
            print(f"step {record.step}, {now - start:.1f} s after the start: most memory in use, MiB: {meter.most}")
            print(f"  allocated of kept by torch, MiB: {peaks}")
            for node, seconds in record.nodes.items():
                print(f"  {node}: {seconds:.2f} s")
            print(f"  {case.rows * record.values['outcome/length'] / record.seconds:,.0f} tokens/s", flush=True)
            if record.step == args.steps:
                raise EnoughStepsError

        with suppress(EnoughStepsError):
            train(load(str(toml), []), show=show, worker_env={PEAKS: str(peak_folder)})
        meter.stop.set()


if __name__ == "__main__":
    main()
