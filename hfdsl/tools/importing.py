"""Modules and their attributes: ``examples/grpo.py:experiment`` or ``package.module:attribute``, imported."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hfdsl.deploy.experiment import Experiment
from hfdsl.errors import HfError
from hfdsl.graph.dataflow import Dataflow


class UsageError(Exception):
    """The command line names something that does not exist: exit code 2."""


@dataclass(frozen=True, slots=True)
class TargetSource:
    """An imported module, and the folder where its imports are found; a ``script`` is a file outside of packages."""

    module: ModuleType
    root: Path
    script: bool


# -- the module


def parts_of(text: str) -> tuple[str, str]:
    """The file or module, and the attribute or ''.

    >>> parts_of("examples/grpo.py:experiment"), parts_of("package.module")
    (('examples/grpo.py', 'experiment'), ('package.module', ''))
    """
    place, colon, attribute = text.rpartition(":")
    if not colon or attribute.endswith(".py") or "/" in attribute or "\\" in attribute:  # C:\\x.py has a colon too
        return text, ""
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(f"'{text}' is not a target; write path/to/file.py:attribute or package.module:attribute")
    return place, attribute


def source_of(place: str) -> TargetSource:
    """The module of a file or of a dotted name, imported; errors as for ``load``."""
    path = Path(place)
    if path.suffix == ".py" or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no file '{place}'{nearest_file(path)}")
        return _from_file(path.resolve())
    if "/" in place or "\\" in place or not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"'{place}' is neither a Python file nor the dotted name of a module")
    _on_path(Path.cwd())
    for parent in _parents(place):
        if not _exists(parent):
            raise UsageError(f"there is no module '{parent}' in the current directory or among the installed ones")
    return TargetSource(_import(lambda: importlib.import_module(place), place), Path.cwd(), script=False)


def _parents(dotted: str) -> Iterator[str]:
    parts = dotted.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _exists(name: str) -> bool:
    """Whether a module exists; checked from the parent down, since the check imports the parent."""
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the parent is no package
        return False
    except Exception:  # noqa: BLE001  # the parent's own code raised: importing it shows where
        return True


def _from_file(path: Path) -> TargetSource:
    """The module of a file: by its dotted name where it is in a package, else as ``python path`` would run it."""
    root, parts = path.parent, [path.stem] if path.stem != "__init__" else []
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    _on_path(root)
    if len(parts) > 1 or path.stem == "__init__":
        return TargetSource(_import(lambda: importlib.import_module(".".join(parts)), str(path)), root, script=False)
    name = path.stem
    while name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        name += "_"  # a file that has the name of a module which is already there
    module = sys.modules.get(name) or _import(lambda: _execute(name, path), str(path))
    return TargetSource(module, root, script=True)


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"'{path}' cannot be read as a Python module")
    module = importlib.util.module_from_spec(spec)
    _SCRIPTS.add(name)
    sys.modules[name] = module  # dataclasses and annotations look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


_ROOTS: set[Path] = set()
"""The folders in which targets were found, several of which may have modules of the same name."""

_SCRIPTS: set[str] = set()
"""The names of modules that are scripts."""


def _on_path(folder: Path) -> None:
    """Look for imports in a folder first, as its own program would, also after programs of other folders."""
    others = _ROOTS - {folder}
    for name in [name for name in sys.modules if "." not in name and _is_from_another_folder(name, folder, others)]:
        for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[module]
    _ROOTS.add(folder)
    if sys.path[0] != str(folder):
        sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]


def _is_from_another_folder(name: str, folder: Path, others: Set[Path]) -> bool:
    """Whether a name stands for a module of another target's folder, and this folder has one of that name, too.

    A script stays where this one is a script as well, which then gets another name. So does hfdsl itself, which runs.
    """
    file = getattr(sys.modules[name], "__file__", None)
    if file is None or name == __name__.partition(".")[0]:
        return False
    if _home(file) not in others:
        return False
    return (folder / name / "__init__.py").is_file() or (name not in _SCRIPTS and (folder / f"{name}.py").is_file())


@lru_cache(maxsize=4096)  # asked for every module at every import
def _home(file: str) -> Path:
    """The folder that has to be on the path for the module of a file."""
    return Path(file).parents[1 if Path(file).name == "__init__.py" else 0]


def _import(action: Callable[[], ModuleType], place: str) -> ModuleType:
    """Run an import; the traceback of an error in the user's module starts at the module's own frame."""
    try:
        return action()
    except (HfError, UsageError):
        raise
    except SystemExit as error:
        raise UsageError(
            f"importing '{place}' exits, by SystemExit({error.code!r}); what only a run needs goes below "
            "'if __name__ == \"__main__\":'"
        ) from None
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        raise UsageError(f"importing '{place}' fails{_missing(error)}\n\n{own_traceback(error)}") from None


EXTRAS = {"torch": "ray", "ray": "ray", "transformers": "rl", "safetensors": "ray", "peft": "lora", "networkx": "graph"}
"""Packages that programs usually import, and the extras that install them."""


def _missing(error: Exception) -> str:
    """The end of a message about a missing package, with the extra that installs it; else empty."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f": {package} is not installed; pip install 'hfdsl[{EXTRAS[package]}]'" if package in EXTRAS else ""


