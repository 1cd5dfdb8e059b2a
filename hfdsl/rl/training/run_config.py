"""The fields of a training run, as frozen dataclasses.

The string below a field documents it: editors show it, and ``hfdsl schema`` copies it into the JSON schema.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hfdsl.deploy.retries import Retries
from hfdsl.errors import ConfigError
from hfdsl.plan.optimize import Optimize
from hfdsl.rl.data.feed import OnBad
from hfdsl.rl.data.prompts import Prompt
from hfdsl.rl.data.sources import Source
from hfdsl.rl.data.tokenizers import Tokenizer
from hfdsl.rl.fields import Count, Positive, check_fields
from hfdsl.rl.training.placement import DeploymentConfig
from hfdsl.types.bounds import Within

EVALUATE = "hfdsl.rl.training.evaluation:evaluate"
"""The default evaluation."""


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The training data: where rows come from, and how they become batches of tokens."""

    source: Source
    """Where rows come from."""
    tokenizer: Tokenizer
    """What turns text into tokens; it must match the models."""
    prompt: Prompt = field(default_factory=Prompt)
    """How the fields of a row become the text of a prompt."""
    on_bad: OnBad = "raise"
    """What a row that cannot be read, or is too long, does: end the run, or be skipped and counted."""
    seed: int | None = None
    """The seed of the order of rows; the run's seed if it is left out."""
    ahead: bool = True
    """Prepare the next batch in a thread while a step runs."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """A dataflow that evaluates the policy before the first step, every ``every`` steps, and after the last."""

    source: Source
    """Where evaluation rows come from; the first rows are used, as many as ``dims`` says."""
    every: Count = 10
    """Steps between two evaluations."""
    algorithm: str = EVALUATE
    """The dataflow, as ``module:name`` or ``file.py:name``; a role that the run does not have has a table too."""
    dims: dict[str, int] = field(default_factory=dict)
    """Sizes that differ from those of the run, by the names of dims."""
    held_out: bool = True
    """Skip training rows whose text is that of an evaluation row."""
    samples: Annotated[int, Within(at_least=0)] = 4
    """How many of its responses are written to ``samples.jsonl``."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A dataflow that trains on exactly ``rows`` rows, gathered from rounds of the run's own dataflow."""

    algorithm: str
    """The dataflow, as ``module:name`` or ``file.py:name``; it takes one batch of the rows that a round keeps."""
    options: Any = None
    """The options of the dataflow."""
    rows: Count
    """How many rows an update takes; what the last round keeps beyond that is dropped."""
    rounds: Count = 10
    """How many rounds a step may take to gather the rows."""
    short: Literal["raise", "repeat"] = "raise"
    """What happens if all rounds keep fewer rows: end the run, or repeat the rows from the first."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    every: Count = 100
    """Steps between two checkpoints; there is always one after the last step."""
    keep: Count = 2
    """How many checkpoints are kept, the newest ones."""
    behind: bool = True
    """Write while the next steps run, from a copy of the state in host memory; else steps wait."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class FaultsConfig:
    """How a run on Ray goes on after it has lost processes: it goes back to a copy of all states, and repeats steps."""

    retries: Annotated[int, Within(at_least=0)] = 3
    """How often a step is repeated before the run ends with the first loss; with 0 every loss ends the run."""
    copy_every: Count | None = None
    """Steps between two copies of all states in host memory; left out, the run goes back to its last checkpoint."""
    wait: Positive = 300.0
    """Seconds in which the cluster must have room for new processes."""

    def __post_init__(self) -> None:
        check_fields(self)

    def on(self, backend: str) -> Retries | None:
        """What a launch takes; None where no process can be lost, or a loss ends the run."""
        return Retries(self.retries, self.copy_every, self.wait) if self.retries and backend == "ray" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbConfig:
    """A run of Weights & Biases that gets the metrics of every step."""

    project: str
    """The project, in which the runs of one question are."""
    entity: str | None = None
    """The user or team that has the project; left out, it is that of the key."""
    name: str | None = None
    """The name of the run; left out, it is that of the folder ``output``."""
    group: str | None = None
    """The group of runs that are compared."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    mode: Literal["online", "offline"] | None = None
    """Offline, the run is a folder that ``wandb sync`` sends later; left out, ``WANDB_MODE`` decides."""

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
    """The experiment, in which the runs of one question are."""
    tracking: str | None = None
    """The folder, or the address of the server, such as ``"http://host:5000"``; left out, it is the folder ``mlflow``
    in ``output``."""
    name: str | None = None
    """The name of the run; left out, it is that of the folder ``output``."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.experiment:
            raise ConfigError("HF940", "'experiment' of MLflow is empty")
        scheme, separator, _ = (self.tracking or "").partition("://")
        if separator and scheme not in MLFLOW_SCHEMES:
            known = ", ".join(MLFLOW_SCHEMES)
            raise ConfigError("HF940", f"'tracking' is a folder, or begins with one of {known}: got {self.tracking!r}")


WANDB_REFUSES = frozenset("/\\#?%:")
MAX_PROJECT = 128
MLFLOW_SCHEMES = ("http", "https", "file", "databricks")
"""Where mlflow-skinny can write; a data base needs all of MLflow, and belongs behind a server."""


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
    """Where roles run: a table, or the path of a TOML file with that table."""
    dims: dict[str, int]
    """Sizes, by the names of dims."""
    data: DataConfig
    """The training data."""
    steps: Count
    """How many steps the run takes."""
    seed: int = 0
    """The seed of every random stream of the run."""
    output: str
    """The folder for configuration, metrics, samples and checkpoints, relative to where the command runs."""
    backend: Literal["local", "ray"] = "local"
    """Simulate all ranks in this process, or run them on Ray."""
    deadline: Positive = 1800.0
    """Seconds after which a step, or a call such as a role's constructor, that has not finished is an error."""
    tensorboard: bool = False
    """Write TensorBoard event files, too; this needs tensorboardX."""
    wandb: WandbConfig | None = None
    """Send the metrics to Weights & Biases, too; this needs wandb."""
    mlflow: MlflowConfig | None = None
    """Send the metrics to MLflow, too; this needs mlflow-skinny or mlflow."""
    record: tuple[int, ...] = ()
    """The numbers of the steps that are recorded for ``hfdsl replay``."""
    verify_sync: Count | None = None
    """Compare digests of all synced weights with those of their copies every so many steps; left out, never."""
    bucket_bytes: Count = Optimize().bucket_bytes
    """The most bytes of weights that are on their way to a rank at once in a sync by schedule."""
    evaluation: EvaluationConfig | None = None
    """How the policy is evaluated; left out, it is not."""
    update: UpdateConfig | None = None
    """The update that rounds of ``algorithm`` gather rows for; left out, every step is one pass of ``algorithm``."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """When checkpoints are written, and how many are kept."""
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    """How the run goes on after it has lost processes."""

    def __post_init__(self) -> None:
        check_fields(self)


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
    "checkpoints",
    "faults",
    "deployment",
    "evaluation.every",
    "evaluation.samples",
    "update.rounds",  # this and the next matter only to a step whose rounds keep too few rows
    "update.short",
)
"""The fields that do not change what the next step computes, so a resumed run may change them. Meshes are compared
separately."""
