"""Packages that a configuration needs and that are not installed, found without importing any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from hfdsl.check.findings import Finding
from hfdsl.rl.data.sources import Dataset, ReasoningGym
from hfdsl.rl.training.preflight.subject import Subject
from hfdsl.rl.workers.config import GenerationConfig, VerifierConfig
from hfdsl.rl.workers.lora import Lora


def packages_are_installed(subject: Subject) -> Iterator[Finding]:
    """What reads the data, scores responses, adapts models and writes events is there.

    torch, transformers and Ray are not asked for: programs are checked where they are not installed.
    """
    for field, source in subject.parts(ReasoningGym):
        yield from _missing(subject, "reasoning_gym", "rl", f"{field}.kind", f"the data set '{source.name}'")
    for field, _ in subject.parts(Dataset):
        yield from _missing(subject, "datasets", "datasets", f"{field}.kind", 'a source of kind "Dataset"')
    for field, verifier in subject.parts(VerifierConfig):
        if verifier.dataset is not None:
            need = f"the scorer of the data set '{verifier.dataset}'"
            yield from _missing(subject, "reasoning_gym", "rl", f"{field}.dataset", need)
    for field, generation in subject.parts(GenerationConfig):
        if generation.engine == "vllm":
            yield from _missing(subject, "vllm", "vllm", f"{field}.engine", 'engine = "vllm"')
    for field, _ in subject.parts(Lora):
        yield from _missing(subject, "peft", "lora", field, "a LoRA adapter")
    if subject.config.tensorboard:
        yield from _missing(subject, "tensorboardX", "tensorboard", "tensorboard", "tensorboard = true")


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None


def _missing(subject: Subject, package: str, extra: str, field: str, need: str) -> Iterator[Finding]:
    if not is_installed(package):
        yield subject.finding(
            "HF710",
            f"{need} needs the package {package}, which is not installed",
            field,
            notes=(f"pip install 'hfdsl[{extra}]'",),
        )
