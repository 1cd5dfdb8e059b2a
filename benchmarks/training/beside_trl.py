"""A step of GRPO beside TRL's GRPOTrainer: the same model, prompts, lengths, updates and reward, on the same machine.

    python -m benchmarks.training.beside_trl --case short --sides hfdsl TRL
    python -m benchmarks.training.beside_trl --case large --sides "hfdsl, vLLM" "TRL, vLLM"

Needs `pip install trl` in the same environment, and vLLM for the sides that name it. Every side is a process of its
own; all live at the same time and step in turn, so that they meet the same machine. A step is one batch of generated
responses and the two updates on it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = 3  # tokens before them: padding, end, unknown
PARTS = ("generation", "log-probs", "update", "reward")
UPDATES = 2
KL, RATE, BETAS = 0.04, 1e-5, (0.9, 0.95)


@dataclass(frozen=True)
class Case:
    """How much there is to do in a step."""

    prompts: int
    group: int
    prompt: int
    response: int
    full: bool  # whether responses are of full length, or end where the model ends them
    hidden: int = 1024
    layers: int = 8
    vocabulary: int = len(LETTERS) + 1 + SPECIAL
    heads: int = 16
    kv_heads: int = 16
    micro_batch: int | None = None  # rows, with activations recomputed; all rows of an update at once where None
    cache_tokens: int = 131_072  # of vLLM; its share of TRL's GPU memory follows from them

    @property
    def rows(self) -> int:
        return self.prompts * self.group

    @property
    def alphabet(self) -> str:
        """A character for every token that is not special: letters first, then ideographs."""
        return f"{LETTERS}>" + "".join(chr(0x3400 + i) for i in range(self.vocabulary - SPECIAL - len(LETTERS) - 1))


CASES = {
    "short": Case(64, 8, 16, 16, full=False),
    "long": Case(64, 8, 16, 240, full=True),
    "large": Case(
        prompts=64,
        group=8,
        prompt=16,
        response=512,
        full=True,
        hidden=2048,
        layers=24,
        vocabulary=32_000,
        kv_heads=8,
        micro_batch=32,
        cache_tokens=512 * 528,
    ),
    "tiny": Case(4, 4, 16, 24, full=True, hidden=64, layers=2, heads=2, kv_heads=1, micro_batch=4, cache_tokens=4096),
}


@dataclass(frozen=True)
class Side:
    """A library, the dtype of the parameters, and options of its own; products are computed in bfloat16 by all."""

    run: str
    weights: str = "float32"
    compiled: bool = False
    packing: bool = False
    options: dict[str, Any] = field(default_factory=dict)


STATIC = {"cache_implementation": "static"}
CONTINUOUS = {
    "use_transformers_continuous_batching": True,  # it casts the parameters to bfloat16 for good
    "transformers_continuous_batching_config": {"max_memory_percent": 0.1},
}
SIDES = {
    "hfdsl": Side("hfdsl"),
    "hfdsl, plain": Side("hfdsl", options={"engine": "plain"}),
    "hfdsl, compiled": Side("hfdsl", compiled=True),
    "TRL": Side("trl"),
    "TRL, compiled": Side("trl", options={"torch_compile": True}),
    "hfdsl, bf16": Side("hfdsl", "bfloat16"),
    "TRL, bf16": Side("trl", "bfloat16"),
    "hfdsl, vLLM": Side("hfdsl", options={"engine": "vllm"}),
    "hfdsl, vLLM, packed, compiled": Side("hfdsl", compiled=True, packing=True, options={"engine": "vllm"}),
    "TRL, vLLM": Side("trl", options={"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}),
    "hfdsl, vLLM, bf16": Side("hfdsl", "bfloat16", options={"engine": "vllm"}),
    "TRL, vLLM, bf16": Side(
        "trl", "bfloat16", options={"use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": True}
    ),
    "TRL, bf16, static": Side("trl", "bfloat16", options=STATIC),
    "TRL, bf16, continuous": Side("trl", "bfloat16", options=CONTINUOUS),
}


def reward(response: str, word: str) -> float:
    """The share of a word's letters that stand where they would be if it were spelled backward."""
    return sum(token == target for token, target in zip(response, reversed(word), strict=False)) / len(word)


def of_row(response: str, row: dict[str, Any]) -> float:
    """The reward as hfdsl's verifier calls it."""
    return reward(response, row["word"])


def of_batch(completions: list[str], word: list[str], **others: Any) -> list[float]:
    """The reward as TRL calls it."""
    return [reward(*pair) for pair in zip(completions, word, strict=True)]


