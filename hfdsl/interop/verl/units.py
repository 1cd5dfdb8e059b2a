"""The units of verl's batch sizes, which count different things.

A worked example: 2 nodes of 8 GPUs, ``train_batch_size`` 256, ``rollout.n`` 8, ``ppo_mini_batch_size`` 64,
``ppo_micro_batch_size_per_gpu`` 4, and Ulysses sequence parallelism of 2:

- 256 prompts make 256 x 8 = 2048 rows a step, a row being a prompt with one response;
- sequence parallelism uses 2 GPUs for a row, so that 16 GPUs are 8 data-parallel ranks with 256 rows each;
- a mini-batch is 64 prompts, 64 x 8 = 512 rows, 64 a rank: 2048 / 512 = 4 optimizer steps an epoch;
- a micro-batch is 4 rows a rank: gradients add up over 64 / 4 = 16 of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from hfdsl.interop.settings import Configuration, NotKnown

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
TRAIN, MINI, SAMPLES = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"
MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
CRITIC_MINI, CRITIC_MICRO = "critic.ppo_mini_batch_size", "critic.ppo_micro_batch_size_per_gpu"
REF_MICRO, ROLLOUT_MICRO = f"{REF}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
STRATEGY = f"{ACTOR}.strategy"
SYNC_STEPS = "trainer.v1.separate_async.parameter_sync_step"
MODE = "trainer.v1.trainer_mode"
FSDP = ("fsdp", "fsdp2", "fsdp_turbo")


@dataclass(frozen=True, slots=True)
class DataParallelSplit:
    """How a role's GPUs split rows: a row occupies ``per_row`` GPUs, whose sizes are set by ``keys``."""

    gpus: int
    per_row: int
    keys: tuple[str, ...]
    names: str

    @property
    def ranks(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // self.per_row

    def __str__(self) -> str:
        if self.per_row == 1:
            return f"{self.gpus} GPUs"
        return f"{self.ranks} data-parallel ranks ({self.gpus} GPUs / {self.names} {self.per_row})"


def gpus(c: Configuration) -> int:
    """The GPUs of the trainer."""
    return c.size(GPUS) * c.size(NODES)


def split_of(c: Configuration, role: str, strategy_key: str) -> DataParallelSplit:
    """How the GPUs of the actor (or of the critic, or of the reference) split rows.

    Raises:
        NotKnown: for an engine whose sizes this reader does not know.
    """
    strategy, count = c.value(strategy_key), gpus(c)
    if strategy in FSDP:
        engine = "fsdp" if role == "critic" else "fsdp_config"
        old, new = f"{role}.ulysses_sequence_parallel_size", f"{role}.{engine}.ulysses_sequence_parallel_size"
        key = old if role != "critic" and c.size(old) > 1 else new
        return DataParallelSplit(count, c.size(key), (key,) if c.size(key) > 1 else (), "sequence parallel")
    if strategy == "megatron":
        keys = tuple(f"{role}.megatron.{axis}_parallel_size" for axis in ("tensor_model", "pipeline_model", "context"))
        product = 1
        for key in keys:
            product *= c.size(key)
        names = " x ".join(
            name for name, key in zip(("tensor", "pipeline", "context"), keys, strict=True) if c.size(key) > 1
        )
        return DataParallelSplit(count, product, tuple(key for key in keys if c.size(key) > 1), f"{names} parallel")
    if strategy == "veomni":
        key = f"{role}.veomni.ulysses_parallel_size"
        return DataParallelSplit(count, c.size(key), (key,) if c.size(key) > 1 else (), "sequence parallel")
    raise NotKnown(strategy_key, f"the engine '{strategy}'", c.span(strategy_key))


def uses_critic(c: Configuration) -> bool:
    """Whether there is a critic: as ``critic.enable`` says, otherwise for GAE."""
    enabled = c.value("critic.enable")
    return c.value("algorithm.adv_estimator") == "gae" if enabled is None else bool(enabled)


def uses_reference(c: Configuration) -> bool:
    """Whether there is a reference policy."""
    return bool(c.value("algorithm.use_kl_in_reward")) or bool(c.value(f"{ACTOR}.use_kl_loss"))


def updates_in_parts(c: Configuration) -> int:
    """How many batches an asynchronous step with separate GPUs is trained in."""
    return c.size(SYNC_STEPS) if c.value(MODE) == "separate_async" else 1


def rows(c: Configuration) -> int:
    """The rows of a batch before padding."""
    return c.size(TRAIN) // updates_in_parts(c) * c.size(SAMPLES)


def padded_rows(c: Configuration) -> int:
    """The rows with the no-op rows that V1 adds, so that GPUs and mini-batches divide them."""
    multiple = lcm(split_of(c, ACTOR, STRATEGY).ranks, c.size(MINI) * c.size(SAMPLES))
    if uses_critic(c):
        multiple = lcm(multiple, c.size(CRITIC_MINI) * c.size(SAMPLES))
    return -(-rows(c) // multiple) * multiple


def training_roles(c: Configuration) -> list[tuple[str, DataParallelSplit]]:
    """The mini-batch keys of the models that train, with their GPUs."""
    roles = [(MINI, split_of(c, ACTOR, STRATEGY))]
    if uses_critic(c):
        roles.append((CRITIC_MINI, split_of(c, "critic", "critic.strategy")))
    return roles


def same_split(c: Configuration) -> bool:
    """Whether the reference has the actor's parallel sizes."""
    if c.value(STRATEGY) in FSDP:
        keys = [("fsdp_config.ulysses_sequence_parallel_size",) * 2]
        if c.size(f"{ACTOR}.ulysses_sequence_parallel_size") > 1:
            return False
    else:
        keys = [(f"megatron.{a}_parallel_size",) * 2 for a in ("tensor_model", "pipeline_model", "context")]
    return all(c.known(f"{ACTOR}.{of_actor}") == c.known(f"{REF}.{of_reference}") for of_actor, of_reference in keys)
