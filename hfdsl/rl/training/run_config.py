"""The fields of a training run, as frozen dataclasses.

The string below a field documents it: editors show it, and ``hfdsl schema`` copies it into the JSON schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hfdsl.deploy.retries import Copies, Retries
from hfdsl.errors import ConfigError
from hfdsl.plan.optimize import Optimize
from hfdsl.rl.data.feed import OnBad
from hfdsl.rl.data.prompts import Prompt
from hfdsl.rl.data.sources import Source
from hfdsl.rl.data.tokenizers import Tokenizer
from hfdsl.rl.fields import Count, Limit, Seed, check_fields
from hfdsl.rl.training.placement import DeploymentConfig
from hfdsl.types.bounds import Within

EVALUATE = "hfdsl.rl.training.evaluation:evaluate"
"""The default evaluation."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The training data: the source of rows, and their way to batches of tokens."""

    source: Source
    """The source of rows."""
    tokenizer: Tokenizer
    """The tokenizer, which must match the models."""
    prompt: Prompt = field(default_factory=Prompt)
    """How the fields of a row become the text of a prompt."""
    on_bad: OnBad = "raise"
    """The policy for a row that cannot be read or is too long: end the run, or skip and count the row."""
    seed: Seed | None = None
    """The seed of the order of rows; left out, the run's seed."""
    ahead: bool = True
    """Whether a thread prepares the next batch while a step runs."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """A dataflow that evaluates the policy before the first step, every ``every`` steps, and after the last."""

    source: Source
    """The source of evaluation rows; the run uses the first ones, as many as ``dims`` states."""
    every: Count = 10
    """Steps between two evaluations."""
    algorithm: str = EVALUATE
    """The dataflow, as ``module:name`` or ``file.py:name``; a role that the run lacks has a table of its own."""
    dims: dict[str, Count] = field(default_factory=dict)
    """Sizes that differ from those of the run, by the names of dims."""
    held_out: bool = True
    """Whether training skips rows with the text of an evaluation row."""
    samples: Annotated[int, Within(at_least=0)] = 4
    """The number of responses that are written to ``samples.jsonl``."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A dataflow that trains on exactly ``rows`` rows, gathered from rounds of the run's dataflow."""

    algorithm: str
    """The dataflow, as ``module:name`` or ``file.py:name``; it takes one batch of the rows that a round keeps."""
    options: Any = None
    """The options of the dataflow."""
    rows: Count
    """The rows of an update; the surplus of the last round is dropped."""
    rounds: Count = 10
    """The most rounds in which a step gathers the rows."""
    short: Literal["raise", "repeat"] = "raise"
    """The policy if all rounds keep fewer rows: end the run, or repeat the rows from the first."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The times of checkpoints, and the number to keep."""

    every: Count = 100
    """Steps between two checkpoints; the last step always has one."""
    keep: Count = 2
    """The number of checkpoints to keep, the newest ones."""
    behind: bool = True
    """Whether to write while the next steps run, from a copy of the state in host memory; otherwise steps wait."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """The recovery of a run on Ray from lost processes: it returns to a copy of all states and repeats steps."""

    retries: Annotated[int, Within(at_least=0)] = 3
    """The most repetitions of a step before the run ends with the first loss; with 0, every loss ends the run."""
    copy_every: Count | None = None
    """Steps between two copies of all states in host memory; left out, the run returns to its last checkpoint."""
    copies: Copies = "node"
    """Where copies are: on the node of their ranks, or with ``"peers"`` on another node, too, for twice the memory."""
    wait: Limit = 300.0
    """The seconds within which the cluster must have room for new processes."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.copies == "peers" and self.copy_every is None:
            text = 'copies = "peers" duplicates each copy, but without copy_every there are none; set copy_every'
            raise ConfigError("HF901", text, "copies")

    def on(self, backend: str) -> Retries | None:
        """The retries of a launch; None if no process can be lost, or a loss ends the run."""
        if not self.retries or backend != "ray":
            return None
        return Retries(attempts=self.retries, every=self.copy_every, wait=self.wait, copies=self.copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig:
    """A run of Weights & Biases that gets the metrics of every step."""

    project: str
    """The project that collects runs."""
    entity: str | None = None
    """The user or team that owns the project; left out, that of the key."""
    name: str | None = None
    """The name of the run; left out, that of the folder ``output``."""
    group: str | None = None
    """The group of runs to compare."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """Offline, the run is a folder for ``wandb sync`` to send later; left out, ``WANDB_MODE`` decides."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.project or len(self.project) > MAX_PROJECT or not WANDB_REFUSES.isdisjoint(self.project):
            refused = " ".join(sorted(WANDB_REFUSES))
            problem = f"'project' of W&B has 1 to {MAX_PROJECT} characters, and none of {refused}: got {self.project!r}"
            raise ConfigError("HF940", problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowConfig:
    """A run of MLflow that gets the metrics of every step."""

    experiment: str
    """The experiment that collects runs."""
    tracking: str | None = None
    """The folder, or the address of the server, such as ``"http://host:5000"``; left out, the folder ``mlflow`` in
    ``output``."""
    name: str | None = None
    """The name of the run; left out, that of the folder ``output``."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.experiment:
            raise ConfigError("HF940", "'experiment' of MLflow is empty")
        scheme, separator, _ = (self.tracking or "").partition("://")
        if separator and scheme not in MLFLOW_SCHEMES:
            allowed = ", ".join(MLFLOW_SCHEMES)
            raise ConfigError(
                "HF940", f"'tracking' is a folder, or begins with one of {allowed}: got {self.tracking!r}"
            )


WANDB_REFUSES = frozenset("/\\#?%:")
MAX_PROJECT = 128
MLFLOW_SCHEMES = ("http", "https", "file", "databricks")
"""The destinations of mlflow-skinny; a database needs all of MLflow, and belongs behind a server."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A training run. Every role of its dataflow adds a table of its own."""

    algorithm: str
    """The dataflow, or a function that returns one, as ``module:name`` or ``file.py:name``."""
    options: Any = None
    """The options of the dataflow, or the parameters of the function."""
    roles: dict[str, str] = field(default_factory=dict)
    """Role classes other than those of the dataflow's parameters, by role, as ``module:name`` or ``file.py:name``."""
    deployment: DeploymentConfig
    """The placements of roles: a table, or the path of a TOML file with that table."""
    dims: dict[str, Count]
    """Sizes, by the names of dims."""
    data: DataConfig
    """The training data."""
    steps: Count
    """The number of steps in the run."""
    seed: Seed = 0
    """The seed of every random stream of the run."""
    output: str
    """The folder for configuration, metrics, samples and checkpoints, relative to the current folder."""
    backend: Literal["local", "ray"] = "local"
    """Whether to simulate all ranks in this process, or to run them on Ray."""
    deadline: Limit = 1800.0
    """The seconds after which a step or a call, such as a role's constructor, fails."""
    tensorboard: bool = False
    """Whether to write TensorBoard event files as well, which needs tensorboardX."""
    wandb: WandbConfig | None = None
    """Where to send the metrics in Weights & Biases as well, which needs wandb."""
    mlflow: MlflowConfig | None = None
    """Where to send the metrics in MLflow as well, which needs mlflow-skinny or mlflow."""
    record: tuple[Count, ...] = ()
    """The steps to record for ``hfdsl replay``."""
    verify_sync: Count | None = None
    """Steps between two comparisons of the digests of all synced weights and their copies; left out, none."""
    bucket_bytes: Count = Optimize().bucket_bytes
    """The most bytes of weights on their way to a rank at once, in a sync by schedule."""
    deltas: bool = False
    """Whether weights that go bucket by bucket go as the elements that have changed since the last sync."""
    evaluation: EvaluationConfig | None = None
    """The evaluation of the policy; left out, there is none."""
    update: UpdateConfig | None = None
    """The update that rounds of ``algorithm`` gather rows for; left out, every step is one pass of ``algorithm``."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """The times of checkpoints, and the number to keep."""
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    """The recovery of the run from lost processes."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.output.strip():
            raise ConfigError("HF940", "'output' names no folder; \".\" is the current one")


MAY_CHANGE = (
    "steps",
    "output",
    "backend",
    "deadline",
    "tensorboard",
    "wandb",
    "mlflow",
    "record",
    "verify_sync",
    "bucket_bytes",
    "deltas",
    "checkpoints",
    "faults",
    "deployment",
    "evaluation.every",
    "evaluation.samples",
    "update.rounds",  # this and the next matter only to a step whose rounds keep too few rows
    "update.short",
)
"""The fields that do not affect the next steps, and so may change when a run is resumed. Meshes are compared apart."""
