"""A script that ran as ``__main__``, loaded again: what was pickled by value becomes what the script has now."""

from __future__ import annotations

import importlib.util
import inspect
import io
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import hfdsl
from hfdsl.runtime.launch import LaunchedError, nothing_launched

MODULE = "__hf_replayed__"
"""The name of the module, by which the script knows that it does not run."""


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a run: its file, and what became of loading it; ``module`` is None where it cannot be."""

    file: str | None
    module: ModuleType | None
    problem: str = ""

    def has(self, value: Any) -> bool:
        """Whether a class or function is what the script has now."""
        return self.module is not None and getattr(value, "__module__", None) == MODULE

    @property
    def name(self) -> str:
        """The script without its folder."""
        return Path(self.file).name if self.file else "the script"


def loaded(main: Mapping[str, Any] | None) -> Script:
    """The script of a recording as a module with another name: up to its first launch, if it comes to one.

    ``main`` is its file with its arguments, None where it had no file or nothing of it is in the plan.
    """
    if main is None:
        return Script(None, None, "it has no file")
    file = str(main["file"])
    if Path(file).parent == Path(hfdsl.__file__).parent:
        return Script(file, None, "it is a command of hfdsl")
    if getattr(sys.modules["__main__"], "__file__", None) == file:
        return Script(file, None, "it runs here")
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        return Script(file, None, "it is no Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.argv, list(sys.path)
    sys.modules[MODULE], sys.argv = module, [file, *main["arguments"]]
    sys.path.insert(0, str(Path(file).parent))
    try:
        with nothing_launched():
            spec.loader.exec_module(module)
    except LaunchedError:
        pass  # what it does there and after is the run
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a script does
        return Script(file, None, f"loading it raises {type(error).__name__}: {error}".partition("\n")[0])
    finally:
        sys.argv, sys.path[:] = before
    return Script(file, module)


def pickles(script: Script) -> Any:
    """What ``torch.load`` takes as its ``pickle_module``: classes and functions of the script are those that it has."""
    if script.module is None:
        return pickle
    module, current_ids = script.module, set[int]()

    def skeleton(make: Callable[..., Any]) -> Callable[..., Any]:
        def current_class(kind: Any, name: str, bases: Any, members: dict[str, Any], *rest: Any) -> Any:
            current = vars(module).get(name) if members.get("__module__") == "__main__" else None
            return kept(current) if isinstance(current, type) else make(kind, name, bases, members, *rest)

        return current_class

    def function(make: Callable[..., Any]) -> Callable[..., Any]:
        def current_function(code: Any, names: dict[str, Any], *rest: Any) -> Any:
            current = _named(module, code.co_qualname) if names.get("__name__") == "__main__" else None
            return kept(current) if current is not None else make(code, names, *rest)

        return current_function

    def state(set_state: Callable[..., Any]) -> Callable[..., Any]:
        return lambda target, values: target if id(target) in current_ids else set_state(target, values)

    def kept(current: Any) -> Any:
        current_ids.add(id(current))
        return current

    replaced = {
        "_make_skeleton_class": skeleton,
        "_make_function": function,
        "_class_setstate": state,
        "_function_setstate": state,
    }

    class Unpickler(pickle.Unpickler):
        """As pickle has it, where what Ray's cloudpickle makes of a value is looked for in the script first."""

        def find_class(self, home: str, name: str) -> Any:
            current = super().find_class(home, name)
            return replaced[name](current) if home.endswith("cloudpickle.cloudpickle") and name in replaced else current

    def loads(data: bytes) -> Any:
        return Unpickler(io.BytesIO(data)).load()

    return SimpleNamespace(
        __name__="pickle", Unpickler=Unpickler, load=lambda file: Unpickler(file).load(), loads=loads
    )


def _named(module: ModuleType, name: str) -> FunctionType | None:
    """A function of a module by its qualified name, without what decorators put around it."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    value = inspect.unwrap(value) if callable(value) else None
    return value if isinstance(value, FunctionType) and value.__code__.co_qualname == name else None
