"""Where the weights of a saved model are in vLLM's parameters, against a model that is fused element by element."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hfdsl.rl.engines.places import PlaceWriter, places
from hfdsl.rl.engines.vllm_places import computes_with_its_weight

HIDDEN = 6
Saved = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Sizes:
    heads: int
    key_heads: int
    head: int
    inner: int
    words: int
    parts: int
    bias: bool


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """Key-value heads divide among the parts, or the parts among them."""
    parts = draw(st.sampled_from([1, 2, 4]))
    key_heads = draw(st.sampled_from([heads for heads in (1, 2, 4, 8) if heads % parts == 0 or parts % heads == 0]))
    heads = key_heads * draw(st.integers(1, 3)) * (parts if key_heads < parts else 1)
    return Sizes(
        heads=heads,
        key_heads=key_heads,
        head=draw(st.integers(1, 3)),
        inner=parts * draw(st.integers(1, 4)),
        words=draw(st.integers(1, 150)),
        parts=parts,
        bias=draw(st.booleans()),
    )


def saved(size: Sizes) -> Saved:
    """A layer with an embedding; every element has another value."""
    rows = {
        "q_proj": size.heads * size.head,
        "k_proj": size.key_heads * size.head,
        "v_proj": size.key_heads * size.head,
    }
    rows |= {"gate_proj": size.inner, "up_proj": size.inner, "embed_tokens": size.words, "lm_head": size.words}
    shapes: dict[str, tuple[int, ...]] = {f"0.{name}.weight": (count, HIDDEN) for name, count in rows.items()}
    shapes |= {"0.o_proj.weight": (HIDDEN, size.heads * size.head), "0.down_proj.weight": (HIDDEN, size.inner)}
    shapes |= {"norm.weight": (HIDDEN,), "0.q_norm.weight": (size.head,)}
    if size.bias:
        shapes |= {f"0.{name}.bias": (rows[name],) for name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")}
        shapes |= {"0.o_proj.bias": (HIDDEN,), "0.down_proj.bias": (HIDDEN,)}
    weights_by_name, count = {}, 1
    for name, shape in shapes.items():
        elements = torch.Size(shape).numel()
        weights_by_name[name] = torch.arange(count, count + elements, dtype=torch.float64).reshape(shape)
        count += elements
    return weights_by_name


def rows_of(weights: Saved, layer: str, kind: str, indices: list[int]) -> list[object]:
    return [weights[f"0.{layer}.{kind}"][index].tolist() for index in indices]


def parameters(size: Sizes, weights: Saved, part: int) -> dict[str, list[object]]:
    """What vLLM's loader leaves in the parameters of a part, as lists of rows; padding is left out."""
    share = size.heads // size.parts
    heads = range(part * share, part * share + share)
    group = size.heads // size.key_heads
    key_heads = sorted({head // group for head in heads})  # those that a part's query heads read

    def elements(of: list[int] | range) -> list[int]:
        return [head * size.head + i for head in of for i in range(size.head)]

    inner = list(range(part * size.inner // size.parts, (part + 1) * size.inner // size.parts))
    padded = -(-size.words // 64) * 64 // size.parts
    words = [word for word in range(part * padded, (part + 1) * padded) if word < size.words]
    rows_by_name: dict[str, list[object]] = {}
    for kind in ("weight", "bias") if size.bias else ("weight",):
        queries = rows_of(weights, "q_proj", kind, elements(heads))
        keys, values = (rows_of(weights, name, kind, elements(key_heads)) for name in ("k_proj", "v_proj"))
        rows_by_name[f"0.qkv_proj.{kind}"] = queries + keys + values
        gate, up = (rows_of(weights, name, kind, inner) for name in ("gate_proj", "up_proj"))
        rows_by_name[f"0.gate_up_proj.{kind}"] = gate + up
    for name in ("embed_tokens", "lm_head"):
        rows_by_name[f"0.{name}.weight"] = rows_of(weights, name, "weight", words)
    rows_by_name["0.o_proj.weight"] = weights["0.o_proj.weight"][:, elements(heads)].tolist()
    rows_by_name["0.down_proj.weight"] = weights["0.down_proj.weight"][:, inner].tolist()
    whole = [name for name in weights if "norm" in name or name in ("0.o_proj.bias", "0.down_proj.bias")]
    return rows_by_name | {name: weights[name].tolist() for name in whole}


def empty(size: Sizes, wanted: dict[str, list[object]]) -> dict[str, torch.Tensor]:
    """Parameters of the shapes that vLLM allocates."""
    zeros = {name: torch.zeros_like(torch.tensor(rows, dtype=torch.float64)) for name, rows in wanted.items()}
    padded = -(-size.words // 64) * 64 // size.parts
    return zeros | {f"0.{name}.weight": torch.zeros(padded, HIDDEN).double() for name in ("embed_tokens", "lm_head")}


@given(sizes())
def test_written_weights_are_where_vllm_loads_them(size: Sizes) -> None:
    weights = saved(size)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    for part in range(size.parts):
        wanted = parameters(size, weights, part)
        target = empty(size, wanted)
        weight_places = places(target, shapes, part, size.parts)
        assert weight_places is not None
        names = sorted(weights)
        writer = PlaceWriter(weight_places)
        writer.write([[(name, weights[name]) for name in half] for half in (names[::2], names[1::2])])
        for name, rows in wanted.items():
            assert target[name][: len(rows)].tolist() == rows
            assert (target[name][len(rows) :] == 0).all()


@given(sizes(), st.data())
def test_parameters_of_another_model_have_no_places(size: Sizes, data: st.DataObject) -> None:
    """One parameter is larger, missing, transposed in memory, or not known; or one weight has no parameter."""
    weights = saved(size)
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    target = empty(size, parameters(size, weights, 0))
    name = data.draw(st.sampled_from(sorted(target)))
    change = data.draw(st.sampled_from(["larger", "missing", "transposed", "unknown", "unwritten"]))
    if change == "larger":
        target[name] = torch.zeros(target[name].shape[0] + (size.words if "0." in name else 1), *target[name].shape[1:])
        target[name] = torch.cat([target[name]] * 3, -1)
    elif change == "missing":
        del target[name]
    elif change == "transposed":
        target[name] = torch.zeros(8, 8).T[: target[name].shape[0]]
    elif change == "unknown":
        target["0.scale"] = torch.zeros(1)
    else:
        shapes["0.other.weight"] = (1,)
    assert places(target, shapes, 0, size.parts) is None


def test_a_part_has_no_more_key_heads_than_the_model() -> None:
    saved_shapes = {f"attn.{name}.bias": (1,) for name in ("q_proj", "k_proj", "v_proj")}
    assert places({"attn.qkv_proj.bias": torch.zeros(3)}, saved_shapes) is not None
    assert places({"attn.qkv_proj.bias": torch.zeros(15)}, saved_shapes) is None


class Method:
    """How a layer computes: with its weight, with a copy of it as it was, or with it transposed."""

    def __init__(self, layer: nn.Linear, kind: str) -> None:
        self.kind, self.copy = kind, layer.weight.detach().clone()

    def apply(self, layer: nn.Linear, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = {"weight": layer.weight, "copy": self.copy, "transposed": layer.weight.T}[self.kind]
        return nn.functional.linear(x, weight, bias)


@given(st.sampled_from(["weight", "copy", "transposed"]), st.integers(2, 5), st.sampled_from(["bfloat16", "float32"]))
def test_a_layer_that_computes_with_something_else_is_found(kind: str, width: int, dtype: str) -> None:
    """All shapes are right."""
    layer = nn.Linear(width, width, bias=False, dtype=getattr(torch, dtype))
    layer.quant_method = Method(layer, kind)  # type: ignore[assignment]  # as a layer of vLLM's has one
    assert computes_with_its_weight(layer) == (kind == "weight")
