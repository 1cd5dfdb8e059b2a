"""Optional roles: a dataflow with one is checked, compiled and run as with the role, or as without it."""

from __future__ import annotations

from typing import Any

import pytest

import hfdsl as hf


class B(hf.Dim):
    """Rows."""


class Words(hf.Batch):
    text: hf.Obj[str, B]


class Writer(hf.Worker):
    def __init__(self, ending: str = "!") -> None:
        self.ending = ending

    @hf.register(hf.Dispatch.DP_PROTO)
    def write(self, words: Words) -> Words:
        return Words(text=[word + self.ending for word in words.text.objects])


class Loud(Writer):
    @hf.register(hf.Dispatch.DP_PROTO)
    def write(self, words: Words) -> Words:
        return Words(text=[word.upper() for word in words.text.objects])


@hf.dataflow
def edit(words: Words, writer: Writer, editor: Writer | None = None, *, times: int = 1) -> Words:
    written = writer.write(words)
    if editor is not None:
        for _ in range(times):
            written = editor.write(written)
    return written


@hf.dataflow
def twice(words: Words, writer: Writer, *, editor: Writer | None = None) -> Words:
    return edit(edit(words, writer, editor), writer)


WORDS = Words(text=["a", "b"])


def deployment(**roles: str) -> hf.Deployment:
    pool = hf.ResourcePool([1], use_gpu=False)
    return hf.Deployment(**{name: hf.place(Writer, ending, pool=pool) for name, ending in roles.items()})


def text(result: Words) -> list[str]:
    return list(result.text.objects)


@pytest.mark.parametrize(
    ("flow", "alone", "edited"), [(edit, ["a!", "b!"], ["a!?", "b!?"]), (twice, ["a!!", "b!!"], ["a!?!", "b!?!"])]
)
def test_the_deployment_decides(flow: hf.Dataflow[..., Any], alone: list[str], edited: list[str]) -> None:
    for roles, expected in (({"writer": "!"}, alone), ({"writer": "!", "editor": "?"}, edited)):
        places = deployment(**roles)
        assert flow.check(places).codes == ()
        with flow.compile(places, {B: 2}).launch("local") as running:
            assert text(running.step(WORDS)) == expected
        workers = {name: Writer(ending) for name, ending in roles.items()}
        assert text(flow(WORDS, **workers)) == expected


def test_options_and_optional_roles_are_apart() -> None:
    assert edit.options == {"times": 1}
    assert twice.options == {}
    assert edit.optional_roles == {"editor": Writer}
    assert list(edit.trace().roles) == ["writer"]
    present = edit.given(editor=Writer, times=3)
    assert (list(present.trace().roles), present.options) == (["writer", "editor"], {"times": 3})
    assert len(present.trace().calls) == 4
    assert present.given(editor=None, times=1).trace().roles == edit.trace().roles
    assert edit.given(editor=Loud).trace().roles["editor"] is Loud
    with pytest.raises(hf.WiringError, match="HF206: role 'editor' of 'edit' is Writer or None, got <class 'int'>"):
        edit.given(editor=int)


def test_a_role_that_is_asked_for_needs_a_place_and_a_worker() -> None:
    present = edit.given(editor=Writer)
    assert present.check(deployment(writer="!")).codes == ("HF507",)
    with pytest.raises(hf.WiringError, match="HF206: role 'editor' of 'edit' takes an instance of Writer"):
        present(WORDS, Writer())
    with pytest.raises(hf.WiringError, match="HF206: role 'editor' of 'edit' takes an instance of Writer, got str"):
        edit(WORDS, Writer(), "?")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is refused

    @hf.dataflow
    def outer(words: Words, writer: Writer) -> Words:
        return present(words, writer)

    assert outer.check(deployment(writer="!")).codes == ("HF203",)


def test_the_place_of_another_class_is_refused() -> None:
    class Reader(hf.Worker):
        pass

    pool = hf.ResourcePool([1], use_gpu=False)
    places = hf.Deployment(writer=hf.place(Writer, pool=pool), editor=hf.place(Reader, pool=pool))
    assert edit.check(places).codes == ("HF515",)


def test_an_optional_role_has_a_default() -> None:
    @hf.dataflow
    def wrong(words: Words, writer: Writer, editor: Writer | None) -> Words:
        return writer.write(words)

    [finding] = wrong.check()
    assert "give an optional role the default None" in " ".join(finding.notes)
