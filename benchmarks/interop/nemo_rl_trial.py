"""What NeMo-RL's own code says of the mutants of ``one_knob.py``, without GPUs.

Run with a checkout of NeMo-RL and the Python of ``nemo_rl_library.py``::

    python benchmarks/interop/nemo_rl_trial.py CHECKOUT < mutants.jsonl > verdicts.jsonl

The verdict is that of ``nemo_rl_oracle.py``, to which the step of an optimizer and the loss's construction are added.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from nemo_rl_oracle import SECONDS, Oracle, RefusedError  # type: ignore[import-not-found, unused-ignore]


class WrongError(Exception):
    """A run that continues and teaches nothing."""


class Trial(Oracle):  # type: ignore[misc, unused-ignore]  # a class of a script
    """NeMo-RL with an optimizer of one parameter, and with its loss."""

    def _start_workers(self) -> None:
        super()._start_workers()
        config, torch = self.config, importlib.import_module("torch")
        self.stage = "loss"
        self.grpo.ClippedPGLossFn(config.loss_fn)
        self.stage = "optimizer"
        settings = config.policy.get("optimizer") or {}
        if str(settings.get("name", "")).startswith("torch.optim.") and not (
            config.policy.get("megatron_cfg") or {}
        ).get("enabled"):
            parameter = torch.nn.Parameter(torch.ones(2))
            parameter.sum().backward()
            optimizer = getattr(torch.optim, settings["name"].rpartition(".")[2])([parameter], **settings["kwargs"])
            torch.nn.utils.clip_grad_norm_([parameter], config.policy["max_grad_norm"] or 1.0)
            optimizer.step()
        self.stage = "wrong"
        if config.grpo["max_num_steps"] < 1 or config.grpo.get("max_num_epochs", 1) < 1:
            raise WrongError("no training step")
        if (
            config.grpo["num_generations_per_prompt"] == 1
            and config.grpo.get("adv_estimator", {}).get("name") == "grpo"
        ):
            raise WrongError("a group of one sample")


def main(checkout: Path) -> None:
    """Answer questions until there are no more; those of a base that is refused are left out."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    checkout = checkout.resolve()
    os.chdir(checkout)
    trial, output, refused = Trial(checkout), sys.stdout, set[str]()
    sys.stdout = sys.stderr  # what the library prints

    def no_verdict(*_: Any) -> None:
        trial.stage = "no verdict"
        raise RefusedError("it took too long")

    signal.signal(signal.SIGALRM, no_verdict)
    for line in sys.stdin:
        question = json.loads(line)
        if question["base"] in refused:
            continue
        question["config"] = str(checkout / question["config"])
        signal.alarm(SECONDS)  # some settings make mocks wait for each other
        verdict = trial.verdict(question)
        signal.alarm(0)
        if verdict.get("error", "").startswith("WrongError: "):
            verdict |= {"ok": True, "wrong": verdict.pop("error")[len("WrongError: ") :]}
        if question["kind"] == "base" and (not verdict["ok"] or "wrong" in verdict):
            refused.add(question["base"])
        if verdict.get("stage") != "no verdict":
            with contextlib.suppress(BrokenPipeError):
                output.write(json.dumps(verdict) + "\n")
                output.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
