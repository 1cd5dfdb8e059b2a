"""Batches of prompts: tokens, padding, order, and what is done about bad rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import DataError
from hfdsl.rl.batches import Pairs, Prompts, Sequences
from hfdsl.rl.data.feed import Feed, Prefetcher
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoder, Prompt
from hfdsl.rl.data.tokenizers import Characters, Pretrained, load_tokenizer

LETTERS = Characters("abcdefghij>", lowercase=True)


class Listed:
    """Rows of a list; ``None`` is one that cannot be read."""

    def __init__(self, *rows: dict[str, Any] | None) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        if row is None:
            raise DataError("HF902", f"{self.place(index)}: broken")
        return row

    def place(self, index: int) -> str:
        return f"row {index}"


def words(*texts: str) -> Listed:
    return Listed(*({"word": text} for text in texts))


def feed(rows: Listed, count: int, length: int = 4, **options: Any) -> Feed:
    return Feed(rows, Encoder(Prompt("{word}>"), load_tokenizer(LETTERS), length), count, **options)


def taken(prompts: Prompts | Sequences | Pairs) -> list[str]:
    assert isinstance(prompts, Prompts)
    return [task["word"] for task in prompts.task.objects]


def test_prompts_are_padded_on_the_left() -> None:
    prompts, texts = feed(words("ab", "C", "jji"), 3).first()
    assert isinstance(prompts, Prompts)
    assert prompts.ids.tensor.tolist() == [[0, 3, 4, 13], [0, 0, 5, 13], [12, 12, 11, 13]]
    assert torch.equal(prompts.mask.tensor, prompts.ids.tensor != 0)
    assert taken(prompts) == ["ab", "C", "jji"]
    assert texts == {"ab>", "C>", "jji>"}


def test_demonstrations_have_their_response_on_the_right() -> None:
    rows = Listed({"word": "ab", "back": "ba"}, {"word": "c", "back": "c"})
    encoder = Encoder(Prompt("{word}>", answer="{back}"), load_tokenizer(LETTERS), 4, 3)
    shown, _ = Feed(rows, encoder, 2).first()
    assert isinstance(shown, Sequences)
    assert shown.ids.tensor.tolist() == [[0, 3, 4, 13, 4, 3, 1], [0, 0, 5, 13, 5, 1, 0]]
    assert shown.mask.tensor.tolist() == [[False, *[True] * 6], [False, False, *[True] * 4, False]]
    assert shown.response_mask.tensor.tolist() == [[True, True, True], [True, True, False]]


@given(st.integers(1, 7), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 99))
def test_batches_go_on_from_any_cursor(count: int, bad: list[int], seed: int) -> None:
    """From each cursor come the batches that came after it; in an epoch every good row comes, and comes once."""
    rows: list[dict[str, Any] | None] = [{"word": letter} for letter in "abcdefghij"]
    for index in bad:
        rows[index] = None
    source = feed(Listed(*rows), count, on_bad="skip", held_out=frozenset({"j>"}))
    cursor, batches, cursors = Cursor(seed), [], []
    for _ in range(6):
        cursors.append(cursor)
        prompts, cursor = source.take(cursor)
        batches.append(taken(prompts))
    for i, begun in enumerate(cursors):
        again = begun
        for batch in batches[i:]:
            prompts, again = source.take(again)
            assert taken(prompts) == batch
        assert again == cursor
    good = sorted(row["word"] for row in rows if row is not None and row["word"] != "j")
    flat = [word for batch in batches for word in batch]
    for start in range(0, len(flat) - len(good) + 1, len(good)):
        assert sorted(flat[start : start + len(good)]) == good
    looked_at = cursor.epoch * 10 + cursor.position
    assert looked_at == len(flat) + cursor.skipped + cursor.held_out


@given(st.integers(1, 7), st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_batches_made_ahead_are_the_same_in_any_order_of_cursors(count: int, order: list[int]) -> None:
    source = feed(words(*"abcdefghij"), count)
    cursors = [Cursor(3)]
    for _ in range(5):
        cursors.append(source.take(cursors[-1])[1])
    with Prefetcher(source) as ahead:
        for cursor in (cursors[i] for i in order):
            (batch, after), (right, right_after) = ahead.take(cursor), source.take(cursor)
            assert (taken(batch), after) == (taken(right), right_after)


def test_a_bad_row_of_a_batch_made_ahead_is_reported_where_it_is_taken() -> None:
    size = 3
    cursor = next(c for c in map(Cursor, range(99)) if c.moved(1, size).row(size) == 0 and c.row(size) == 1)
    rows = Listed(None, {"word": "b"}, {"word": "c"})
    with Prefetcher(feed(rows, 1)) as ahead:
        batch, after = ahead.take(cursor)
        assert taken(batch) == ["b"]
        with pytest.raises(DataError, match="HF902: row 0: broken"):
            ahead.take(after)
        assert taken(ahead.take(after.moved(1, size))[0]) == ["c"]
    with Prefetcher(feed(rows, 1)) as ahead:
        ahead.take(cursor)  # nobody takes the one after it


def refused(rows: Listed, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        feed(rows, 2, **options).take(Cursor(0))
    return str(caught.value)


def test_a_bad_row_is_reported() -> None:
    assert refused(Listed({"wird": "a"}, {"wird": "b"})) in {
        f"HF902: row {i}: the row has no field 'word'; did you mean 'wird'?" for i in (0, 1)
    }
    assert refused(words("abcd", "abcd")) in {
        f"HF903: row {i}: its prompt has 5 tokens, more than P = 4: 'abcd>'" for i in (0, 1)
    }
    assert "the tokenizer does not know all of 'aé>'" in refused(words("aé", "aé"))
    rows = Listed({"word": {"text": "a"}}, {"word": {"text": "b"}})
    with pytest.raises(DataError, match=r"HF902: row \d: the row does not fit '{word\[say\]}': KeyError: 'say'"):
        Feed(rows, Encoder(Prompt("{word[say]}"), load_tokenizer(LETTERS), 4), 1).take(Cursor(0))


def test_an_answer_that_is_too_long_is_reported() -> None:
    encoder = Encoder(Prompt("{word}>", answer="{word}"), load_tokenizer(LETTERS), 4, 2)
    with pytest.raises(DataError, match=r"HF903: row 0: its answer, with its end, has 3 tokens, more than R = 2"):
        Feed(words("ab"), encoder, 1).take(Cursor(0))


def test_bad_rows_are_skipped_and_counted_where_that_is_wanted() -> None:
    source = feed(Listed({"word": "a"}, None, {"x": 1}, {"word": "abcdef"}), 3, on_bad="skip")
    prompts, cursor = source.take(Cursor(0))
    assert taken(prompts) == ["a"] * 3
    assert cursor.skipped == cursor.epoch * 4 + cursor.position - 3 > 0


def test_a_source_without_a_row_to_take_is_reported() -> None:
    assert (
        refused(Listed(None, None), on_bad="skip") == "HF902: none of the 2 rows can be taken: all are bad or held out"
    )
    with pytest.raises(DataError, match="HF902: an evaluation of 3 prompts has only 2 rows to take"):
        feed(words("a", "b"), 3).first()


# -- tokenizers


def saved(tmp_path: Path, **changes: Any) -> Path:
    tokenizer = load_tokenizer(LETTERS)
    tokenizer.save_pretrained(tmp_path)
    if changes:
        import json

        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if (tmp_path / name).exists():
                stated = json.loads((tmp_path / name).read_text()) | changes
                present = {key: value for key, value in stated.items() if value is not None}
                (tmp_path / name).write_text(json.dumps(present))
    return tmp_path


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    loaded = load_tokenizer(Pretrained(str(saved(tmp_path))))
    assert loaded("badge>")["input_ids"] == load_tokenizer(LETTERS)("badge>")["input_ids"]
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)


def test_a_tokenizer_without_padding_is_reported(tmp_path: Path) -> None:
    folder = str(saved(tmp_path, pad_token=None))
    with pytest.raises(DataError) as caught:
        load_tokenizer(Pretrained(folder))
    assert str(caught.value) == (
        f"HF904: the tokenizer in '{folder}' has no padding token; name one with pad_token, for example its "
        "end of sequence '<end>'"
    )
    assert load_tokenizer(Pretrained(folder, pad_token="<end>")).pad_token_id == 1
    with pytest.raises(DataError, match=r"HF904: the tokenizer in .* has no token '<none>' to pad with"):
        load_tokenizer(Pretrained(folder, pad_token="<none>"))


def test_a_tokenizer_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="HF904: there is no tokenizer folder 'nowhere'; save one"):
        load_tokenizer(Pretrained("nowhere"))
    with pytest.raises(DataError, match=r"HF904: no tokenizer can be read from"):
        load_tokenizer(Pretrained(str(tmp_path)))
    with pytest.raises(DataError, match="HF904: an alphabet has every character once, got 'aa'"):
        Characters("aa")


def test_a_conversation_is_written_as_the_tokenizer_has_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="HF904: the tokenizer has no template for conversations"):
        Encoder(Prompt(chat=True), load_tokenizer(LETTERS), 8)
    template = (
        "{% for m in messages %}{{ m.role[0] }}{{ m.content }}>{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    speaking = Characters("abcdefghijsu>", lowercase=True)
    tokenizer = load_tokenizer(speaking)
    tokenizer.chat_template = template
    encoder = Encoder(Prompt("{word}", chat=True, system="bad"), tokenizer, 12)
    tokens = encoder.encoded({"word": "cab"}, "row 0").prompt
    assert tokenizer.decode(tokens) == "sbad>ucab>a"
    tokenizer.chat_template = None
    with pytest.raises(DataError, match="HF902: a prompt with a system text is a conversation"):
        Prompt(system="bad")


def test_pairs_have_the_better_response_first_and_no_preference_between_equal_ones() -> None:
    rows = Listed(*({"q": "ab", "good": good, "bad": bad} for good, bad in (("c", "dd"), ("e", "e"))))
    encoder = Encoder(Prompt("{q}>", answer="{good}", rejected="{bad}"), load_tokenizer(LETTERS), 4, 3, pairs=True)
    batch, after = Feed(rows, encoder, 2).take(Cursor(0))
    assert isinstance(batch, Pairs)
    prompt, end = [0, 3, 4, 13], 1
    responses = {"ab": [[5, end, 0], [6, 6, end]], "e": [[7, end, 0]] * 2}
    first, second = (responses["ab"], responses["e"])
    orders = [[*first, *second], [*second, *first]]  # an epoch has an order of its own
    assert batch.ids.tensor.tolist() in [[[*prompt, *response] for response in order] for order in orders]
    signs = batch.preference.tensor.view(2, 2).tolist()
    assert sorted(signs) == [[0, 0], [1, -1]]
    assert torch.equal(batch.response_mask.tensor, batch.ids.tensor[:, 4:] != 0)
    assert (after.epoch, after.position) == (1, 0)