class Clock:
    """Where time goes: in profiled rounds, the seconds of each part, with a wait for the GPU before and after."""

    def __init__(self) -> None:
        self.profiled, self.parts = False, dict.fromkeys(PARTS, 0.0)
        self.steps: list[float] = []
        self.started = 0.0

    def now(self) -> float:
        import torch

        if self.profiled and torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = self.now()
        yield
        self.parts[name] += self.now() - start

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            with self.part(name):
                return function(*args, **options)

        return timed


class Turns:
    """Steps when it is this side's turn: ``after_step`` returns when the next step may begin."""

    def __init__(self, talk: Connection, clock: Clock) -> None:
        self.talk, self.clock, self.left, self.tokens = talk, clock, 0, list[float]()

    def begin(self) -> None:
        """Wait for a turn."""
        self.talk.send("ready")
        self.left, self.clock.profiled = self.talk.recv()
        self.clock.parts, self.clock.steps, self.tokens = dict.fromkeys(PARTS, 0.0), [], []
        self.clock.started = self.clock.now()

    def after_step(self, tokens: float) -> None:
        """Note a step with so many tokens per response."""
        import torch

        self.left -= 1
        if not self.left and torch.cuda.is_available():
            torch.cuda.synchronize()
        now = self.clock.now()
        self.clock.steps.append(now - self.clock.started)
        self.tokens.append(tokens)
        if self.left:
            self.clock.started = now
            return
        most = 0.0
        if torch.cuda.is_available():
            most = torch.cuda.max_memory_allocated() / 2**30
            torch.cuda.empty_cache()
        parts = {name: seconds / len(self.clock.steps) for name, seconds in self.clock.parts.items()}
        self.talk.send((self.clock.steps, self.tokens, parts, most))
        self.begin()


def hfdsl(case: Case, folder: Path, how: Side, steps: int, turns: Turns) -> None:
    """Run `hfdsl train` in this process."""
    from hfdsl.rl.models import policies, scoring, updates
    from hfdsl.rl.training.config import load
    from hfdsl.rl.training.loop import train

    clock, run = turns.clock, folder / f"run{os.getpid()}"
    autocast = {"autocast": "bfloat16"} if how.weights == "float32" else {}
    tokens = (case.micro_batch or case.rows) * (case.prompt + case.response)
    cache = {"cache_tokens": case.cache_tokens} if "engine" in how.options else {}
    for module, name, part in (
        (policies, "_generate_micro_batches", "generation"),
        (policies, "_generate_externally", "generation"),
        (policies, "response_log_probs", "log-probs"),
        (scoring, "log_probs", "log-probs"),
        (updates, "policy_update", "update"),
    ):
        setattr(module, name, clock.wrapped(part, getattr(module, name)))
    values = {
        "algorithm": "hfdsl.rl.dataflows.grpo:grpo",
        "options.group": case.group,
        "options.updates": UPDATES,
        "output": str(run),
        "steps": steps,
        "dims": {"B": case.prompts, "P": case.prompt, "R": case.response},
        "deployment": {"pools": {"all": {"processes": [1]}}, "default": {"pool": "all"}},
        "roles.reward": "hfdsl.rl.workers:Verifier",
        "data.tokenizer": {"kind": "Pretrained", "path": str(folder / "model")},
        "data.prompt.text": "{prompt}",
        "data.source": {"kind": "JsonLines", "path": str(folder / "words.jsonl")},
        "checkpoints.every": 10**9,
        "actor.model": {"path": str(folder / "model"), "dtype": how.weights, "compile": how.compiled},
        "actor.generation": {"max_tokens": case.response, **cache, **how.options},
        "actor.batching": {"tokens": tokens if case.micro_batch else 65_536, "packing": how.packing},
        "actor.training": {
            "optimizer": {"learning_rate": RATE, "betas": list(BETAS)},
            "checkpointing": case.micro_batch is not None,
            **autocast,
        },
        "reference": {"model": "$actor.model", "batching": "$actor.batching", **autocast},
        "reward.function": f"{__name__}:of_row",
        "reward.tokenizer": "$data.tokenizer",
    }
    run.with_suffix(".toml").write_text(to_toml(values), "utf-8")

    def show(record: Any) -> None:
        if record.step:
            turns.clock.parts["reward"] += sum(s for node, s in record.nodes.items() if node.startswith("reward."))
            turns.after_step(record.values["outcome/length"])

    loaded = load(str(run.with_suffix(".toml")), [])
    turns.begin()
    train(loaded, show=show)


