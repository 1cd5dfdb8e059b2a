"""Files and data sets that a configuration names: their rows and fields, before a run reads them."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hfdsl.rl.training.preflight import packages
from tests.rl.training.preflight_runs import LFS, findings, line, only, project, source
from tests.tools.test_fixing_config import RUN

__all__ = ["project"]  # a fixture for all tests here


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.jsonl", b"", "has no rows"),
        ("rows.jsonl", b"\n \n", "has no rows"),
        ("rows.jsonl", LFS, "is a Git LFS pointer"),
        ("rows.jsonl.gz", gzip.compress(b'{"word": "a"}\n', mtime=0), "is compressed with gzip"),
        ("rows.jsonl", b"[1]\n", "a row must be a JSON object"),
        ("rows.jsonl", b'{"word": \n', "not JSON"),
    ],
)
def test_json_lines_that_hold_no_rows(name: str, content: bytes, problem: str) -> None:
    Path(name).write_bytes(content)
    text = source("JsonLines", name)
    code, place, message = only(text)
    assert (code, place, problem in message) == ("HF902", line(text, "source ="), True)


@pytest.mark.parametrize(("rows", "codes"), [(3, ["HF361"]), (4, []), (5, [])])
def test_a_step_takes_each_prompt_once(rows: int, codes: list[str]) -> None:
    """Blank lines are no rows."""
    Path("words.jsonl").write_text('{"word": "abc"}\n\n' * rows)
    assert [finding.code for finding in findings(RUN)] == codes


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.parquet", LFS, "is a Git LFS pointer"),
        ("rows.parquet", b"", "is empty"),
        ("rows.parquet", b"PAR", "is not a parquet file"),
        ("rows.parquet", b"PAR1 cut off", "is not a parquet file, or not a complete one"),
        ("rows.csv", b"wort,answer\n", "no field 'word'; did you mean 'wort'?"),
        ("rows.jsonl", b'{"wort": 1}\n', "no field 'word'; did you mean 'wort'?"),
        ("rows.txt", b"word\n", "is neither one of .parquet"),
    ],
)
def test_data_sets_that_do_not_fit(name: str, content: bytes, problem: str) -> None:
    Path(name).write_bytes(content)
    code, _, message = only(source("Dataset", name))
    assert (code, problem in message) == ("HF902", True)


class ArrowFile:
    """A stand-in for a file that pyarrow reads: its columns, and its first rows."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.schema_arrow = SimpleNamespace(names=list(rows[0]) if rows else [])

    def __enter__(self) -> ArrowFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def iter_batches(self, count: int) -> Iterator[Any]:
        if self.rows:
            yield SimpleNamespace(to_pylist=lambda: self.rows[:count])


def arrow(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    parquet = ModuleType("pyarrow.parquet")
    parquet.ParquetFile = read  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"words": "ab"}], "has no field 'word'; did you mean 'words'?"),
        ([{"word": None}], "its field 'word' is None, expected a text"),
        ([{"word": [{"role": "user"}]}], "set prompt.messages = 'word'"),
        ([], "has no rows"),
    ],
)
def test_the_first_rows_of_a_parquet_file_are_read(
    rows: list[dict[str, Any]], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, lambda path: ArrowFile(rows))
    assert problem in only(source("Dataset", "rows.parquet"))[2]
    arrow(monkeypatch, lambda path: ArrowFile([{"word": None}, {"word": "ab"}]))
    assert findings(source("Dataset", "rows.parquet")) == []


def test_files_of_one_data_set_have_the_same_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rows-0.parquet", "rows-1.parquet"):
        Path(name).write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, lambda path: ArrowFile([{"word": "ab", **({"answer": "b"} if "1" in path.name else {})}]))
    assert (
        "'rows-0.parquet' and 'rows-1.parquet' differ in field 'answer'" in only(source("Dataset", "rows-*.parquet"))[2]
    )
    assert "there is no 'other-*.parquet'" in only(source("Dataset", "other-*.parquet"))[2]


def test_a_parquet_file_that_its_reader_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError("footer")

    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    arrow(monkeypatch, refuse)
    assert "'rows.parquet' cannot be read: OSError: footer" in only(source("Dataset", "rows.parquet"))[2]