def own_traceback(error: BaseException) -> str:
    """The traceback from the first frame that is neither hfdsl's command line nor Python's import system."""
    step, skip = error.__traceback__, (str(Path(__file__).parent), "<frozen importlib", importlib.__file__)
    while step is not None and step.tb_frame.f_code.co_filename.startswith(skip):
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


# -- the attribute


def attribute_of(module: ModuleType, attribute: str, place: str) -> tuple[str, Any]:
    """A name of a module, and its object; errors as for ``load``."""
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            names = [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []
            targets = [name for name, _ in candidates(module)] if value is module else []
            hint = nearest(part, names) or (f"; its targets are: {', '.join(targets)}" if targets else "")
            raise UsageError(f"'{place}' has no attribute '{attribute}'{hint}") from None
    return attribute, value


def only_target(module: ModuleType, place: str) -> tuple[str, Any]:
    """The one target of a module."""
    targets = list(candidates(module))
    preferred = [pair for pair in targets if isinstance(pair[1], Experiment)] or [
        p for p in targets if inspect.isroutine(p[1])
    ]
    preferred = preferred or targets
    if len(preferred) == 1:
        return preferred[0]
    if not targets and Path(place).is_dir():
        raise UsageError(f"'{place}' is a folder: 'hfdsl check --discover {place}' checks the programs in it")
    if not targets:
        raise UsageError(f"'{place}' has neither an hf.Experiment nor a function under @hf.dataflow")
    listed = "".join(f"\n  {place}:{name}" for name, _ in preferred)
    raise UsageError(f"'{place}' has {len(preferred)} targets; choose one:{listed}")


def candidates(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Experiments, functions that say they return one, and the dataflows that the module itself defines."""
    seen: list[Any] = []
    for name, value in vars(module).items():
        defined_here = getattr(value, "__module__", None) == module.__name__
        makes = inspect.isfunction(value) and defined_here and _is_experiment(value.__annotations__.get("return"))
        if (isinstance(value, Experiment) or makes or (isinstance(value, Dataflow) and defined_here)) and not any(
            value is listed for listed in seen
        ):
            seen.append(value)
            yield name, value


def _is_experiment(annotation: object) -> bool:
    return annotation is Experiment or (isinstance(annotation, str) and annotation.endswith("Experiment"))


def nearest_file(path: Path) -> str:
    """As ``nearest``, for a Python file beside a missing one; every name ends alike, so only what precedes counts."""
    names = {file.stem: file.name for file in path.parent.glob("*.py")}
    near = difflib.get_close_matches(path.stem, names, n=1)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def nearest(name: str, names: Sequence[str]) -> str:
    """The end of a message that suggests the name most like ``name``, or nothing."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