def to_toml(values: dict[str, Any]) -> str:
    """A configuration as the text of a TOML file."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {text(inner)}" for key, inner in value.items()) + " }"
        return json.dumps(value)

    return "".join(f"{key} = {text(value)}\n" for key, value in values.items())


def _trl_config(case: Case, folder: Path, how: Side, steps: int) -> Any:
    """The ``GRPOConfig`` of a side."""
    import torch
    from trl import GRPOConfig

    micro_batch = case.micro_batch or case.rows // UPDATES
    accumulated = case.rows // UPDATES // micro_batch
    options = dict(how.options)
    if options.get("use_vllm"):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the trainer reaches into the engine for its model
        options["vllm_gpu_memory_utilization"] = _memory_share(case)
        options["vllm_max_model_length"] = case.prompt + case.response
        options["generation_kwargs"] = {"ignore_eos": case.full}
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=case.micro_batch is not None,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=UPDATES * accumulated,
        num_generations=case.group,
        max_completion_length=case.response,
        max_steps=steps * UPDATES,
        beta=KL,
        loss_type="grpo",
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=0.0,
        max_grad_norm=1.0,
        logging_steps=10**9,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        model_init_kwargs={"dtype": how.weights},
        **options,
    )


def trl(case: Case, folder: Path, how: Side, steps: int, turns: Turns) -> None:
    """Run TRL's trainer in this process."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from hfdsl.rl.data.tokenizers import Characters, load_tokenizer

    clock = turns.clock
    rows = [json.loads(line) for line in (folder / "words.jsonl").read_text("utf-8").splitlines()]
    config = _trl_config(case, folder, how, steps)
    tokenizer = load_tokenizer(Characters(case.alphabet))
    if case.full:
        tokenizer.add_special_tokens({"eos_token": "<never>"})  # a token that the model does not have

    class Watch(TrainerCallback):
        """After both updates the step is over."""

        tokens = 0.0

        def on_train_begin(self, *args: Any, **others: Any) -> None:
            turns.begin()

        def on_optimizer_step(self, *args: Any, **others: Any) -> None:
            clock.parts["update"] += clock.now() - (trainer.began or 0.0)
            trainer.began = None

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step % UPDATES == 0:
                turns.after_step(trainer.length)

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        """The trainer with a clock in it."""

        began: float | None = None  # when the first micro-batch of an update did, after generation
        length = 0.0

        def _prepare_inputs(self, batch: Any) -> Any:
            inputs = super()._prepare_inputs(batch)
            if self.began is None:
                self.began = clock.now()
            return inputs

        def _generate_single_turn(self, *args: Any, **others: Any) -> Any:
            with clock.part("generation"):
                output = super()._generate_single_turn(*args, **others)
            self.length = statistics.fmean(len(row) for row in output[0])
            return output

        def _get_per_token_logps_and_entropies(self, *args: Any, **others: Any) -> Any:
            if torch.is_grad_enabled():
                return super()._get_per_token_logps_and_entropies(*args, **others)
            with clock.part("log-probs"):
                return super()._get_per_token_logps_and_entropies(*args, **others)

        def _calculate_rewards(self, *args: Any, **others: Any) -> Any:
            with clock.part("reward"):
                return super()._calculate_rewards(*args, **others)

    trainer = Trainer(
        model=str(folder / "model"),
        args=config,
        processing_class=tokenizer,
        reward_funcs=of_batch,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Watch()],
    )
    trainer.train()


def _memory_share(case: Case) -> float:
    """The share of the GPU's memory for weights and a cache of so many tokens in bfloat16, and 4 GiB of work space."""
    import torch

    width = case.hidden // case.heads
    parameters = case.layers * case.hidden * (2 * case.hidden + 2 * case.kv_heads * width + 3 * case.hidden * 11 // 4)
    weights = 2 * (parameters + 2 * case.vocabulary * case.hidden)
    cache = 2 * 2 * case.layers * case.kv_heads * width * case.cache_tokens
    return (weights + cache + 2**32) / torch.cuda.get_device_properties(0).total_memory


def side(name: str, case: Case, folder: Path, steps: int, talk: Connection) -> None:
    """The process of a side."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    turns = Turns(talk, Clock())
    try:
        {"hfdsl": hfdsl, "trl": trl}[SIDES[name].run](case, folder, SIDES[name], steps, turns)
    except EOFError:
        pass  # the parent needs no more
    except BaseException:  # noqa: BLE001  # the parent reports it
        talk.send(traceback.format_exc())
    os._exit(0)  # without the long good-byes of libraries


def write_words(path: Path) -> None:
    """Random words, and prompts that end in ">"."""
    draw = random.Random(0)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(3, 14))) for _ in range(20_000)]
    lines = [json.dumps({"prompt": f"{word}>", "word": word}) for word in words]
    path.write_text("\n".join(lines), "utf-8")


def prepare(case: Case, folder: Path) -> int:
    """A random model and random words; how many parameters it has."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from hfdsl.rl.data.tokenizers import Characters, load_tokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=case.hidden * 11 // 4,
            num_hidden_layers=case.layers,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
            max_position_embeddings=max(64, case.prompt + case.response),
            pad_token_id=0,
            eos_token_id=None if case.full else 1,
            bos_token_id=None,
            tie_word_embeddings=False,
        ),
        dtype=torch.float32,
    )
    model.save_pretrained(folder / "model")
    load_tokenizer(Characters(case.alphabet)).save_pretrained(folder / "model")
    write_words(folder / "words.jsonl")
    return sum(weight.numel() for weight in model.parameters())


