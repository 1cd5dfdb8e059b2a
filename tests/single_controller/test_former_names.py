"""Names of verl's single controller: they work, or their error says what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

import hfdsl.single_controller as sc
from hfdsl.errors import ProtocolError, ResourceError
from hfdsl.protocols.dispatch import FORMER_MODES
from hfdsl.single_controller.group_checks import FORMER_ARGUMENTS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "migrate-verl.md").read_text("utf-8")


@pytest.mark.parametrize("name", FORMER_MODES)
def test_a_former_mode_leads_to_its_successor(name: str) -> None:
    with pytest.raises(ProtocolError, match=f"HF412: Dispatch has no {name}: ") as by_attribute:
        getattr(sc.Dispatch, name)
    with pytest.raises(ProtocolError, match="HF412") as by_name:
        sc.Dispatch(name)
    assert FORMER_MODES[name] in str(by_attribute.value)
    assert FORMER_MODES[name] in str(by_name.value)
    assert not hasattr(sc.Dispatch, name)
    assert f"`{name}`" in PAGE


def test_what_a_former_mode_leads_to_is_there() -> None:
    for advice in FORMER_MODES.values():
        for mode in re.findall(r"Dispatch\.(\w+)", advice):
            assert mode in sc.Dispatch.__members__
        for name in re.findall(r"\b(register\w*|get_predefined_dispatch_fn|collect_all_to_all)\b", advice):
            assert hasattr(sc, name), name
        for method in re.findall(r"group\.(\w+)", advice):
            assert hasattr(sc.RayWorkerGroup, method)


def test_other_names_are_no_members() -> None:
    with pytest.raises(
        ProtocolError, match=r"^HF412: Dispatch has no DP_PORTO; did you mean 'DP_PROTO'\? The protocols"
    ):
        cast(Any, sc.Dispatch).DP_PORTO  # noqa: B018  # the access is what is tested
    assert not hasattr(sc.Dispatch, "DP_PORTO")
    assert not hasattr(sc.Dispatch, "_repr_html_")
    assert cast(Any, sc.Dispatch).MEGATRON_COMPUTE_PROTO is sc.Dispatch.THREE_D_PROTO


def test_a_misspelled_execute_mode_gets_a_suggestion() -> None:
    with pytest.raises(ProtocolError) as raised:
        cast(Any, sc.Execute).RANKZERO  # noqa: B018  # the access is what is tested
    says = "HF410: Execute has no RANKZERO; did you mean 'RANK_ZERO'? The execute modes are ALL, RANK_ZERO"
    assert str(raised.value) == says
    assert not hasattr(sc.Execute, "RANK_ONE")
    assert not hasattr(sc.Execute, "_repr_html_")
    with pytest.raises(
        ProtocolError, match=r"^HF410: no execute mode is called 'RANKZERO'; did you mean 'RANK_ZERO'\?"
    ):
        sc.Execute("RANKZERO")


@pytest.mark.parametrize("name", FORMER_ARGUMENTS)
def test_a_former_argument_says_what_to_do(name: str) -> None:
    group = cast(Any, sc.RayWorkerGroup)
    with pytest.raises(ResourceError, match=f"HF507: a worker group takes no '{name}': ") as raised:
        group(None, None, **{name: None})
    assert FORMER_ARGUMENTS[name] in str(raised.value)
    assert f"`{name}`" in PAGE


def test_fused_names_are_those_of_colocated_roles() -> None:
    assert sc.create_colocated_worker_cls_fused is sc.create_colocated_worker_cls
    assert sc.RayWorkerGroup.spawn_fused is sc.RayWorkerGroup.spawn


def test_imports_of_the_page_work() -> None:
    lines = re.findall(r"\| `(from hfdsl[^`]+)` \|", PAGE)
    assert len(lines) >= 3
    for line in lines:
        exec(line, {})  # noqa: S102  # an import of the documentation
