"""The inputs of a run beside its configuration: data and code as digests of files, and versions.

The code of a run is the Python files that its configuration names, and the files beside them that they import. With
``algorithm = "flows.py:flow"``, where ``flows.py`` begins with ``import rewards, torch``::

    {"flows.py": "3f0c...", "rewards.py": "a91e..."}

torch is not beside ``flows.py``: it has a version.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

from hfdsl.rl.data.hugging_face import hub_dataset, matching
from hfdsl.rl.data.sources import Dataset, JsonLines, ReasoningGym, Source
from hfdsl.rl.data.tokenizers import Pretrained
from hfdsl.rl.hub import cached_snapshot, local_folder
from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.toml.tables import flattened

WHOLE_BYTES = 2**30
"""The largest file that is read whole; of larger ones, ``BLOCKS`` blocks of ``BLOCK_BYTES`` are, evenly spread."""

BLOCKS, BLOCK_BYTES = 1024, 2**20

PACKAGES = ("torch", "transformers", "ray", "vllm", "reasoning-gym")
"""The packages whose versions may change results."""

TARGET = re.compile(r"(?P<place>[^:]+\.py|[\w.]+):\w+")
"""A name in a Python file or a module."""

TOKENIZER_FILES = "*.json", "*.model", "*.txt", "*.jinja"


def data_fingerprints(config: RunConfig) -> dict[str, str]:
    """The digests of a run's sources and of its tokenizer's files, by field."""
    digests = {"data.source": _source_digest(config.data.source)}
    if config.evaluation is not None:
        digests["evaluation.source"] = _source_digest(config.evaluation.source)
    tokenizer = config.data.tokenizer
    if isinstance(tokenizer, Pretrained) and (folder := local_folder(tokenizer.path)).is_dir():
        files = [file for pattern in TOKENIZER_FILES for file in sorted(folder.glob(pattern))]
        digests["data.tokenizer"] = files_digest(files) if files else None
    return {name: digest for name, digest in digests.items() if digest is not None}


def _source_digest(source: Source) -> str | None:
    """The digest of a source's files, or the commit of one on the hub; None for generated rows."""
    named = hub_dataset(source.path) if isinstance(source, Dataset) else None
    if named is not None:
        snapshot = cached_snapshot("dataset", *named)
        return None if snapshot is None else snapshot.name
    files = _source_files(source)
    return files_digest(files) if files else None


def _source_files(source: Source) -> list[Path]:
    """The files of a source; one that generates its rows has none, but a version of its package."""
    match source:
        case JsonLines(path):
            return [Path(path)]
        case Dataset(path):
            return [
                file for place in matching(path) for file in (sorted(place.rglob("*")) if place.is_dir() else [place])
            ]
        case ReasoningGym():
            return []


def files_digest(files: Iterable[Path]) -> str:
    """A digest of the contents of files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(_file_digest(path))
    return digest.hexdigest()


def _file_digest(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").digest()
        digest = hashlib.sha256(str(size).encode())
        for block in _spread_blocks(file, size):
            digest.update(block)
        return digest.digest()


def _spread_blocks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Blocks of a file, evenly spread from its start to its end."""
    for i in range(BLOCKS):
        file.seek((size - BLOCK_BYTES) * i // (BLOCKS - 1))
        yield file.read(BLOCK_BYTES)


def code_fingerprints(table: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the Python files that a configuration names, and of the files beside them that they import."""
    fingerprints: dict[str, str] = {}
    pending = [place for _, value in flattened(table) for place in _named_file(value)]
    while pending:
        root, file = pending.pop()
        label = file.relative_to(root).as_posix()
        if label not in fingerprints:
            text = file.read_bytes()
            fingerprints[label] = hashlib.sha256(text).hexdigest()
            pending += [(root, imported) for imported in _imported_files(root, file, text)]
    return dict(sorted(fingerprints.items()))


def _named_file(value: Any) -> Iterator[tuple[Path, Path]]:
    """The file of a name such as ``"flows.py:flow"``, and the folder from which it imports; none for hfdsl's own."""
    match = TARGET.fullmatch(value) if isinstance(value, str) else None
    if match is None or match["place"].partition(".")[0] == "hfdsl":
        return
    place = match["place"]
    if place.endswith(".py"):
        file = Path(place).resolve()
        yield from [(file.parent, file)] if file.is_file() else []
    elif (module_file := getattr(sys.modules.get(place), "__file__", None)) and module_file.endswith(".py"):
        file = Path(module_file).resolve()
        depth = len(place.split(".")) + (file.name == "__init__.py")
        yield file.parents[depth - 1], file


def _imported_files(root: Path, file: Path, text: bytes) -> Iterator[Path]:
    """The files below ``root`` that a file imports; of an installed package, only its own files."""
    installed = root in {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib", "stdlib")}
    package = file.relative_to(root).parts[0]
    for module in _imported_modules(ast.parse(text), file.relative_to(root).parent.parts):
        if module[0] == "hfdsl" or (installed and module[0] != package):
            continue
        path = root.joinpath(*module)
        yield from (source for source in (path.with_suffix(".py"), path / "__init__.py") if source.is_file())


def _imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules that a file of a package may import, as parts of their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            named = (*base, *(node.module.split(".") if node.module else ()))
            yield from filter(None, (named, *((*named, alias.name) for alias in node.names if alias.name != "*")))


def versions() -> dict[str, str]:
    """The versions of Python, hfdsl and the packages that may change results."""
    import platform

    import hfdsl

    versions_by_name = {"python": platform.python_version(), "hfdsl": hfdsl.__version__}
    for name in PACKAGES:
        try:
            versions_by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions_by_name
