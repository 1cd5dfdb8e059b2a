"""Every block of every page runs as printed, and what a page shows is what is printed."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES
from tests.docs.programs import SLOW, PageRun

RAY = "single_controller"
"""The page whose programs call Ray themselves."""

ELSEWHERE = {RAY, "testing"}
"""Pages with a test of their own: tests/testing/test_tutorial.py runs the other one."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()  # another test may have had a file of the same name
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in ELSEWHERE], ids=lambda page: page.stem)
def test_every_block_of(page: Path, folder: Path) -> None:
    PageRun(page, folder, whole=False).run()


@pytest.mark.nightly
def test_every_block_of_the_imperative_layer(folder: Path, ray_cluster: Any) -> None:
    [page] = (page for page in PAGES if page.stem == RAY)
    PageRun(page, folder, whole=True).run()


def takes_long(page: Path) -> bool:
    text = page.read_text("utf-8")
    return '"ray"' in text or "--backend ray" in text or any(f"hfdsl {command} " in text for command in SLOW)


@pytest.mark.nightly
@pytest.mark.parametrize("page", [page for page in PAGES if takes_long(page)], ids=lambda page: page.stem)
def test_every_block_on_ray_of(page: Path, folder: Path, ray_cluster: Any) -> None:
    PageRun(page, folder, whole=True).run()
