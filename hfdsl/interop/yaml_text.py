"""YAML files with the place of every key; PyYAML is imported when a file is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hfdsl.graph.spans import Span
from hfdsl.interop.settings import Setting
from hfdsl.interop.text import ReadError, SourceText
from hfdsl.interop.values import scalar

MAX_KEYS = 20_000
MAX_DEPTH = 40


def read_yaml(source: SourceText) -> list[Setting]:
    """The leaves of a YAML file, keys joined by dots, each with its place; lists and empty tables are leaves.

    Raises:
        ReadError: HF970 for a text that is no YAML, for one that is not a table, and where PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise ReadError(
            "PyYAML reads YAML files and is not installed: pip install 'hfdsl[interop]'", Span(source.file, 1)
        ) from None
    try:
        node = _composed(source, yaml)
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise ReadError(f"'{source.file}' is not a table of keys and values", Span(source.file, 1))
        return list(_Leaves(source, yaml).below(node, "", 0))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        span = Span(source.file, mark.line + 1, mark.column) if mark is not None else Span(source.file, 1)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None)
        problem = reason or "a character that YAML does not have"
        raise ReadError(f"no YAML: {problem}", span) from None
    except RecursionError:
        raise ReadError("no configuration: it is nested too deep", Span(source.file, 1)) from None


def _composed(source: SourceText, yaml: Any) -> Any:
    try:
        return yaml.compose(source.text, Loader=yaml.SafeLoader)
    except (ValueError, OverflowError):
        raise ReadError("no YAML: an escape that is no character", Span(source.file, 1)) from None


class _Leaves:
    """The leaves of the nodes of a file, at most ``MAX_KEYS`` keys and values."""

    def __init__(self, source: SourceText, yaml: Any) -> None:
        self._source, self._yaml, self._count = source, yaml, 0
        self._lines = source.text.split("\n")

    def below(self, node: Any, prefix: str, depth: int) -> Iterator[Setting]:
        if depth > MAX_DEPTH:
            raise ReadError(f"nested more than {MAX_DEPTH} deep", self._span(node))
        for key_node, value_node in node.value:
            self._count += 1
            if self._count > MAX_KEYS:
                raise ReadError(f"more than {MAX_KEYS:,} keys", self._span(key_node))
            if not isinstance(key_node, self._yaml.ScalarNode):
                raise ReadError("a key that is not a text", self._span(key_node))
            key = f"{prefix}.{key_node.value}" if prefix else str(key_node.value)
            if isinstance(value_node, self._yaml.MappingNode) and value_node.value:
                yield from self.below(value_node, key, depth + 1)
            else:
                yield Setting(
                    key,
                    self._value(value_node, depth),
                    self._span(key_node),
                    self._span(value_node),
                    self._text(value_node),
                )

    def _text(self, node: Any) -> str | None:
        """The text of a scalar without quotes, which an edit may replace."""
        plain = isinstance(node, self._yaml.ScalarNode) and node.style is None
        return node.value if plain and node.start_mark.line == node.end_mark.line else None

    def _value(self, node: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ReadError(f"nested more than {MAX_DEPTH} deep", self._span(node))
        self._count += 1
        if self._count > MAX_KEYS:
            raise ReadError(f"more than {MAX_KEYS:,} values", self._span(node))
        if isinstance(node, self._yaml.SequenceNode):
            return [self._value(item, depth + 1) for item in node.value]
        if isinstance(node, self._yaml.MappingNode):
            return {str(k.value): self._value(v, depth + 1) for k, v in node.value}
        if node.style is not None:
            return node.value
        if node.tag == "tag:yaml.org,2002:str":
            value = scalar(node.value)
            return value if isinstance(value, float) else node.value  # 1e-6 is a text in YAML 1.1
        if node.tag == "tag:yaml.org,2002:null":
            return None
        if node.tag == "tag:yaml.org,2002:bool":
            return node.value.lower() in ("true", "yes", "on")
        return scalar(node.value)

    def _span(self, node: Any) -> Span:
        start, end = node.start_mark, node.end_mark
        lines = self._lines

        def column(mark: Any) -> int:
            return len(lines[mark.line][: mark.column].encode()) if mark.line < len(lines) else 0

        return Span(self._source.file, start.line + 1, column(start), end.line + 1, column(end))
