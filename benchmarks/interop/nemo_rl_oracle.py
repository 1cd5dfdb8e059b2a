"""What NeMo-RL itself says of configurations, without GPUs: the oracle of ``nemo_rl_examples.py``.

Run with a checkout of NeMo-RL and the Python of ``nemo_rl_library.py``. JSON lines ``{"id", "config", "overrides"}``
come in, and a line with a verdict goes out for each: whether NeMo-RL accepts it, or at which stage, with which words
and after how long it refuses. The stages are its own code: the file with overrides, ``MasterConfig``, ``main`` of
``run_grpo.py`` with ``setup``, ``Policy``, ``VllmGeneration`` and the head of the asynchronous trainer, and the batches
of a step. Ray, tokenizers, data sets and worker processes are mocks. Only the last stage repeats, by reading, three
checks of the worker processes.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock, patch

from nemo_rl_library import load  # type: ignore[import-not-found, unused-ignore]  # beside this file

SECONDS = 20
TRAINING = "Buffer requirements"
"""What the asynchronous trainer prints behind its checks."""


class AcceptedError(Exception):
    """The point up to which the library is run."""


class RefusedError(Exception):
    """What a worker would refuse."""


class Cluster:
    """GPUs that are there when they are asked for."""

    def __init__(self, bundle_ct_per_node_list: list[int], num_gpus_per_node: int, **_: Any) -> None:
        self._bundles, self.num_gpus_per_node, self._sorted_bundle_indices = (
            bundle_ct_per_node_list,
            num_gpus_per_node,
            None,
        )

    def world_size(self) -> int:
        """The number of GPUs."""
        return sum(self._bundles)

    def __getattr__(self, name: str) -> Any:
        return MagicMock()


class Oracle:
    """NeMo-RL with mocks in the place of its processes."""

    def __init__(self, checkout: Path) -> None:
        self.grpo = load(checkout)
        module = importlib.util.spec_from_file_location("run_grpo", checkout / "examples/run_grpo.py")
        assert module is not None  # guards for the type checker
        assert module.loader is not None
        self.program = importlib.util.module_from_spec(module)
        module.loader.exec_module(self.program)
        self.checkout, self.stage, self.policy, self.config = checkout, "", None, None
        self.policies = importlib.import_module("nemo_rl.models.policy.lm_policy")
        self.engines = importlib.import_module("nemo_rl.models.generation.vllm.vllm_generation")
        self.batches = importlib.import_module("nemo_rl.distributed.batched_data_dict")
        self.torch = importlib.import_module("torch")

    def verdict(self, question: dict[str, Any]) -> dict[str, Any]:
        """The verdict on one configuration."""
        started = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._ask(question)
        except BaseException as error:  # noqa: BLE001  # whatever NeMo-RL raises is its verdict
            words = f"{type(error).__name__}: {error}"[:300]
            seconds = time.perf_counter() - started
            return {"id": question["id"], "ok": False, "stage": self.stage, "error": words, "s": seconds}
        return {"id": question["id"], "ok": True, "s": time.perf_counter() - started}

    def _ask(self, question: dict[str, Any]) -> None:
        os.environ.pop("NRL_IGNORE_TP_ACCURACY_CHECK", None)
        os.environ |= {"TORCH_CUDA_ARCH_LIST": "9.0", "HF_HOME": "cache"}
        self.stage, self.policy = "main", None

        def remembered(**tables: Any) -> Any:
            self.stage = "MasterConfig"
            self.config = self.grpo.MasterConfig(**tables)
            self.stage = "main"
            return self.config

        tokenizer, data = MagicMock(pad_token_id=0, eos_token_id=1), MagicMock()
        data.__len__ = lambda _: 1 << 20
        group = MagicMock(return_value=MagicMock(dp_size=ANY))
        names = {"init_ray": MagicMock(), "get_tokenizer": MagicMock(return_value=tokenizer), "setup": self._setup,
                 "setup_response_data": MagicMock(return_value=(data, data, {}, {})), "MasterConfig": remembered,
                 "get_next_experiment_dir": MagicMock(), "grpo_train": self._train}  # fmt: skip
        mocked = {"Logger", "CheckpointManager", "StatefulDataLoader", "ray", "TimeoutChecker", "set_seed"}
        with contextlib.ExitStack() as stack:
            for name, value in names.items():
                stack.enter_context(patch.object(self.program, name, value))
            for name in mocked & set(vars(self.grpo)):
                stack.enter_context(patch.object(self.grpo, name, MagicMock()))
            checkpoints = self.grpo.CheckpointManager.return_value
            checkpoints.get_latest_checkpoint_path.return_value = checkpoints.load_training_info.return_value = None
            checkpoints.get_resume_paths.return_value = (None, None)
            nodes = {str(number): ("domain", number) for number in range(256)}
            stack.enter_context(patch.object(self.grpo, "get_ray_cluster_topology", MagicMock(return_value=nodes)))
            stack.enter_context(patch.object(self.grpo, "SGLangGeneration", MagicMock()))
            topology = MagicMock(return_value=(None, [], {}))
            stack.enter_context(patch.object(self.grpo, "prepare_segment_topology", topology))
            stack.enter_context(patch.object(self.grpo, "RayVirtualCluster", Cluster))
            stack.enter_context(patch.object(self.grpo, "Policy", self._policy))
            stack.enter_context(patch.object(self.grpo, "print", self._print, create=True))
            for module in (self.policies, self.engines):
                stack.enter_context(patch.object(module, "RayWorkerGroup", group))
                stack.enter_context(patch.object(module, "ray", MagicMock()))
            stack.enter_context(patch.object(self.policies, "RayQueue", MagicMock()))
            no_model = MagicMock(side_effect=ValueError)  # it would be fetched to count operations
            stack.enter_context(patch.object(self.policies, "get_default_hf_config", no_model))
            tied = MagicMock(return_value=[])
            stack.enter_context(patch.object(self.engines.VllmGeneration, "_get_tied_worker_bundle_indices", tied))
            stack.enter_context(patch.object(sys, "argv", ["run_grpo.py", "--config", question["config"],
                                                           *question["overrides"]]))  # fmt: skip
            stack.enter_context(contextlib.suppress(AcceptedError))
            self.program.main()
        self.stage = "step"
        self._step()
        self.stage = "worker"
        self._start_workers()

    def _policy(self, **arguments: Any) -> Any:
        """The library's policy, up to where it has its workers."""
        self.policy = self.policies.Policy(**arguments)
        raise AcceptedError

    def _setup(self, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        with contextlib.suppress(AcceptedError):
            self.grpo.setup(*arguments, **options)
        return (*(MagicMock() for _ in range(10)), self.config, {}, {})

    def _print(self, *words: Any, **_: Any) -> None:
        if words and TRAINING in str(words[0]):
            raise AcceptedError

    def _train(self, *_: Any, **__: Any) -> None:
        self.grpo._create_advantage_estimator(self.config)
        raise AcceptedError

    def _step(self) -> None:
        """The rows of a step, divided as the trainer and the workers divide them."""
        policy, config = self.policy, self.config
        if policy is None or config is None:
            raise AcceptedError("no policy was made")
        rows = config.grpo["num_prompts_per_step"] * config.grpo["num_generations_per_prompt"]
        content = {"input_ids": self.torch.zeros((rows, 2)), "input_lengths": self.torch.full((rows,), 2)}
        data = self.batches.BatchedDataDict(content)
        micro, batch = policy.cfg["train_micro_batch_size"], policy.cfg["train_global_batch_size"]
        fixed = not policy.use_dynamic_batches and not policy.use_sequence_packing
        for_log_probs, _ = policy._shard_for_logprob(data)
        if fixed and not config.loss_fn.force_on_policy_ratio:
            list(for_log_probs[0].make_microbatch_iterator(policy.cfg["logprob_batch_size"]))
        shard = policy._shard_for_train(data, batch)[0]
        if fixed:
            list(shard.slice(0, batch // policy.data_parallel_size).make_microbatch_iterator(micro))

    def _start_workers(self) -> None:
        """Checks of ``models/automodel/setup.py``, ``models/megatron/setup.py`` and of the loss, by reading."""
        config = self.config
        assert config is not None
        policy, packing = config.policy, config.policy["sequence_packing"]["enabled"]
        if (policy.get("megatron_cfg") or {}).get("enabled"):
            wrong = policy["megatron_cfg"]["context_parallel_size"] > 1 and not packing
        else:
            table = policy["dtensor_cfg"]
            wrong = table["context_parallel_size"] > 1 and (
                packing or (table["tensor_parallel_size"] > 1 and table["sequence_parallel"])
            )
        clip = config.loss_fn.ratio_clip_c
        if wrong or (clip is not None and clip <= 1):
            raise RefusedError("context parallelism or ratio_clip_c")
        metric = config.checkpointing["metric_name"]
        if config.checkpointing["enabled"] and metric and not metric.startswith(("train:", "val:")):
            raise RefusedError("metric_name")


def main(checkout: Path) -> None:
    """Answer questions until there are no more."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    oracle, output = Oracle(checkout), sys.stdout
    sys.stdout = sys.stderr  # what the library prints

    def no_verdict(*_: Any) -> None:
        oracle.stage = "no verdict"
        raise RefusedError("it took too long")

    signal.signal(signal.SIGALRM, no_verdict)
    for line in sys.stdin:
        question = json.loads(line)
        if "unread" not in question:
            signal.alarm(SECONDS)  # some settings make mocks wait for each other
            verdict = oracle.verdict(question)
            signal.alarm(0)
            if verdict.get("stage") != "no verdict":
                output.write(json.dumps(verdict) + "\n")
                output.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
