"""A page about a run in plain words: sentences that follow from a configuration, in sections.

A sentence that needs a value which is not known is left out, and the page ends with the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from hfdsl.interop.settings import Configuration, NotKnown

WIDTH = 110

Sentence = Callable[[Configuration], str]
"""A function from a configuration to a sentence; an empty text if there is nothing to say."""

Outline = Mapping[str, Sequence[Sentence]]
"""The sections of a page by their titles."""


@dataclass(frozen=True, slots=True)
class Page:
    """The sections of a page with their sentences, and why some are missing."""

    title: str
    sections: Mapping[str, tuple[str, ...]]
    not_known: tuple[str, ...]

    def __str__(self) -> str:
        lines = [self.title]
        for title, sentences in self.sections.items():
            lines += ["", title, *(_item(sentence) for sentence in sentences)]
        if self.not_known:
            lines += ["", "Not known", *(_item(reason) for reason in self.not_known)]
        return "\n".join(lines)


def page(title: str, outline: Outline, configuration: Configuration, unread: Iterable[str] = ()) -> Page:
    """The page of a configuration."""
    sections, not_known = dict[str, tuple[str, ...]](), dict.fromkeys(unread)
    for heading, sentences in outline.items():
        texts = list[str]()
        for sentence in sentences:
            try:
                texts.append(sentence(configuration))
            except NotKnown as error:
                not_known[f"{error.key}: {error.reason}"] = None
        if any(texts):
            sections[heading] = tuple(text for text in texts if text)
    return Page(title, sections, tuple(not_known))


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> [counted(1, "row"), counted(2048, "row"), counted(2, "mini-batch")]
    ['1 row', '2,048 rows', '2 mini-batches']
    """
    plural = noun if number == 1 else f"{noun}es" if noun.endswith(("ch", "ss")) else f"{noun}s"
    return f"{number:,} {plural}"


def _item(text: str) -> str:
    return fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
