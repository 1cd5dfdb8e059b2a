"""The packages that a configuration needs, looked up without importing any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hfdsl.check.findings import Finding
from hfdsl.rl.data.sources import Dataset, ReasoningGym
from hfdsl.rl.training.preflight.requirements import is_installed
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.training.toml.changes import SetField
from hfdsl.rl.workers.config import GenerationConfig, VerifierConfig
from hfdsl.rl.workers.lora import Lora


def packages_are_installed(subject: Subject) -> Iterator[Finding]:
    """The packages that read data, score responses, adapt models and write events are installed.

    torch, transformers and Ray are not required, since a check runs without them.
    """
    for field, source in subject.parts(ReasoningGym):
        yield from _missing(subject, "reasoning_gym", "gym", f"{field}.kind", f"the data set '{source.name}'")
    for field, data in subject.parts(Dataset):
        is_read = not data.path.endswith(".parquet") or is_installed("pyarrow")
        unread = () if is_read else (f"not checked: the rows of '{data.path}', which pyarrow reads",)
        yield from _missing(subject, "datasets", "datasets", f"{field}.kind", 'a source of kind "Dataset"', unread)
    for field, verifier in subject.parts(VerifierConfig):
        if verifier.dataset is not None:
            need = f"the scorer of the data set '{verifier.dataset}'"
            yield from _missing(subject, "reasoning_gym", "gym", f"{field}.dataset", need)
    for field, generation in subject.parts(GenerationConfig):
        if generation.engine == "vllm":
            yield from _missing(subject, "vllm", "vllm", f"{field}.engine", 'engine = "vllm"')
    for field, _ in subject.parts(Lora):
        yield from _missing(subject, "peft", "lora", field, "a LoRA adapter")
    if subject.config.tensorboard:
        yield from _missing(subject, "tensorboardX", "tensorboard", "tensorboard", "tensorboard = true")
    for sink in ("wandb", "mlflow"):
        if getattr(subject.config, sink) is not None:
            yield from _missing(subject, sink, sink, sink, f"the table [{sink}]")


def sinks_have_access(subject: Subject) -> Iterator[Finding]:
    """A run that sends to W&B has a key."""
    wandb = subject.config.wandb
    if wandb is None or (wandb.mode or os.environ.get("WANDB_MODE", "online")) != "online":
        return
    if not os.environ.get("WANDB_API_KEY") and not _netrc_names_wandb():
        yield subject.finding(
            "HF722",
            "W&B has no key on this machine, so it receives nothing from the run",
            "wandb.mode",
            notes=("log in with 'wandb login', or set WANDB_API_KEY",),
            changes=(SetField("wandb.mode", "offline"),),
            advice='with mode = "offline" the run is kept in a folder that wandb sync sends later',
        )


def _netrc_names_wandb() -> bool:
    """Whether the netrc file may have a key of W&B; true for any other server."""
    if os.environ.get("WANDB_BASE_URL"):
        return True
    files = (os.environ["NETRC"],) if "NETRC" in os.environ else ("~/.netrc", "~/_netrc")
    for name in files:
        try:
            text = Path(name).expanduser().read_text("utf-8", errors="replace")
        except (OSError, RuntimeError):
            continue
        if "wandb" in text:
            return True
    return False


def _missing(
    subject: Subject, package: str, extra: str, field: str, need: str, notes: tuple[str, ...] = ()
) -> Iterator[Finding]:
    if not is_installed(package):
        yield subject.finding(
            "HF710",
            f"{need} needs the package {package}, which is not installed",
            field,
            notes=(f"install it: pip install 'hfdsl[{extra}]'", *notes),
        )
