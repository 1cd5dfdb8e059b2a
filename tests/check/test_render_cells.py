"""A finding in a notebook names the cell, not the file that stands for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import hfdsl as hf


class B(hf.Dim): ...


class Rows(hf.Batch):
    value: hf.f32[B]


@hf.dataflow
def misspelled(rows: Rows) -> hf.f32[B]:
    return rows.values  # type: ignore[attr-defined, no-any-return]


def test_a_cell_is_named_as_the_notebook_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    [finding] = misspelled.check().findings
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={finding.primary.span.file: 3}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert f"--> In [3]:{finding.primary.span.line}:" in str(misspelled.check())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert "In [3]" not in str(misspelled.check())
