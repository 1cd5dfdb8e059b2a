"""Rows of files and of reasoning-gym; a row that cannot be read is reported with its file, line and field."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hfdsl.errors import DataError
from hfdsl.rl.data.conversations import messages_of
from hfdsl.rl.data.sources import Dataset, JsonLines, ReasoningGym, Source


def error_of(source: Source, index: int | None = None) -> str:
    with pytest.raises(DataError) as caught:
        source.open().row(index or 0)
    return str(caught.value)


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "é?"}\n\n  \n{"question": "b", "n": 2}', "utf-8")
    rows = JsonLines(str(file)).open()
    assert len(rows) == 2
    assert [rows.row(1), rows.row(0)] == [{"question": "b", "n": 2}, {"question": "é?"}]
    assert [rows.place(0), rows.place(1)] == [f"{file}:1", f"{file}:4"]


def test_a_bad_line_is_reported_with_its_number(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"a": 1}\n{"a": \n[1]\n\xff\n')
    assert error_of(JsonLines(str(file)), 1).startswith(f"HF902: {file}:2: not JSON: Expecting value at character 8")
    assert error_of(JsonLines(str(file)), 2) == f"HF902: {file}:3: a row must be a JSON object, got list"
    assert error_of(JsonLines(str(file)), 3).startswith(f"HF902: {file}:4: not JSON: 'utf-8' codec")


def test_a_file_that_is_not_there_or_empty_is_reported(tmp_path: Path) -> None:
    assert (
        error_of(JsonLines(str(tmp_path / "no"))) == f"HF902: '{tmp_path}/no' cannot be read: No such file or directory"
    )
    (tmp_path / "empty").write_text("\n")
    assert error_of(JsonLines(str(tmp_path / "empty"))) == f"HF902: '{tmp_path}/empty' has no rows"


def test_reasoning_gym_draws_an_entry_from_its_seed() -> None:
    from_three = ReasoningGym("spell_backward", 10, seed=3, options={"max_word_len": 4}).open()
    from_five = ReasoningGym("spell_backward", 4, seed=5, options={"max_word_len": 4}).open()
    assert len(from_three) == 10
    assert from_three.row(2)["question"] == from_five.row(0)["question"]
    assert len(from_three.row(0)["answer"]) <= 4
    assert from_three.place(2) == "reasoning-gym 'spell_backward', entry 2"


def test_a_data_set_that_is_not_there_is_reported() -> None:
    assert error_of(ReasoningGym("spell_backwards", 4)) == (
        "HF902: reasoning-gym has no data set 'spell_backwards'; did you mean 'spell_backward'?"
    )
    assert "'spell_backward' does not take {'longest': 4}" in error_of(
        ReasoningGym("spell_backward", 4, 0, {"longest": 4})
    )
    assert "does not take {'min_word_len': 9, 'max_word_len': 2}: " in error_of(
        ReasoningGym("spell_backward", 4, 0, {"min_word_len": 9, "max_word_len": 2})
    )


ROWS = [{"question": f"q{i}", "n": i} for i in range(5)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow", "folder", "splits"])
def test_data_sets_of_hugging_face(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    entries, path, split = datasets.Dataset.from_list(ROWS), tmp_path / f"rows.{kind}", None
    if kind == "parquet":
        entries.to_parquet(path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "folder":
        entries.save_to_disk(path)
    elif kind == "splits":
        datasets.DatasetDict({"train": entries, "test": entries}).save_to_disk(path)
        split = "train"
    else:
        entries.save_to_disk(tmp_path / "there")
        path = next((tmp_path / "there").glob("*.arrow"))
    rows = Dataset(str(path), split).open()
    assert [rows.row(i) for i in range(len(rows))] == ROWS
    assert rows.place(3) == f"{path}, row 3"
    assert f"'{path}' has no configurations" in error_of(Dataset(str(path), split, "main"))
    if kind == "splits":
        assert error_of(Dataset(str(path))) == f"HF902: '{path}' has splits; set split= to one of train, test"


def test_a_data_set_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    assert error_of(Dataset(str(tmp_path / "no.parquet"))) == f"HF902: there is no '{tmp_path}/no.parquet'"
    (tmp_path / "rows.xml").write_text("")
    assert "is neither one of .parquet, .arrow, .json, .jsonl, .csv, nor the folder" in error_of(
        Dataset(str(tmp_path / "rows.xml"))
    )
    (tmp_path / "rows.arrow").write_text("nothing")
    assert f"'{tmp_path}/rows.arrow' cannot be read: " in error_of(Dataset(str(tmp_path / "rows.arrow")))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_a_pattern_reads_several_files_in_the_order_of_their_names(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets, pyarrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for number, part in enumerate((ROWS[:2], ROWS[2:])):
        table, file = pyarrow.Table.from_pylist(part), tmp_path / f"train-{number}.{kind}"
        if kind == "parquet":
            parquet.write_table(table, file, row_group_size=1)
        elif kind == "jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in part))
        else:
            with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    rows = Dataset(f"{tmp_path}/train-*.{kind}").open()
    assert [rows.row(i) for i in range(len(rows))] == ROWS
    (tmp_path / "train-2.csv").write_text("question,n\n")
    assert "matches files of several kinds" in error_of(Dataset(f"{tmp_path}/train-*"))


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]


def test_conversations_in_parquet_are_lists_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As other tools write them: structs with nulls, arrays of numpy in pandas, and several groups of rows."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    named = [*MESSAGES, {"role": "user", "name": "ann", "content": "And 3 + 3?"}]
    frame = pandas.DataFrame({"messages": [numpy.array(MESSAGES), named] * 50, "answer": ["4", None] * 50})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=10)
    rows = Dataset(str(tmp_path / "rows.parquet")).open()
    assert len(rows) == 100
    assert messages_of(rows.row(98), "messages", "") == MESSAGES
    assert messages_of(rows.row(99), "messages", "") == named
    assert rows.row(99)["answer"] is None


CARD = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train*}, {split: test, path: main/test*}]
- config_name: hard
  data_files: [{split: train, path: hard/train*}]
---
"""


