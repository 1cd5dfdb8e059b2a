"""Conversations: the tokens of ``apply_chat_template``, and an error with row and field for all that is not a text."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import DataError
from hfdsl.rl.batches import Prompts, Sequences
from hfdsl.rl.data.feed import Feed
from hfdsl.rl.data.order import Cursor
from hfdsl.rl.data.prompts import Encoder, Prompt, formatted
from hfdsl.rl.data.sources import JsonLines
from hfdsl.rl.data.tokenizers import Characters, Pretrained, load_tokenizer
from hfdsl.rl.training.typed import build

TEMPLATE = """\
{%- if tools %}<|turn|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and loop.nextitem is defined and loop.nextitem.role == 'assistant' %}
{{- raise_exception('two answers in a row') }}{% endif %}<|turn|>{{ message.role }}
{{ (message.content or '') | trim }}
{%- for call in message.tool_calls or [] %}<call>{{ call | tojson }}</call>{% endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|turn|>assistant
{% if thinking is defined and not thinking %}<no thoughts>
{% endif %}{% endif %}"""

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


@cache
def tokenizer() -> Any:
    """Byte-level BPE with merges, special tokens and a chat template, as models of the field have them."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    corpus = ["What is two plus two? It is four.", "assistant user system tools", "<call></call> add the numbers"] * 4
    trained.train_from_iterator(corpus, vocab_size=320, min_frequency=2, show_progress=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<|end|>", pad_token="<|pad|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    fast.chat_template = TEMPLATE
    return fast


def expected(messages: list[dict[str, Any]], **arguments: Any) -> list[int]:
    """What transformers makes of a conversation."""
    ids: list[int] = tokenizer().apply_chat_template(
        messages, tokenize=True, return_dict=False, **{"add_generation_prompt": True, **arguments}
    )
    return ids


def prompt_of(row: dict[str, Any], **fields: Any) -> list[int]:
    return Encoder(Prompt(messages="messages", **fields), tokenizer(), 4096).encoded(row, "row 7").prompt


texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["2 + 2?", " four ", "<|end|>", "é\n"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A system message or none, and turns that end with a user's or a tool's."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        messages.append({"role": "user", "content": draw(texts)})
        if draw(st.booleans()):
            messages.append({"role": "assistant", "content": draw(st.none() | texts), "tool_calls": [CALL]})
            messages.append({"role": "tool", "content": draw(texts), "name": "add"})
        messages.append({"role": "assistant", "content": draw(texts)})
    return [*messages, {"role": draw(st.sampled_from(["user", "tool"])), "content": draw(texts)}]


@given(conversations(), st.sampled_from([None, [TOOL], [TOOL, TOOL]]), st.booleans())
def test_prompts_are_those_of_transformers(messages: list[dict[str, Any]], tools: Any, of_the_row: bool) -> None:
    row = {"messages": messages, "functions": tools}
    fixed = tuple(tools) if tools else None
    assert prompt_of(row, tools="functions" if of_the_row else fixed) == expected(messages, tools=tools)


@given(conversations(), texts)
def test_a_system_message_goes_before_those_that_begin_with_none(messages: list[dict[str, Any]], system: str) -> None:
    has_one = messages[0]["role"] == "system"
    full = messages if has_one else [{"role": "system", "content": system}, *messages]
    assert prompt_of({"messages": messages}, system=system) == expected(full)


@given(conversations(), texts)
def test_a_demonstration_is_the_conversation_cut_before_its_answer(messages: list[dict[str, Any]], answer: str) -> None:
    messages[-1]["role"] = "user"
    whole = [*messages, {"role": "assistant", "content": answer}]
    encoder = Encoder(Prompt(messages="messages"), tokenizer(), 4096, 512)
    encoded = encoder.encoded({"messages": whole}, "row 7")
    assert encoded.prompt == expected(messages)
    assert encoded.responses[0][-1] == tokenizer().eos_token_id
    line_end = tokenizer()("\n", add_special_tokens=False)["input_ids"]
    assert tokenizer().decode([*encoded.prompt, *encoded.responses[0], *line_end]) == tokenizer().decode(
        expected(whole, add_generation_prompt=False)
    )
    same = Encoder(Prompt(messages="messages"), tokenizer(), 4096).text({"messages": messages}, "row 7")
    assert encoder.text({"messages": whole}, "row 7") == same, "so that an evaluation holds it out"


@given(conversations(), texts, texts)
def test_a_pair_is_two_demonstrations_of_one_prompt(messages: list[dict[str, Any]], better: str, worse: str) -> None:
    messages[-1]["role"] = "user"
    fields = {
        name: [*messages, {"role": "assistant", "content": text}]
        for name, text in (("chosen", better), ("rejected", worse))
    }
    pairs = Encoder(Prompt(messages="chosen"), tokenizer(), 4096, 512, pairs=True)
    demonstrations = [
        Encoder(Prompt(messages=name), tokenizer(), 4096, 512).encoded(fields, "row 7") for name in fields
    ]
    encoded = pairs.encoded(fields, "row 7")
    assert encoded.prompt == demonstrations[0].prompt == demonstrations[1].prompt
    assert encoded.responses == (*demonstrations[0].responses, *demonstrations[1].responses)
    changed = {**fields, "rejected": [{"role": "user", "content": "?"}, fields["rejected"][-1]]}
    if changed["rejected"][:-1] != messages:
        with pytest.raises(DataError, match="HF902: row 7: the conversations 'chosen' and 'rejected' differ before"):
            pairs.encoded(changed, "row 7")


def test_further_arguments_reach_the_template() -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    quiet = prompt_of({"messages": messages}, template_arguments={"thinking": False})
    assert quiet == expected(messages, thinking=False) != expected(messages)


def test_a_text_is_a_conversation_of_one_message() -> None:
    encoder = Encoder(Prompt("{a} + {b}?", chat=True, system="Add.", tools=(TOOL,)), tokenizer(), 4096)
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 3.5?"}]
    assert encoder.encoded({"a": 2, "b": 3.5}, "row 7").prompt == expected(messages, tools=[TOOL])


def test_keys_that_a_table_fills_up_with_none_are_left_out() -> None:
    messages = [{"role": "user", "content": "2 + 2?", "tool_calls": None, "name": None}]
    assert prompt_of({"messages": messages}) == expected([{"role": "user", "content": "2 + 2?"}])


USER = {"role": "user", "content": "2 + 2?"}
WRONG: list[tuple[Any, str]] = [
    ("2 + 2?", "its field 'messages' is a text, expected a list of messages"),
    (None, "its field 'messages' is None, expected a list of messages"),
    (USER, "its field 'messages' is an object, expected a list of messages"),
    ([], "its field 'messages' has no messages"),
    ([USER, "four"], "'messages[1]' is a text, expected an object with 'role' and 'content'"),
    ([{"content": "a"}], "'messages[0]': 'role' is missing, expected a text such as 'user'"),
    ([{"role": 3, "content": "a"}], "'messages[0]': 'role' is 3, expected a text such as 'user'"),
    ([USER, {"role": "user"}], "'messages[1]': 'content' is missing, expected a text"),
    ([{**USER, "content": None}], "'messages[0]': 'content' is None, expected a text"),
    ([{**USER, "content": 4}], "'messages[0]': 'content' is 4, expected a text"),
    ([{**USER, "content": ["a"]}], "'messages[0]': 'content' is a list, expected a text"),
    ([{**USER, "content": {"text": "a"}}], "'messages[0]': 'content' is an object, expected a text"),
    ([USER, {"role": "assistant", "content": "four"}], "the conversation ends with the assistant's answer; a prompt"),
    (
        [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER],
        "the chat template rejects the conversation: TemplateError: two answers in a row",
    ),
]


@pytest.mark.parametrize(("messages", "text"), WRONG, ids=str)
def test_what_is_no_conversation_is_reported_with_its_row_and_field(messages: Any, text: str) -> None:
    with pytest.raises(DataError) as caught:
        prompt_of({"messages": messages})
    assert caught.value.code == "HF902"
    assert caught.value.message.startswith(f"row 7: {text}")


def test_what_is_no_demonstration_is_reported() -> None:
    encoder = Encoder(Prompt(messages="messages"), tokenizer(), 4096, 512)
    for messages in ([USER], [{"role": "assistant", "content": "four"}]):
        with pytest.raises(DataError, match="HF902: row 7: a demonstration is a conversation that ends with the assis"):
            encoder.encoded({"messages": messages}, "row 7")


def test_tools_that_are_none_are_reported() -> None:
    for tools, text in (("add", "is a text, expected a list of tools"), (["add"], r"'tools\[0\]' is a text")):
        with pytest.raises(DataError, match=f"HF902: row 7: .*{text}"):
            prompt_of({"messages": [USER], "tools": tools}, tools="tools")
    with pytest.raises(DataError, match="HF902: row 7: the row has no field 'tols'; did you mean 'tools'"):
        prompt_of({"messages": [USER], "tools": []}, tools="tols")


@pytest.mark.parametrize("value", [None, True, ["a"], {"a": 1}, [USER]], ids=str)
def test_what_is_no_text_is_never_written_into_a_template(value: Any) -> None:
    with pytest.raises(DataError, match=r"HF902: row 7: its field 'question' is .*, expected a text") as caught:
        formatted("Q: {question}", {"question": value}, "row 7")
    assert ("set prompt.messages = 'question'" in caught.value.message) == (value == [USER])
    with pytest.raises(DataError, match=r"HF902: row 7: its field 'm\[word\]' is "):
        formatted("{m[word]}", {"m": {"word": value}}, "row 7")
    assert formatted("{m!r}", {"m": value}, "row 7") == repr(value), "asked for"


def test_a_conversation_needs_a_template_and_the_rest_a_conversation() -> None:
    with pytest.raises(DataError, match="HF904: the tokenizer has no template for conversations; set its chat_templ"):
        Encoder(Prompt(messages="messages"), load_tokenizer(Characters("abc")), 8)
    for fields in ({"system": "Be brief."}, {"tools": (TOOL,)}, {"template_arguments": {"thinking": False}}):
        with pytest.raises(DataError, match=r"HF902: a prompt with .* is a conversation: set chat = true, or name the"):
            Prompt(**fields)
        assert Prompt(messages="messages", **fields)


def test_a_file_of_conversations_becomes_batches(tmp_path: Path) -> None:
    """From a table of TOML and JSON lines to padded prompts, with lengths and bad rows as for texts."""
    tokenizer().save_pretrained(tmp_path / "tokenizer")
    loaded = load_tokenizer(Pretrained(str(tmp_path / "tokenizer")))
    rows = [{"chat": [USER]}, {"chat": [USER, {"role": "assistant", "content": "four"}, USER]}, {"chat": "2 + 2?"}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    prompt = build(Prompt, {"messages": "chat", "system": "Be brief.", "tools": [TOOL]})
    source = JsonLines(str(tmp_path / "rows.jsonl")).open()
    batch, cursor = Feed(source, Encoder(prompt, loaded, 512), 4, "skip").take(Cursor(0))
    assert isinstance(batch, Prompts)
    assert cursor.skipped > 0
    for ids, mask, row in zip(batch.ids.tensor, batch.mask.tensor, batch.task.objects, strict=True):
        full = [{"role": "system", "content": "Be brief."}, *row["chat"]]
        assert ids[mask].tolist() == expected(full, tools=[TOOL])
        assert mask[-1]
    with pytest.raises(DataError, match=r"HF902: .*rows.jsonl:3: its field 'chat' is a text, expected a list of"):
        Encoder(prompt, loaded, 512).encoded(source.row(2), source.place(2))
    with pytest.raises(DataError, match=r"HF903: .*rows.jsonl:1: its prompt has \d+ tokens, more than P = 8"):
        Encoder(prompt, loaded, 8).encoded(source.row(0), source.place(0))
    shown = [{"chat": [USER, {"role": "assistant", "content": "four"}]}] * 2
    (tmp_path / "shown.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in shown))
    encoder = Encoder(prompt, loaded, 512, 16)
    demonstrations, _ = Feed(JsonLines(str(tmp_path / "shown.jsonl")).open(), encoder, 2).first()
    assert isinstance(demonstrations, Sequences)
    response = demonstrations.ids.tensor[0, -16:][demonstrations.response_mask.tensor[0]]
    assert loaded.decode(response) == "four<|end|>"
