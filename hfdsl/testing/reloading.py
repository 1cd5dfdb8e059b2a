"""Reloading a script that ran as ``__main__``, with its current classes and functions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from hfdsl.errors import CheckpointError
from hfdsl.runtime.launch import LaunchedError, nothing_launched
from hfdsl.runtime.saving.recording import SCRIPT
from hfdsl.runtime.saving.value_files import file_digest

MODULE = "__hf_replayed__"
"""The name of the module, which tells the script that it is not being run."""


@dataclass(slots=True)
class Script:
    """The script of a recording, loaded on demand up to its first launch.

    ``needs`` is the function or class of it that is replayed. Where the script has none now, or cannot be loaded, the
    copy in the recording is, if it is trusted; ``problem`` says why.
    """

    folder: Path
    main: Mapping[str, Any] | None
    needs: str
    trust: bool
    problem: str = ""
    _module: ModuleType | None = None

    @property
    def name(self) -> str:
        """The script without its folder."""
        return Path(self.main["file"]).name if self.main else "the script"

    def module(self) -> ModuleType:
        """The script as a module.

        Raises:
            CheckpointError: HF906 if the recording has no script, HF915 if only its copy can be used and it is
                not trusted.
        """
        if self._module is None:
            self._module = self._load()
        return self._module

    def _load(self) -> ModuleType:
        if self.main is None:
            raise CheckpointError("HF906", f"what ran has no file, so '{self.needs}' cannot be loaded again")
        file = Path(self.main["file"])
        running = sys.modules["__main__"]
        if getattr(running, "__file__", None) == str(file) and _has(running, self.needs):
            return running
        try:
            module = _executed(file, file, self.main["arguments"])
            if _has(module, self.needs):
                return module
            self.problem = f"has no '{self.needs}' now"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a script does
            text = f"loading it raises {type(error).__name__}: {error}".partition("\n")[0]
            self.problem = f"cannot be loaded again: {text}"
        if not self.trust:
            text = f"{self.name} {self.problem}; if you trust the copy of it in '{self.folder}', replay with --trust"
            raise CheckpointError("HF915", text)
        copy = self.folder / SCRIPT
        try:
            if file_digest(copy) != self.main["sha256"]:
                raise CheckpointError("HF906", f"{copy} was changed after it was written")
            return _executed(copy, file, self.main["arguments"])
        except CheckpointError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  # as above
            raise CheckpointError("HF906", f"{copy} cannot be loaded: {type(error).__name__}: {error}") from None


def _has(module: ModuleType, name: str) -> bool:
    value: Any = module
    for part in name.split(".") if name else ():
        value = getattr(value, part, None)
    return value is not None


def _executed(source: Path, file: Path, arguments: list[str]) -> ModuleType:
    """A script as a module with another name, run up to its first launch, if it comes to one."""
    spec = importlib.util.spec_from_loader(MODULE, SourceFileLoader(MODULE, str(source)))
    if spec is None or spec.loader is None:
        raise TypeError(source)
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(file)
    before = sys.argv, list(sys.path)
    sys.modules[MODULE], sys.argv = module, [str(file), *arguments]
    sys.path.insert(0, str(file.parent))
    try:
        with nothing_launched():
            spec.loader.exec_module(module)
    except LaunchedError:
        pass  # what it does there and after is the run
    finally:
        sys.argv, sys.path[:] = before
    return module
