"""Names on the Hugging Face hub: what this machine's cache has of them, and how to get the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfdsl.rl.hub import cached_snapshot, fetched, local_folder
from tests.rl.training.preflight_runs import CONFIG, MODEL, findings, line, project
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


def test_a_name_on_the_hub_is_recognized(tmp_path: Path) -> None:
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "Qwen/Qwen3-0.6B" }\n').replace(MODEL, "")
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF723", line(text, "model ="))
    assert any("hf download Qwen/Qwen3-0.6B" in note for note in finding.notes)
    snapshot = tmp_path / "cache" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(CONFIG)
    assert [finding.code for finding in findings(text)] == ["HF723"]
    (snapshot / "model.safetensors").write_bytes(bytes(9))
    assert findings(text) == []


def hub_cache(tmp_path: Path, repository: str, commit: str, refs: tuple[str, ...] = ()) -> Path:
    """A snapshot in a cache as huggingface_hub lays it out: links to blobs, and refs that name commits."""
    root = tmp_path / "cache" / repository
    snapshot = root / "snapshots" / commit
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "blobs" / commit).write_bytes(CONFIG)
    (root / "blobs" / f"{commit}-weights").write_bytes(bytes(2_500_000))
    (snapshot / "config.json").symlink_to(root / "blobs" / commit)
    (snapshot / "model.safetensors").symlink_to(root / "blobs" / f"{commit}-weights")
    for name in refs:
        (root / "refs" / name).write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    ("revision", "found"), [("", "1111"), ("@main", "1111"), ("@v2", "2222"), ("@2222", "2222"), ("@22", "2222")]
)
def test_revisions_on_the_hub_are_found_in_its_cache(revision: str, found: str, tmp_path: Path) -> None:
    snapshots = {
        commit: hub_cache(tmp_path, "models--Qwen--Qwen3-0.6B", commit, refs)
        for commit, refs in {"1111": ("main",), "2222": ("v2",)}.items()
    }
    text = RUN.replace("[actor]\n", f'[actor]\nmodel = {{ path = "Qwen/Qwen3-0.6B{revision}" }}\n').replace(MODEL, "")
    assert findings(text) == []
    assert local_folder(f"Qwen/Qwen3-0.6B{revision}") == snapshots[found]
    assert str(cached_snapshot("model", "Qwen/Qwen3-0.6B", revision[1:] or None)) == str(snapshots[found])


def test_a_cached_snapshot_is_the_one_that_huggingface_hub_takes(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    hub_cache(tmp_path, "models--a--b", "1" * 40, ("main",))
    hub_cache(tmp_path, "datasets--a--b", "2" * 40, ("main", "v1"))
    cache = tmp_path / "cache"
    for kind, revision in (("model", None), ("dataset", None), ("dataset", "v1")):
        folder = hub.snapshot_download("a/b", repo_type=kind, revision=revision, cache_dir=cache, local_files_only=True)
        assert Path(folder) == cached_snapshot(kind, "a/b", revision)  # type: ignore[arg-type]  # one of the two
    assert cached_snapshot("model", "a/c") is None
    assert cached_snapshot("model", "a/b", "v1") is None


def test_a_revision_that_is_not_cached_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "a/b@v1" }\n').replace(MODEL, "")
    [finding] = findings(text)
    assert (finding.code, finding.primary.span.line) == ("HF723", line(text, "model ="))
    assert "hf download a/b --revision v1" in finding.notes[0]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [finding] = findings(text)
    assert finding.code == "HF812"
    assert "hf download a/b --revision v1" in finding.notes[0]


def test_a_snapshot_without_weights_is_downloaded(tmp_path: Path) -> None:
    snapshot = hub_cache(tmp_path, "models--a--b", "1111", ("main",))
    (snapshot / "model.safetensors").unlink()
    text = RUN.replace("[actor]\n", '[actor]\nmodel = { path = "a/b" }\n').replace(MODEL, "")
    assert [finding.code for finding in findings(text)] == ["HF723"]


def test_a_folder_comes_before_a_name_on_the_hub(tmp_path: Path) -> None:
    hub_cache(tmp_path, "models--a--b", "1111", ("main",))
    assert local_folder("a/b") != Path("a/b")
    Path("a").mkdir()
    assert local_folder("a/b") == fetched("a/b", weights=True) == Path("a/b")


def test_a_run_takes_what_the_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = hub_cache(tmp_path, "models--a--b", "1" * 40, ("main",))
    assert fetched("a/b", weights=True) == local_folder("a/b") == snapshot