def snapshot(cache: Path) -> Path:
    """A data set of two configurations in a cache as huggingface_hub lays it out."""
    root = cache / "datasets--org--sums"
    folder = root / "snapshots" / ("1" * 40)
    for name in ("main/train", "main/test", "hard/train"):
        file = folder / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps({"question": f"{name} {i}"}) + "\n" for i in range(3)))
    (folder / "README.md").write_text(CARD)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("1" * 40)
    return folder


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a network, whose cache has the data set org/sums."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return snapshot(tmp_path / "cache")


@pytest.mark.parametrize(("config", "split"), [("main", "train"), ("main", "test"), ("hard", "train")])
def test_a_data_set_of_the_hub_is_read_from_its_cache(offline: Path, config: str, split: str) -> None:
    for path in ("org/sums", "org/sums@main", f"org/sums@{'1' * 40}", str(offline)):
        rows = Dataset(path, split, config).open()
        assert [rows.row(i)["question"] for i in range(len(rows))] == [f"{config}/{split} {i}" for i in range(3)]
        assert rows.place(2) == f"{path}, row 2"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (Dataset("org/sum", "train"), "'org/sum' is not in this machine's cache of the Hugging Face hub"),
        (Dataset("org/sums@v2", "train", "main"), "hf download org/sums --repo-type dataset --revision v2"),
        (Dataset("org/sums", "train"), "available configs: ['main', 'hard']"),
        (Dataset("org/sums", "train", "mian"), "'mian' not found. Available: ['main', 'hard']"),
        (Dataset("org/sums", "trian", "main"), "Should be one of ['train', 'test']"),
        (Dataset("org/sums", config="main"), "'org/sums' has splits; set split= to one of train, test"),
    ],
)
def test_what_a_data_set_of_the_hub_does_not_have(offline: Path, source: Dataset, problem: str) -> None:
    message = error_of(source)
    assert message.startswith("HF902: ")
    assert problem in message
    assert "\n" not in message


class Hub(BaseHTTPRequestHandler):
    """A hub that has no data set."""

    def do_GET(self) -> None:
        """What the real one answers."""
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.mark.parametrize("answers", [True, False])
def test_a_hub_that_does_not_answer_is_not_one_that_has_no_such_data_set(
    answers: bool, offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    if answers:
        thread.start()
    else:
        server.server_close()
    try:
        if answers:
            assert "the Hugging Face hub gives no data set 'org/sums': RepositoryNotFoundError" in error_of(
                Dataset("org/sums", "train", "main")
            )
        else:
            assert len(Dataset("org/sums", "train", "main").open()) == 3
            assert "'org/none' is not in this machine's cache" in error_of(Dataset("org/none"))
    finally:
        if answers:
            server.shutdown()
            server.server_close()
