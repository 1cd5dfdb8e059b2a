"""Names on the Hugging Face hub, and what its cache on this machine has of them; the network is not asked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal, TypeAlias

RepositoryKind: TypeAlias = Literal["model", "dataset"]

HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
"""A name on the Hugging Face hub, with a revision that some write behind it."""


def how_to_get(kind: RepositoryKind, name: str, revision: str | None) -> str:
    """Where the hub's cache on this machine has a model or a data set; else the command that downloads it."""
    folder = f"{'models' if kind == 'model' else 'data'}/{name.partition('/')[2]}"
    cached = cached_snapshot(kind, name, revision)
    if cached is None:
        options = (
            f"{' --repo-type dataset' if kind == 'dataset' else ''}{f' --revision {revision}' if revision else ''}"
        )
        return (
            f"it is not in this machine's cache; hf download {name}{options} --local-dir {folder}, and then write "
            f"'{folder}'"
        )
    pinned = f", revision='{revision}'" if revision else ""
    repository = ", repo_type='dataset'" if kind == "dataset" else ""
    return (
        f"it is in this machine's cache ({_size(cached)}): write '{cached}', which is what "
        f"huggingface_hub.snapshot_download('{name}'{repository}{pinned}, local_files_only=True) returns"
    )


def _size(folder: Path) -> str:
    """The size of all files of a folder, those that links lead to included."""
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def cached_snapshot(kind: RepositoryKind, name: str, revision: str | None = None) -> Path | None:
    """The folder in which the hub's cache holds a snapshot of a model or a data set, without asking the network.

    A revision is a branch or a tag, which ``refs`` resolves to a commit, or the beginning of a commit; without one it
    is the branch ``main``, or else the latest snapshot.
    """
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"{kind}s--{name.replace('/', '--')}"
    reference = cache / "refs" / (revision or "main")
    commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
    snapshots = [folder for folder in cache.glob("snapshots/*") if folder.is_dir() and any(folder.iterdir())]
    if commit is not None:
        return next((folder for folder in snapshots if folder.name.startswith(commit)), None)
    return max(snapshots, key=lambda folder: folder.stat().st_mtime, default=None)
