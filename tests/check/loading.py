"""Programs from text, in files of their own: a check reads the bodies of a program from its file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

import hfdsl as hf


def loaded(folder: Path, source: str) -> Any:
    """The module of a program, whose dataflows are traced: only until then can its annotations be evaluated."""
    name = f"program_{hashlib.sha256(source.encode()).hexdigest()[:16]}"  # a check reads a file once
    file = folder / f"{name}.py"
    file.write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        for dataflow in vars(module).values():
            if isinstance(dataflow, hf.Dataflow):
                dataflow.trace()
    return module
