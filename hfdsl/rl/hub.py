"""Names on the Hugging Face hub: paths that are names, their files in this machine's cache, and the download.

A path is a name if it looks like one and neither it nor its parent is a folder::

    path                                  in the current folder    it is
    Qwen/Qwen3-0.6B                       nothing                  a model on the hub, of the branch main
    Qwen/Qwen3-0.6B@6130ef3               nothing                  the same at a revision
    models/policy                         models/                  a folder that is not there
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal, TypeAlias

RepositoryKind: TypeAlias = Literal["model", "dataset"]

HUB_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
"""A name on the Hugging Face hub, with a revision behind it."""

TEXTS: Final = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""The files of a configuration and a tokenizer."""

WEIGHTS: Final = ("*.safetensors", "*.bin")


def hub_name(path: str) -> tuple[str, str | None] | None:
    """The name on the hub and the revision that a path stands for; None for a folder.

    >>> hub_name("Qwen/Qwen3-0.6B@v1"), hub_name("Qwen/Qwen3-0.6B"), hub_name("/models/policy"), hub_name("policy")
    (('Qwen/Qwen3-0.6B', 'v1'), ('Qwen/Qwen3-0.6B', None), None, None)
    """
    named = HUB_NAME.fullmatch(path)
    if named is None or Path(path).exists() or Path(path).parent.is_dir():
        return None
    return named[1], named[2]


def local_folder(path: str) -> Path:
    """The folder of a model or a tokenizer: for a name on the hub, the one in the cache, without asking the network.

    A name that is not in the cache stays a path where nothing is.
    """
    named = hub_name(path)
    cached = cached_snapshot("model", *named) if named is not None else None
    return cached or Path(path)


def fetched(path: str, *, weights: bool) -> Path:
    """The folder of a model or a tokenizer; files of a name on the hub that the cache lacks are downloaded.

    ``HF_HUB_OFFLINE`` keeps ``huggingface_hub`` from the network. Errors are those of ``huggingface_hub``.
    """
    named = hub_name(path)
    if named is None:
        return Path(path)
    from huggingface_hub import snapshot_download

    patterns = [*TEXTS, *(WEIGHTS if weights else ())]
    return Path(snapshot_download(named[0], revision=named[1], allow_patterns=patterns))


def is_offline() -> bool:
    """Whether ``huggingface_hub`` is kept from the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def download_command(kind: RepositoryKind, name: str, revision: str | None) -> str:
    """The command that downloads a repository into the cache.

    >>> download_command("model", "Qwen/Qwen3-0.6B", "v1")
    'hf download Qwen/Qwen3-0.6B --revision v1'
    """
    options = f"{' --repo-type dataset' if kind == 'dataset' else ''}{f' --revision {revision}' if revision else ''}"
    return f"hf download {name}{options}"


def cached_snapshot(kind: RepositoryKind, name: str, revision: str | None = None) -> Path | None:
    """The folder of a snapshot of a model or a data set in the hub's cache, without asking the network.

    A revision is a branch or a tag, which ``refs`` resolves to a commit, or the beginning of a commit; the default is
    the branch ``main``, or else the latest snapshot.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"{kind}s--{name.replace('/', '--')}"
    reference = cache / "refs" / (revision or "main")
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    snapshots = [folder for folder in cache.glob("snapshots/*") if folder.is_dir() and any(folder.iterdir())]
    if commit is not None:
        return next((folder for folder in snapshots if folder.name.startswith(commit)), None)
    return max(snapshots, key=lambda folder: folder.stat().st_mtime, default=None)