class Running:
    """The process of a side, and what it did."""

    def __init__(self, name: str, case: Case, folder: Path, steps: int, patience: float) -> None:
        context = get_context("spawn")
        self.talk, theirs = context.Pipe()
        self.process = context.Process(target=side, args=(name, case, folder, steps, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.name, self.patience = name, patience
        self.figures: dict[str, Any] = {"steps": [], "tokens": [], "parts": {}, "memory": 0.0}
        self.error: str | None = None

    def step(self, steps: int, *, profiled: bool = False) -> None:
        """Let it step."""
        if self.error is None:
            self.talk.send((steps, profiled))

    def receive(self) -> Any:
        """Its next answer; after an error, or none in time, the side drops out."""
        if self.error is not None:
            return None
        try:
            answer = self.talk.recv() if self.talk.poll(self.patience) else f"no answer within {self.patience:.0f} s"
        except EOFError:
            answer = "the process ended"
        if isinstance(answer, str) and answer != "ready":
            self.error = answer
            print(f"{self.name}: {answer}", file=sys.stderr, flush=True)
            self.process.kill()
        return answer

    def note(self, *, profiled: bool = False, counts: bool = True) -> None:
        """Record the figures of its steps."""
        answer = self.receive()
        if self.receive() != "ready" or not counts:
            return
        took, tokens, parts, self.figures["memory"] = answer
        if profiled:
            self.figures["parts"] = {**parts, "all": statistics.fmean(took)}
        else:
            self.figures["steps"] += took
            self.figures["tokens"] += tokens


def measure(names: list[str], case: Case, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Every side's steps, in turn; one more round profiles the parts of a step."""
    total = args.warm + (args.rounds + 1) * args.steps + 1
    runners = [Running(name, case, folder, total, args.patience) for name in names]
    for runner in runners:
        runner.receive()
    for runner in runners:  # all warm up together
        runner.step(args.warm)
    for runner in runners:
        runner.note(counts=False)
    for profiled in [*[False] * args.rounds, True]:
        for runner in runners:
            runner.step(args.steps, profiled=profiled)
            runner.note(profiled=profiled)
    return {runner.name: {**runner.figures, "error": runner.error} for runner in runners}


def table(figures: dict[str, Any], case: Case) -> str:
    """One row per side, as Markdown."""
    lines = [
        "| | ms per step | best | beside the first | tokens/s | "
        + " | ".join(PARTS)
        + " | rest | tokens per response | GiB |",
        "|---|" + "---:|" * (len(PARTS) + 7),
    ]
    base = next((statistics.median(side["steps"]) for side in figures.values() if side["steps"]), float("nan"))
    for name, side in figures.items():
        if not side["steps"]:
            lines.append(f"| {name} | failed |")
            continue
        median, length = statistics.median(side["steps"]), statistics.fmean(side["tokens"])
        parts = [side["parts"].get(part, 0.0) for part in PARTS]
        remainder = side["parts"].get("all", 0.0) - sum(parts)
        cells = [f"{1e3 * median:.0f}", f"{1e3 * min(side['steps']):.0f}", f"{median / base:.2f}×"]
        cells += [f"{length * case.rows / median:,.0f}", *[f"{1e3 * part:.0f}" for part in (*parts, remainder)]]
        lines.append(f"| {name} | " + " | ".join([*cells, f"{length:.1f}", f"{side['memory']:.1f}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="short")
    parser.add_argument("--full", action="store_true", help="responses of full length")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--warm", type=int, default=3, help="steps of each side before anything is timed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="steps of each side per round")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a side may take to answer")
    parser.add_argument("--json", help="where all figures go")
    args = parser.parse_args()
    case = replace(CASES[args.case], **({"full": True} if args.full else {}))
    with tempfile.TemporaryDirectory() as temporary:
        count = prepare(case, Path(temporary))
        figures = measure(args.sides, case, Path(temporary), args)
    length = "of full length" if case.full else "that end where the model ends them"
    print(
        f"{count / 1e6:.0f}M parameters, {case.prompts} prompts of up to {case.prompt} tokens, {case.group} responses "
        f"each of up to {case.response} tokens {length}, {UPDATES} updates\n"
    )
    print(table(figures, case), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"case": args.case, "full": case.full, "sides": figures}), "utf-8")


if __name__ == "__main__":
    main()
