"""What TRL's own code says of the mutants of ``one_knob.py``, without GPUs.

Run with a Python that has TRL, transformers, accelerate, peft and torch::

    python benchmarks/interop/trl_trial.py < mutants.jsonl > verdicts.jsonl

A command goes through TRL's parser and ``GRPOConfig``; then ``GRPOTrainer`` is built with a model of two small
layers, and
trains for a step. ``wrong`` is what runs and teaches nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


class WrongError(Exception):
    """A run that continues and teaches nothing."""


class Trial:
    """TRL with a small model, a small tokenizer and a few prompts."""

    def __init__(self) -> None:
        self.torch, self.trl = importlib.import_module("torch"), importlib.import_module("trl")
        self.program = importlib.import_module("trl.scripts.grpo")
        self.transformers = importlib.import_module("transformers")
        data = importlib.import_module("datasets").Dataset
        self.data = data.from_dict({"prompt": [f"{word} {other}" for word in WORDS for other in WORDS] * 4})
        tokenizers = importlib.import_module("tokenizers")
        names = ("<pad>", "<eos>", "<unk>", *WORDS)
        model = tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>")
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        self.tokenizer = self.transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
        )
        self.stage, self.folder = "", tempfile.mkdtemp()
        self.model().save_pretrained(self.folder)

    def model(self) -> Any:
        """A model of two small layers."""
        sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096}
        ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        return self.transformers.LlamaForCausalLM(self.transformers.LlamaConfig(**sizes, **heads, **ends))

    def verdict(self, question: dict[str, Any]) -> dict[str, Any]:
        """What TRL says of a run."""
        started = time.perf_counter()
        answer: dict[str, Any] = {"id": question["id"], "ok": True}
        stderr = io.StringIO()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
                self.run(question)
        except WrongError as error:
            answer |= {"wrong": str(error), "stage": self.stage}
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever TRL raises is its verdict
            words = stderr.getvalue().strip().splitlines()[-1:] if isinstance(error, SystemExit) else [str(error)]
            answer |= {"ok": False, "stage": self.stage, "error": f"{type(error).__name__}: {' '.join(words)}"[:300]}
        return answer | {"s": round(time.perf_counter() - started, 3)}

    def run(self, question: dict[str, Any]) -> None:
        """The run, stage by stage."""
        self.stage = "parser"
        with tempfile.TemporaryDirectory() as folder:
            words = question.get("words", [])
            if "yaml" in question:
                path = Path(folder) / "grpo.yaml"
                path.write_text(question["yaml"], "utf-8")
                words = ["--config", str(path)]
            parser = self.program.make_parser()
            script, training, model, _ = parser.parse_args_and_config(args=[*words, "--use_cpu", "true"])
            self.stage = "script"
            rewards = self.program.__dict__.get("reward_funcs_registry", ()) or ("accuracy_reward",)
            for name in script.reward_funcs or ():
                if name not in rewards and "." not in name:
                    raise ValueError(f"Could not load reward function '{name}'")
            if model.dtype not in ("auto", None):
                getattr(self.torch, model.dtype)
            if training.use_vllm:
                raise ImportError("no verdict: vLLM is not installed")
            self.train(training, model, folder)

    def train(self, training: Any, model: Any, folder: str) -> None:
        """A step of training, with rewards that differ."""
        self.stage = "trainer"
        steps, epochs = training.max_steps, training.num_train_epochs
        training.output_dir, training.max_completion_length = folder, min(training.max_completion_length, 8)
        training.report_to, training.push_to_hub = [], False
        adapters = self.trl.get_peft_config(model)
        if adapters is not None and adapters.target_modules is None:
            adapters.target_modules = ["q_proj"]

        def reward(completions: list[str], **_: Any) -> list[float]:
            return [float(len(set(text))) + 0.01 * row for row, text in enumerate(completions)]

        trainer = self.trl.GRPOTrainer(
            model=self.folder, reward_funcs=reward, args=training, train_dataset=self.data,
            eval_dataset=self.data if training.eval_strategy != "no" else None,
            processing_class=self.tokenizer, peft_config=adapters,
        )  # fmt: skip
        self.stage = "step"
        training.max_steps = 1 if steps > 0 or epochs > 0 else steps
        training.save_strategy = training.eval_strategy = "no"
        trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        before = [parameter.detach().clone() for parameter in trained]
        trainer.train()
        if trainer.state.global_step < 1:
            raise WrongError("no training step")
        if not all(self.torch.isfinite(parameter).all() for parameter in trained):
            raise WrongError("parameters are not finite")
        if training.learning_rate == 0:
            raise WrongError("a learning rate of 0")
        warming = training.warmup_steps or getattr(training, "warmup_ratio", 0)
        if not warming and all(self.torch.equal(old, new) for old, new in zip(before, trained, strict=True)):
            raise WrongError("no parameter changes")


def main() -> None:
    """Answer questions until there are no more; those of a base that is refused are left out."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
    trial, refused = Trial(), set[str]()
    for line in sys.stdin:
        question = json.loads(line)
        if question["base"] in refused:
            continue
        verdict = trial.verdict(question)
        if question["kind"] == "base" and (not verdict["ok"] or "wrong" in verdict):
            refused.add(question["base"])
        if "no verdict" not in verdict.get("error", ""):
            sys.stdout.write(json.dumps(verdict) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
