"""JSON schemas of configurations, from which editors complete and check TOML files.

A schema follows the rules of ``typed.value_of``, field by field, and takes the forms that a file may have beside plain
values:

======================================  ==================================================================
``learning_rate: float = 1e-6``         a number, with its default
``"$actor.model"``                      a string that begins with a dollar, in the place of any value
``seed: int | None = 0``                an integer, or ``"none"``
``source: ReasoningGym | JsonLines``    either table, with its own name as ``kind``
``Annotated[int, Within(at_least=1)]``  an integer with a ``minimum``
the string below a field                its ``description``
======================================  ==================================================================

References and ``"none"`` could be further members of an ``anyOf``. But if a table fits no member, an editor can only
say so at the table's head. So types are listed, ``"type": ["object", "string"]``: JSON schema applies ``properties`` to
objects only and ``pattern`` to strings only, and an editor marks the misspelled field itself.

``build`` refuses whatever a schema refuses. A schema does not know rules on several values: which dims there are,
whether a reference leads anywhere, whether ``slots`` goes with ``part_of``. Its keywords are in JSON schema since draft
6, which the TOML plugins of editors support.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from hfdsl.rl.training.run_config import RunConfig
from hfdsl.rl.training.toml.tables import as_table
from hfdsl.rl.training.typed import KIND, NONE, hints, is_dataclass_type, required
from hfdsl.types.bounds import LISTS, TABLES, Within, bounds_of, is_union

JsonSchema: TypeAlias = dict[str, Any]

DIALECT = "http://json-schema.org/draft-07/schema#"

REFERENCE = r"\$[A-Za-z_]\w*(\.\w+)*"

PLAIN: Mapping[Any, JsonSchema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Any: {},
    **{annotation: {"type": "array"} for annotation in LISTS},
    **{annotation: {"type": "object"} for annotation in TABLES},
}


def json_schema(kind: type, title: str) -> JsonSchema:
    """The schema of a file that is read as a dataclass, such as a ``RunConfig`` or a ``DeploymentConfig``.

    >>> from hfdsl.rl.training.run_config import CheckpointConfig
    >>> schema = json_schema(CheckpointConfig, "checkpoints")
    >>> schema["properties"]["keep"]["default"], schema["properties"]["keep"]["description"]
    (2, 'The number of checkpoints to keep, the newest ones.')
    """
    writer = _Writer()
    return {"$schema": DIALECT, "title": title, **writer.table(kind), "definitions": writer.definitions}


class _Writer:
    """Writes schemas, with those of tables as definitions by class."""

    def __init__(self) -> None:
        self.definitions: dict[str, JsonSchema] = {}
        self._names: dict[type, str] = {}

    def table(self, kind: type) -> JsonSchema:
        hints(kind)  # refuses annotations that cannot be read
        annotations, docs = get_type_hints(kind, include_extras=True), field_docs(kind)
        properties = {
            field.name: {
                **self._property(kind, field, annotations[field.name]),
                **({"description": _markdown(docs[field.name])} if field.name in docs else {}),
                **_default(field),
            }
            for field in fields(kind)
        }
        # A table may name its class even if it need not.
        properties.setdefault(KIND, {"enum": [kind.__name__]})
        run = issubclass(kind, RunConfig)
        # A file has to name its algorithm, although the class of a ready-made algorithm has it as a default.
        needed = [field.name for field in fields(kind) if required(field) or (run and field.name == "algorithm")]
        return {
            "type": "object",
            "description": _markdown(_first_paragraph(kind)),
            "properties": properties,
            "additionalProperties": False,
            **({"required": needed} if needed else {}),
        }

    def _property(self, kind: type, field: Field[Any], annotation: Any) -> JsonSchema:
        if issubclass(kind, RunConfig) and field.name == "deployment":
            annotation = annotation | str  # a path
        # A role's table need not name its kind: "roles" names the role's class.
        role = issubclass(kind, RunConfig) and field.name not in RunConfig.__dataclass_fields__
        return self._value(annotation, tagged=not role)

    def _value(self, annotation: Any, tagged: bool = True) -> JsonSchema:
        """The schema of an annotation's values, of a reference, and of ``"none"`` if the annotation takes None."""
        members = tuple(map(_plain, get_args(annotation) if is_union(annotation) else (annotation,)))
        return {**self._values(members, tagged), **_limits(bounds_of(annotation))}

    def _values(self, members: Sequence[Any], tagged: bool) -> JsonSchema:
        """The schema of the values of several annotations."""
        schemas = [schema for member in members if (schema := self._member(member)) is not None]
        if tagged and sum("$ref" in schema for schema in schemas) > 1:
            named = {"required": [KIND]}
            schemas = [{"allOf": [schema, named]} if "$ref" in schema else schema for schema in schemas]
        if {} in schemas:
            return {}
        # The definition of a table takes "none", which saves a second one; a field may not take it.
        tables = any(map(is_dataclass_type, members))
        not_none = {"not": {"enum": [NONE]}} if tables and type(None) not in members else {}
        if len(schemas) == 1 and "$ref" in schemas[0]:
            return {"allOf": schemas, **not_none}  # in an allOf, since draft 7 ignores a description beside a $ref
        if PLAIN[str] in schemas:
            return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        text = _text(type(None) in members)
        if len(schemas) == 1 and "type" in schemas[0]:
            return {**schemas[0], **text, "type": [schemas[0]["type"], "string"]}
        return {"anyOf": [*schemas, text], **not_none}

    def _member(self, annotation: Any) -> JsonSchema | None:
        """The schema of one member of a union; None for values that no table can have, such as functions."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if annotation in PLAIN:
            return PLAIN[annotation]
        if is_dataclass_type(annotation):
            return self._reference(annotation)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in LISTS and (origin is not tuple or arguments[1:] == (...,)):
            return {"type": "array", "items": self._value(arguments[0])}
        if origin is tuple:
            count = len(arguments)
            return {"type": "array", "items": [*map(self._value, arguments)], "minItems": count, "maxItems": count}
        if origin in TABLES and arguments[0] in (str, Any):
            return {"type": "object", "additionalProperties": self._value(arguments[1])}
        return None

    def _reference(self, kind: type) -> JsonSchema:
        """A reference to the definition of a class, which the first reference writes."""
        if kind not in self._names:
            names = self._names.values()
            name = kind.__name__ if kind.__name__ not in names else f"{kind.__module__}.{kind.__qualname__}"
            self._names[kind] = name
            table = self.table(kind)
            self.definitions[name] = {**table, **_text(none=True), "type": ["object", "string"]}
        return {"$ref": f"#/definitions/{self._names[kind]}"}


def _plain(annotation: Any) -> Any:
    """An annotation without the bounds of its numbers."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _limits(bounds: Within | None) -> JsonSchema:
    """The bounds of ``Within`` as keywords, which apply to numbers only."""
    if bounds is None:
        return {}
    limits = {
        "minimum": bounds.at_least,
        "exclusiveMinimum": bounds.above,
        "maximum": bounds.at_most,
        "exclusiveMaximum": bounds.below,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _text(none: bool) -> JsonSchema:
    """The schema of the texts that stand for a value: a reference, and ``"none"``."""
    return {"type": "string", "pattern": f"^({REFERENCE}|{NONE})$" if none else f"^{REFERENCE}$"}


def _default(field: Field[Any]) -> JsonSchema:
    """The default of a field, which also fills in fields that a table leaves out."""
    if field.default is MISSING or field.default is None:
        return {}
    return {"default": as_table(field.default)}


def field_docs(kind: type) -> dict[str, str]:
    """The string literals directly below the fields of a dataclass and its bases, by field.

    >>> from hfdsl.rl.training.algorithms import GRPO
    >>> field_docs(GRPO)["steps"], field_docs(GRPO)["actor"]
    ('The number of steps in the run.', 'The policy that generates and learns.')
    """
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        # A class created at run time has no source, or that of another class of its name.
        if is_dataclass(base) and getattr(sys.modules.get(base.__module__), base.__name__, None) is base:
            docs |= _own_docs(base)
    return docs


@lru_cache(maxsize=256)  # Python parses the whole file
def _own_docs(kind: type) -> Mapping[str, str]:
    [statement] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    return dict(_documented(statement.body)) if isinstance(statement, ast.ClassDef) else {}


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in pairwise(body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(inspect.cleandoc(text).split())


def _first_paragraph(kind: type) -> str:
    """The first paragraph of a class's docstring, or of its nearest base with one; empty without any.

    A dataclass without a docstring has its own signature there, which no editor should show.
    """
    for base in kind.__mro__[:-1]:
        doc = base.__dict__.get("__doc__") or ""
        if doc and not doc.startswith(f"{base.__name__}("):
            return inspect.cleandoc(doc).partition("\n\n")[0]
    return ""


def _markdown(text: str) -> str:
    """A docstring for editors, which show Markdown, as one line."""
    return " ".join(text.replace("``", "`").split())
