"""Synced parameters: do both sides of a sync have the same parameters, by name, shape and dtype?

A worked example; only the first line is right::

    trainer exports         engine loads
    embed (32000, 512)      embed (32000, 512)
    q_proj (512, 512)       qkv_proj (768, 512)     HF730: qkv_proj is not exported; HF731: q_proj is not loaded
    head (32000, 512)       head (32064, 512)       HF732: pad rows are no part of a parameter
    up (512, 512)           up (512, 512) int8      HF733: a sync does not quantize

A parameter that a layout ties to another one counts as present under the other one's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hfdsl.check.findings import Finding
from hfdsl.check.rules.weights.fusions import fused_elsewhere
from hfdsl.check.rules.weights.prefixes import renamed_by_prefix
from hfdsl.check.rules.weights.sync_findings import other_count, sync_finding
from hfdsl.check.rules.weights.ties import tying
from hfdsl.check.rules.weights.unused_layouts import MOST_NAMES
from hfdsl.deploy.weight_syncs import WeightSync
from hfdsl.protocols.layouts import Layout, Parameter
from hfdsl.protocols.parameters import FLOATS, converts
from hfdsl.types.similar_names import nearest

ParameterPairs: TypeAlias = Sequence[tuple[Parameter, Parameter]]
"""The parameters that both sides have, as exported and as loaded."""


def names_agree(sync: WeightSync, pairs: ParameterPairs, source: Layout, target: Layout) -> Iterator[Finding]:
    """HF730, HF731: each side has the parameters of the other one, by name or tied to one of that name."""
    exported, loaded = sync.source.parameters, sync.target.parameters
    exported_names = {name for parameter in exported for name in (parameter.name, target.stored_as(parameter.name))}
    exported_names |= {parameter.name for _, parameter in pairs}
    missing = [
        parameter
        for parameter in loaded
        if exported_names.isdisjoint((parameter.name, target.stored_as(parameter.name)))
    ]
    if missing:
        yield sync_finding(
            sync,
            "HF730",
            f"'{sync.target.role}' loads {_in_words(missing)}, but '{sync.source.role}' does not export "
            f"{'it' if len(missing) == 1 else 'them'}",
            notes=tuple(_advice(missing, sync)),
        )
    loaded_names = {
        name
        for parameter in loaded
        for name in (parameter.name, target.stored_as(parameter.name), source.stored_as(parameter.name))
    }
    renamed = {parameter.shape for parameter in missing}  # what is loaded under another name is reported above
    if unread := [
        parameter
        for parameter in exported
        if loaded_names.isdisjoint((parameter.name, target.stored_as(parameter.name)))
        and parameter.shape not in renamed
    ]:
        yield sync_finding(
            sync,
            "HF731",
            f"'{sync.source.role}' exports {_in_words(unread)}, and '{sync.target.role}' has no parameter "
            f"of {'that name' if len(unread) == 1 else 'those names'}",
        )


def _advice(missing: Sequence[Parameter], sync: WeightSync) -> Iterator[str]:
    """Advice about missing parameters: the names that the exporting side has instead, if that is known."""
    exported = sync.source.parameters
    first, role, names = missing[0], sync.source.role, [parameter.name for parameter in exported]
    embeddings = [
        parameter.name for parameter in exported if parameter.shape == first.shape and "embed" in parameter.name
    ]
    loaded = {parameter.name for parameter in sync.target.parameters}
    unread = [parameter for parameter in exported if parameter.name not in loaded]
    if (renamed := renamed_by_prefix([parameter.name for parameter in missing], names)) is not None:
        yield f"'{role}' exports {renamed}"
    elif "head" in first.name and embeddings:
        yield f"if it is tied to '{embeddings[0]}' in '{role}', say so: {tying(first.name, embeddings[0])}"
    elif (fused := fused_elsewhere(missing, unread)) is not None:
        yield f"'{role}' exports {fused}: a sync neither splits nor joins parameters; export them as they are loaded"
    elif (name := nearest(first.name, names)) is not None:
        yield f"'{role}' exports '{name}'"


def shapes_agree(sync: WeightSync, pairs: ParameterPairs) -> Iterator[Finding]:
    """HF732: a parameter has the same shape on both sides."""
    different = [(out, into) for out, into in pairs if out.shape != into.shape]
    if different:
        out, into = different[0]
        rows = [parameter.shape[0] for parameter in (out, into) if parameter.shape]
        padded = (
            len(rows) == 2 and out.shape[1:] == into.shape[1:] and any(word in out.name for word in ("embed", "head"))
        )
        advice = (
            f"pad rows are not part of a parameter: state its {min(rows)} rows on both sides, and let the layout pad "
            "them, as Slices(0, padding=...) does"
            if padded
            else "both sides state the shape of the whole parameter, as a checkpoint has it"
        )
        yield sync_finding(
            sync,
            "HF732",
            f"'{sync.source.role}' exports {out.name!r} as {out.shape}, but '{sync.target.role}' loads it as "
            f"{into.shape}{other_count(len(different))}",
            notes=(advice,),
        )


def dtypes_agree(sync: WeightSync, pairs: ParameterPairs) -> Iterator[Finding]:
    """HF733: a sync converts the exported dtype to the loaded one; it does not quantize."""
    different = [(out, into) for out, into in pairs if not converts(out.dtype, into.dtype)]
    if different:
        out, into = different[0]
        yield sync_finding(
            sync,
            "HF733",
            f"'{sync.source.role}' exports {out.name!r} in {out.dtype}, but '{sync.target.role}' loads it in "
            f"{into.dtype}{other_count(len(different))}",
            notes=(f"a sync converts between {', '.join(FLOATS[:-1])} and {FLOATS[-1]}; export it in {into.dtype}",),
        )


def _in_words(parameters: Sequence[Parameter]) -> str:
    names = ", ".join(f"{parameter.name!r} {parameter.shape}" for parameter in parameters[:MOST_NAMES])
    return f"{names} and {len(parameters) - MOST_NAMES} more" if len(parameters) > MOST_NAMES else names
