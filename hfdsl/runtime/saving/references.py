"""Classes and functions by name, ``module:Class``, by which a data file refers to objects in code.

A name of the script that ran, ``__main__:Class``, is looked up in that script when it is loaded again.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

MAIN = "__main__"


def name_of(value: Any, *, script: bool) -> str | None:
    """The name for ``resolved``; None for objects without one, such as those defined within a function.

    ``script`` says whether ``__main__`` is a file that can be loaded again. Workers of Ray have another ``__main__``:
    there a name of the script is taken as it is.

    >>> name_of(Callable, script=False), name_of(lambda: 0, script=False)
    ('collections.abc:Callable', None)
    """
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name or (module == MAIN and not script):
        return None
    home = sys.modules.get(module)
    if home is None:
        return None
    current = _member(home, name)
    return f"{module}:{name}" if current is value or (module == MAIN and current is None) else None


def resolved(name: str, main: Callable[[], Any]) -> Any:
    """The class or function of a name; ``main`` loads the recorded script.

    Raises:
        ImportError: if there is no such module or member; also whatever the import raises.

    >>> resolved("math:sqrt", lambda: None)(4.0)
    2.0
    """
    module, _, member = name.partition(":")
    home = main() if module == MAIN else importlib.import_module(module)
    value = _member(home, member)
    if value is None:
        missing = f"'{getattr(home, '__file__', module)}' has no '{member}' now"
        raise ImportError(missing)
    return value


def _member(home: Any, name: str) -> Any:
    for part in name.split("."):
        home = getattr(home, part, None)
    return home
