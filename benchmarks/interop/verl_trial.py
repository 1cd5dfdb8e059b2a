"""What verl's own code says of the mutants of ``one_knob.py``, without GPUs.

Run with a Python that has verl, Hydra, OmegaConf, torch and Ray, but no engine::

    python benchmarks/interop/verl_trial.py < mutants.jsonl > verdicts.jsonl

A run goes through verl's code as a launched one does: Hydra, ``validate_config``, the trainer with its replay buffer,
data loader and pools, ``init_model`` of the worker, the optimizer and its schedule, the batches of a step,
advantages and losses of a few rows. Ray, models, data and devices are stand-ins. Stage ``reading`` repeats what engines
would refuse. ``wrong`` is what runs and teaches nothing.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from nemo_rl_library import ABSENT, StandIns  # type: ignore[import-not-found, unused-ignore]  # beside this file

RELATIVE = (
    "grpo",
    "rloo",
    "grpo_passk",
    "gdpo",
    "grpo_vectorized",
    "rloo_vectorized",
    "opo",
    "reinforce_plus_plus_baseline",
)
"""Estimators that compare the samples of a prompt."""
ROWS = 8


class RefusedError(Exception):
    """What an engine would refuse, by reading."""


class WrongError(Exception):
    """A run that continues and teaches nothing."""


def demand(holds: object, words: str) -> None:
    """Refuse what an engine refuses."""
    if not holds:
        raise RefusedError(words)


def load(name: str) -> Any:
    """A module of verl; packages that it lacks become mocks."""
    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            root = (error.name or "").split(".")[0]
            if not root or root in ABSENT or root == "verl":
                raise
            ABSENT.add(root)
            for module in [module for module in sys.modules if module.startswith("verl.") and "config" not in module]:
                del sys.modules[module]


class Trial:
    """verl with stand-ins."""

    def __init__(self) -> None:
        ABSENT.clear()
        ABSENT.add("transfer_queue")
        sys.meta_path.insert(0, StandIns())
        load("verl.trainer.ppo.v1")
        metas = load("verl.utils.transferqueue_utils")
        metas.BatchMeta, metas.KVBatchMeta = type("BatchMeta", (), {}), type("KVBatchMeta", (), {})
        self.hydra, self.omegaconf, self.torch = load("hydra"), load("omegaconf"), load("torch")
        self.instance = load("hydra.core.global_hydra").GlobalHydra.instance
        self.folder = str(Path(load("verl").__file__ or "").parent / "trainer" / "config")
        self.main = load("verl.trainer.main_ppo")
        self.utils = load("verl.utils.config")
        self.trainers = load("verl.trainer.ppo.v1")
        self.base = load("verl.trainer.ppo.v1.trainer_base")
        self.workers = load("verl.workers.engine_workers")
        self.optimizers = load("verl.workers.config.optimizer")
        self.schedules = load("verl.utils.torch_functional")
        self.algorithms = load("verl.trainer.ppo.core_algos")
        self.ray_trainer = load("verl.trainer.ppo.ray_trainer")
        self.protocol = load("verl.protocol")
        self.tensordicts = load("verl.utils.tensordict_utils")
        self.engines = load("verl.workers.engine.utils")
        self.rollouts = load("verl.workers.rollout.base")
        self.tracking = load("verl.utils.tracking")
        load("verl.workers.config.model").HFModelConfig.__post_init__ = lambda model: None  # it loads the model's files
        self.stage, self.trained = "", list[Any]()

    def verdict(self, question: dict[str, Any]) -> dict[str, Any]:
        """What verl says of a run."""
        started = time.perf_counter()
        answer: dict[str, Any] = {"id": question["id"], "ok": True}
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self.run(question)
        except WrongError as error:
            answer |= {"wrong": str(error), "stage": self.stage}
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever verl raises is its verdict
            words = f"{type(error).__name__}: {error}"[:300]
            answer |= {
                "ok": False,
                "stage": "reading" if isinstance(error, RefusedError) else self.stage,
                "error": words,
            }
        return answer | {"s": round(time.perf_counter() - started, 3)}

    def run(self, question: dict[str, Any]) -> None:
        """The run, stage by stage."""
        self.stage = "hydra"
        self.instance().clear()
        with self.hydra.initialize_config_dir(self.folder, version_base=None):
            config = self.hydra.compose(question["name"], overrides=question["overrides"])
        for name, stage in (
            ("validate_config", self.validate), ("trainer", self.train_setup), ("worker", self.start_worker),
            ("optimizer", self.optimize), ("batches", self.split), ("advantages", self.advantages),
            ("loss", self.loss), ("engine", self.start_engine), ("loop", self.loop),
        ):  # fmt: skip  # a table
            self.stage = name
            stage(config)

    def validate(self, config: Any) -> None:
        """``main`` of ``main_ppo``."""
        critic, reference = self.main.need_critic(config), self.main.need_reference_policy(config)
        checked = copy.deepcopy(config)
        checked.actor_rollout_ref.model.lora_rank = checked.actor_rollout_ref.model.lora.rank = 0  # it would ask vLLM
        self.main.validate_config(config=checked, use_reference_policy=reference, use_critic=critic)
        self.omegaconf.OmegaConf.to_container(config, resolve=True)
        self.omegaconf.OmegaConf.resolve(config)

    def train_setup(self, config: Any) -> None:
        """The trainer up to its workers."""
        if not config.trainer.use_v1:
            demand(False, "the trainer of verl 0.8 is not tried")
        cls = self.trainers.get_trainer_cls(config.trainer.v1.trainer_mode)
        data = range(1 << 20)
        with patch.object(self.base, "create_rl_dataset", lambda *_, **__: data):
            trainer = cls(config)
            trainer.tokenizer = trainer.processor = None
            trainer._init_dataloader()
        trainer._init_resource_pool_mgr()
        pool = [*trainer.resource_pool_manager.resource_pool_spec["global_pool"]]
        demand(pool and all(isinstance(gpus, int) and gpus > 0 for gpus in pool), "Ray: no placement groups")
        self.trainer, self.gpus = trainer, sum(pool)

    def start_worker(self, config: Any) -> None:
        """``ActorRolloutRefWorker.init_model``, and the critic's configuration."""
        roles, self.trained = copy.deepcopy(config.actor_rollout_ref), []
        worker = object.__new__(self.workers.ActorRolloutRefWorker)
        worker.config, worker.distillation_config, worker.distillation_enabled = roles, None, False
        worker.role = "actor_rollout_ref" if self.trainer.use_reference_policy else "actor_rollout"
        worker._world_size, worker._rank = self.gpus, 0
        worker._omega_profiler_config = roles.actor.get("profiler", {})

        def engine(config: Any) -> Any:
            self.trained.append(config)
            return MagicMock(get_dispatch_collect=dict)

        worker.actor_worker_cls = worker.ref_worker_cls = engine
        worker.set_dispatch_collect = lambda **_: None

        def mesh(_: str, mesh_shape: tuple[int, ...], **__: Any) -> Any:
            demand(math.prod(mesh_shape) == self.gpus and min(mesh_shape) > 0, f"init_device_mesh: {mesh_shape}")
            return MagicMock()

        def rollout(name: str, mode: str) -> Any:
            assert (name, mode) in self.rollouts._ROLLOUT_REGISTRY, f"Rollout {name} with mode {mode} not found"
            return MagicMock()

        def transfer(backend: str, **_: Any) -> None:
            engines = ("naive", "nccl", "nixl", "hccl", "kimi_ckpt_engine", "mooncake", "delta_sharded", "delta")
            demand(backend in engines, f"Checkpoint engine {backend} not registered")

        with (
            patch.object(self.workers, "init_device_mesh", mesh), patch.object(self.workers, "get_rollout_class",
            rollout),
            patch.object(self.workers, "aggressive_empty_cache"), patch.object(self.torch.distributed, "get_rank",
            lambda: 0),
            patch.object(self.workers.CheckpointEngineRegistry, "new", transfer),
        ):  # fmt: skip
            self.workers.ActorRolloutRefWorker.init_model(worker)
        self.actor = self.utils.omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        self.critic = self.utils.omega_conf_to_dataclass(config.critic) if self.trainer.use_critic else None

    def parallel(self, engine: Any, world: int) -> int:
        """The data-parallel size of an engine; its refusals are repeated by reading."""
        if engine.strategy == "megatron":
            names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
            sizes = [getattr(engine, name) for name in names]
            demand(min(sizes) > 0 and world % math.prod(sizes) == 0, f"megatron: {world} GPUs, {sizes}")
            experts, tensor = engine.expert_model_parallel_size, engine.expert_tensor_parallel_size
            model_gpus = (sizes[0] if tensor is None else tensor) * experts * sizes[1]
            demand(model_gpus > 0 and world % model_gpus == 0, f"megatron: {world} GPUs, {model_gpus} for experts")
            virtual = engine.virtual_pipeline_model_parallel_size
            demand(virtual is None or sizes[1] > 1, "megatron: interleaved schedule without pipeline")
            return int(world // math.prod(sizes))
        if engine.strategy == "veomni":
            demand(world % engine.ulysses_parallel_size == 0, f"veomni: {world} % {engine.ulysses_parallel_size}")
            return int(world // engine.ulysses_parallel_size)
        if engine.strategy == "torchtitan":
            names = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
            model_gpus = math.prod(getattr(engine, name) for name in names)
            demand(model_gpus > 0 and world % model_gpus == 0, f"torchtitan: {world} GPUs, {model_gpus} for a row")
            return int(world // model_gpus)
        size, rows = engine.fsdp_size, engine.ulysses_sequence_parallel_size
        demand(size < 0 or size >= world or (size > 0 and world % size == 0), f"create_device_mesh: {world} % {size}")
        demand(rows > 0 and (rows == 1 or world % rows == 0), f"init_device_mesh: {world} % {rows}")
        return int(world // rows)

    def optimize(self, config: Any) -> None:
        """The optimizer and its schedule of each trained model, with one parameter."""
        settings = [(self.actor.engine, self.actor.optim, "actor")]
        settings += [(self.critic.engine, self.critic.optim, "critic")] if self.critic else []
        for trained in self.trained:
            demand(not (getattr(trained.engine_config, "ulysses_sequence_parallel_size", 1) > 1
                        and not trained.model_config.use_remove_padding), "FSDPEngine: use_remove_padding")  # fmt: skip
        for engine, optimizer, _role in settings:
            parameter = self.torch.nn.Parameter(self.torch.ones(2))
            if engine.strategy in ("fsdp", "fsdp2"):
                fsdp = importlib.import_module("verl.workers.engine.fsdp.transformer_impl").FSDPEngine
                if optimizer.optimizer_impl == "torch.optim":
                    built = self.optimizers.build_optimizer([parameter], optimizer)
                    fsdp._build_lr_scheduler(MagicMock(optimizer_config=optimizer, rank=0), built)
                    parameter.sum().backward()
                    self.torch.nn.utils.clip_grad_norm_([parameter], max_norm=optimizer.clip_grad)
                    built.step()
                dtype = importlib.import_module("verl.utils.torch_dtypes").PrecisionType.to_dtype
                dtype(engine.model_dtype if engine.model_dtype is not None else "fp32")
                dtype(engine.dtype)
            else:
                demand(optimizer.lr >= 0 and optimizer.weight_decay is not None, "Megatron's optimizer")
                demand(optimizer.clip_grad + 0.0 is not None, "Megatron's optimizer: clip_grad")
            if optimizer.lr == 0:
                raise WrongError("a learning rate of 0")

    def split(self, config: Any) -> None:
        """The rows of a step, from the replay buffer to micro-batches."""
        roles, trainer, torch = config.actor_rollout_ref, self.trainer, self.torch
        assert config.data.train_batch_size % trainer.parameter_sync_step == 0, "parameter_sync_step"
        prompts, n = config.data.train_batch_size // trainer.parameter_sync_step, roles.rollout.n
        demand(prompts > 0 and n > 0, f"no rows: {prompts} prompts x {n}")
        ranks = self.parallel(self.actor.engine, self.gpus)
        trainer.global_steps = max(1, config.trainer.critic_warmup)
        multiple = trainer._get_required_batch_multiple(ranks)
        demand(multiple > 0, f"upsample_batch_to_divisible_size: {multiple}")
        rows = -(-prompts * n // multiple) * multiple
        demand(rows < 1 << 24, "a step of more rows than fit")

        def updates(settings: Any, micro: Any, mini: int) -> None:
            assert mini % ranks == 0, f"Got mini_batch_size={mini} and data parallel size={ranks}"
            data = self.protocol.TensorDict({"x": torch.zeros(rows // ranks)}, batch_size=[rows // ranks])
            batches = self.tensordicts.make_iterator(
                data, mini_batch_size=mini // ranks, epochs=settings.ppo_epochs, seed=settings.data_loader_seed,
                dataloader_kwargs={"shuffle": settings.shuffle},
            )  # fmt: skip
            batch = next(iter(batches), None)
            if batch is None:
                raise WrongError("no optimizer step")
            micros(batch, settings.use_dynamic_bsz, micro)

        def micros(data: Any, dynamic: bool, size: Any) -> None:
            if not dynamic:
                self.tensordicts.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=size)
                self.engines.prepare_micro_batches(data)

        def log_probs(dynamic: bool, size: Any) -> None:
            micros(
                self.protocol.TensorDict({"x": torch.zeros(rows // ranks)}, batch_size=[rows // ranks]), dynamic, size
            )

        log_probs(self.actor.use_dynamic_bsz, roles.rollout.log_prob_micro_batch_size_per_gpu)
        updates(self.actor, self.actor.ppo_micro_batch_size_per_gpu, self.actor.ppo_mini_batch_size * n)
        if trainer.use_reference_policy:
            log_probs(roles.ref.log_prob_use_dynamic_bsz, roles.ref.log_prob_micro_batch_size_per_gpu)
        if self.critic:
            demand(self.parallel(self.critic.engine, self.gpus) > 0, "the critic's mesh")
            updates(self.critic, self.critic.ppo_micro_batch_size_per_gpu, self.critic.ppo_mini_batch_size * n)
        self.budgets(config)

    def budgets(self, config: Any) -> None:
        """A row of full length within a micro-batch's tokens, as ``rearrange_micro_batches`` demands."""
        longest = config.data.max_prompt_length + config.data.max_response_length
        demand(config.data.max_prompt_length > 0 and config.data.max_response_length > 0, "no tokens")
        if self.actor.use_dynamic_bsz:
            shared = getattr(self.actor.engine, "ulysses_sequence_parallel_size", 1)
            shared *= getattr(self.actor.engine, "context_parallel_size", 1)
            shared *= getattr(self.actor.engine, "ulysses_parallel_size", 1)
            tokens = self.actor.ppo_max_token_len_per_gpu * shared
            demand(tokens >= longest, f"max_token_len must be greater than the sequence length: {tokens}, {longest}")
            tokens = config.actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu * shared
            demand(tokens >= longest, f"log_prob: max_token_len must be greater: {tokens}, {longest}")

    def advantages(self, config: Any) -> None:
        """Rewards with a KL term, and the advantages of a few rows."""
        torch, numpy = self.torch, importlib.import_module("numpy")
        samples = min(config.actor_rollout_ref.rollout.n, ROWS)
        rows, generator = 2 * samples, torch.Generator().manual_seed(0)
        mask = torch.ones(rows, 4)
        noise = [torch.rand(rows, 4, generator=generator) for _ in range(4)]
        scores = torch.zeros(rows, 4)
        scores[:, -1] = noise[0][:, 0]
        content = {"response_mask": mask, "token_level_scores": scores, "token_level_rewards": scores,
        "values": noise[1],
                   "old_log_probs": -noise[2], "ref_log_prob": -noise[3], "reward_baselines": noise[0][:, 1],
                   "prompts": mask.long(), "attention_mask": torch.ones(rows, 8)}  # fmt: skip
        names = numpy.array([str(row // samples) for row in range(rows)], dtype=object)
        data = self.protocol.DataProto.from_dict(content, non_tensors={"uid": names})
        if config.algorithm.use_kl_in_reward:
            self.ray_trainer.apply_kl_penalty(data, self.trainer.kl_ctrl_in_reward, config.algorithm.kl_penalty)
        estimator = config.algorithm.adv_estimator
        if estimator != "gdpo":  # it reads rewards by name
            data = self.ray_trainer.compute_advantage(
                data, adv_estimator=estimator, gamma=config.algorithm.gamma, lam=config.algorithm.lam,
                num_repeat=samples,
                norm_adv_by_std_in_grpo=config.algorithm.get("norm_adv_by_std_in_grpo", True), config=config.algorithm,
            )  # fmt: skip
            if not torch.isfinite(data.batch["advantages"]).all():
                raise WrongError("advantages are not finite")
            if not data.batch["advantages"].any():
                raise WrongError("advantages are 0")
        if samples == 1 and estimator in RELATIVE and not config.distillation.enabled:
            raise WrongError(f"'{estimator}' compares the samples of a prompt, of which there is one")

    def loss(self, config: Any) -> None:
        """The actor's loss of a few rows, as ``ppo_loss`` adds it up."""
        torch, actor = self.torch, self.actor
        generator = torch.Generator().manual_seed(0)
        log_prob = torch.nn.Parameter(-torch.rand(ROWS, 4, generator=generator))
        old, reference = log_prob.detach() + 0.1, log_prob.detach() - 0.2
        advantages, mask = torch.randn(ROWS, 4, generator=generator), torch.ones(ROWS, 4, dtype=torch.bool)
        shares = {"dp_size": 2, "batch_num_tokens": ROWS * 8, "global_batch_size": ROWS * 2}
        actor.global_batch_info.update(shares | {"loss_scale_factor": actor.loss_scale_factor})
        mode = actor.policy_loss.get("loss_mode", "vanilla")
        loss, _ = self.algorithms.get_policy_loss_fn(mode)(
            old_log_prob=old, log_prob=log_prob, advantages=advantages, response_mask=mask, config=actor,
            loss_agg_mode=actor.loss_agg_mode, rollout_is_weights=None,
        )  # fmt: skip
        gathered = {"loss_mat": -log_prob, "loss_mask": mask, "loss_agg_mode": actor.loss_agg_mode}
        loss = loss - actor.entropy_coeff * self.algorithms.agg_loss(**gathered, **actor.global_batch_info)
        if actor.use_kl_loss:
            kl = self.algorithms.kl_penalty(logprob=log_prob, ref_logprob=reference, kl_penalty=actor.kl_loss_type)
            gathered["loss_mat"] = kl
            loss = loss + self.algorithms.agg_loss(**gathered, **actor.global_batch_info) * actor.kl_loss_coef
        loss.backward()
        if not torch.isfinite(log_prob.grad).all():
            raise WrongError("gradients are not finite")
        if not log_prob.grad.any():
            raise WrongError("gradients are 0")

    def start_engine(self, config: Any) -> None:
        """What the rollout's servers would refuse: ``RolloutReplica``, then vLLM's arguments by reading."""
        settings = self.utils.omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        names = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
        engine_gpus = math.prod(getattr(settings, name) for name in names)
        demand(engine_gpus > 0, f"an engine on {engine_gpus} GPUs")
        node = min(config.trainer.n_gpus_per_node, engine_gpus)
        assert engine_gpus % node == 0, f"world_size {engine_gpus} must be divisible by gpus_per_node {node}"
        demand(self.gpus % engine_gpus == 0 and self.gpus >= engine_gpus, f"{self.gpus} % {engine_gpus}")
        demand(settings.temperature >= 0, "temperature must be non-negative")
        demand(0 < settings.top_p <= 1, "top_p must be in (0, 1]")
        demand(isinstance(settings.top_k, int) and settings.top_k >= -1, "top_k must be an integer from -1")
        demand(0 < settings.gpu_memory_utilization <= 1, "gpu_memory_utilization must be in (0, 1]")
        demand(settings.max_num_seqs >= 1, "max_num_seqs")
        demand(settings.name != "vllm" or settings.max_num_batched_tokens >= settings.max_num_seqs,
               "max_num_batched_tokens must be greater than or equal to max_num_seqs")  # fmt: skip
        demand(settings.max_model_len is None or settings.max_model_len > config.data.max_prompt_length,
               "a prompt leaves no room to generate within max_model_len")  # fmt: skip
        demand(settings.agent.num_workers > 0, "no workers of agent loops")
        demand(settings.val_kwargs.n > 0 and settings.val_kwargs.temperature >= 0, "validation without samples")
        if settings.temperature == 0 and settings.n > 1:
            raise WrongError("greedy samples of a prompt are all alike")

    def loop(self, config: Any) -> None:
        """The conditions of ``fit``."""
        trainer, table = self.trainer, config.trainer
        backends = [table.logger] if isinstance(table.logger, str) else table.logger
        for backend in backends:
            is_supported = backend == "tracking" or backend in self.tracking.Tracking.supported_backend
            assert is_supported, f"{backend} is not supported"
        assert table.resume_mode in ("disable", "auto", "resume_path"), f"Unknown resume mode {table.resume_mode}"
        if table.resume_mode == "resume_path":
            assert isinstance(table.resume_from_path, str), "resume ckpt must be str type"
        for frequency in (table.save_freq, table.test_freq):
            _ = frequency > 0 and 1 % frequency == 0
        _ = table.critic_warmup <= 1
        if not (table.total_epochs > 0 and trainer.total_training_steps >= 1):
            raise WrongError("no training step")
        if table.critic_warmup >= trainer.total_training_steps:
            raise WrongError("the actor is never updated")


def main() -> None:
    """Answer questions until there are no more; those of a base that is refused are left out."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    trial, refused = Trial(), set[str]()
    answer: Callable[[dict[str, Any]], dict[str, Any]] = trial.verdict
    for line in sys.stdin:
        question = json.loads(line)
        if question["base"] in refused:
            continue
        verdict = answer(question)
        if question["kind"] == "base" and (not verdict["ok"] or "wrong" in verdict):
            refused.add(question["base"])
        sys.stdout.write(json.dumps(verdict) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