def test_parquet_itself_is_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": None}]]
    parquet.write_table(pyarrow.table({"word": ["ab", None], "messages": messages}), "rows.parquet")
    text = source("Dataset", "rows.parquet")
    assert findings(text) == []
    assert "the row has no field 'wort'; did you mean 'word'?" in only(text.replace("{word}", "{wort}"))[2]
    parquet.write_table(pyarrow.table({"word": pyarrow.array([None, None], pyarrow.string())}), "rows.parquet")
    assert "rows.parquet, row 0: its field 'word' is None" in only(text)[2]


def test_rows_that_nothing_reads_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setattr(packages, "is_installed", lambda package: package not in ("datasets", "pyarrow"))
    [finding] = findings(source("Dataset", "rows.parquet"))
    assert finding.code == "HF710"
    assert finding.notes[-1] == "not checked: the rows of 'rows.parquet', which pyarrow reads"


def test_a_parquet_file_without_a_reader_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("rows.parquet").write_bytes(b"PAR1 PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert findings(source("Dataset", "rows.parquet")) == []


def dataset_cache(tmp_path: Path, files: dict[str, str]) -> Path:
    """A snapshot of the data set a/b in a cache, of its branch main."""
    root = tmp_path / "cache" / "datasets--a--b"
    for name, text in {
        "refs/main": "1" * 40,
        **{f"snapshots/{'1' * 40}/{file}": files[file] for file in files},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "snapshots" / ("1" * 40)


def test_a_data_set_on_the_hub_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, options in (("a/b", ""), ("a/b@v1", " --revision v1")):
        [finding] = findings(source("Dataset", path))
        assert finding.code == "HF724"
        assert finding.notes == (f"download it first: hf download a/b --repo-type dataset{options}",)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    [finding] = findings(source("Dataset", "a/b"))
    assert (finding.code, finding.notes) == (
        "HF902",
        ("download it where there is a network: hf download a/b --repo-type dataset",),
    )
    dataset_cache(tmp_path, {"train.jsonl": '{"word": "a"}'})
    assert findings(source("Dataset", "a/b")) == []


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train.jsonl": '{"word": "a"}', "test.csv": "word\n"}, None),
        ({"train.jsonl": '{"text": "a"}', "test.csv": "text\n"}, "the rows have no field 'word'"),
        ({"train.jsonl": '{"text": "a"}', "test.csv": "word\n"}, None),  # nobody knows which of them a split is
        ({"train.jsonl": '{"text": "a"}', "odd.json": "[]"}, None),
        ({"train.jsonl": '{"text": "a"}', "dataset_infos.json": "{}"}, "the rows have no field 'word'"),
        ({"train.jsonl": '{"word": "a"}', "test.jsonl": LFS.decode()}, None),
        ({"train.jsonl": LFS.decode()}, "is a Git LFS pointer"),
        ({"README.md": "rows to come"}, None),
    ],
)
def test_the_fields_of_a_data_set_on_the_hub(files: dict[str, str], problem: str | None, tmp_path: Path) -> None:
    folder = dataset_cache(tmp_path, files)
    for path in ("a/b", str(folder)):  # a copy of a data set is checked like the cache's
        blamed = findings(source("Dataset", path))
        assert [finding.code for finding in blamed] == ([] if problem is None else ["HF902"])
        assert all(problem is not None and problem in finding.message for finding in blamed)


def test_files_have_no_configurations() -> None:
    Path("rows.jsonl").write_text('{"word": "a"}\n')
    text = source("Dataset", "rows.jsonl").replace('path = "rows.jsonl"', 'path = "rows.jsonl", config = "main"')
    code, place, message = only(text)
    assert (code, place) == ("HF902", line(text, "source ="))
    assert message == "'rows.jsonl' has no configurations: only data sets on the hub have them"


def test_a_path_that_may_be_of_another_run_is_no_name_on_the_hub() -> None:
    output = RUN.split("output = ")[1].split('"')[1].split("/")[0]
    [finding] = findings(source("Dataset", f"{output}/rows"))
    assert (finding.code, "there is no" in finding.message) == ("HF902", True)
