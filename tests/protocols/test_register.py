"""What a method declares: modes by every name, refusals at decoration, and the constraints of ``requires``."""

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hfdsl.errors import DefinitionError, HfError, ProtocolError, ResourceError
from hfdsl.protocols import (
    PREDEFINED,
    Dispatch,
    Execute,
    Functions,
    Mesh,
    Protocol,
    collect_all_to_all,
    get_predefined_dispatch_fn,
    register,
    register_dispatch_mode,
    registered_methods,
    registration_of,
    requirements_of,
    requires,
    update_dispatch_mode,
)
from hfdsl.protocols.conditions import provides, provisions_of
from hfdsl.protocols.placement import AxisPlacement, Replicated, Sharded
from hfdsl.types.rows import Grouped

cloudpickle = pytest.importorskip("ray.cloudpickle")


def group(size: int, mesh: Mesh | None = None) -> Any:
    return SimpleNamespace(world_size=size, mesh=mesh, workers=[f"w{rank}" for rank in range(size)])


def give_rank(group: Any, *args: Any, **kwargs: Any) -> Any:
    return tuple([(rank, arg) for rank in range(group.world_size)] for arg in args), {}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("3D_PROTO", Dispatch.THREE_D_PROTO),
        ("THREE_D_PROTO", Dispatch.THREE_D_PROTO),
        ("MEGATRON_COMPUTE_PROTO", Dispatch.THREE_D_PROTO),
        ("3D_ALL_MICRO_DP", Dispatch.THREE_D_ALL_MICRO_DP),
        ("MEGATRON_PP_AS_DP_PROTO", Dispatch.THREE_D_ALL_MICRO_DP),
        ("3D_PP_ONLY", Dispatch.THREE_D_PP_ONLY),
        ("MEGATRON_PP_ONLY", Dispatch.THREE_D_PP_ONLY),
        ("DP_COMPUTE_PROTO", Dispatch.DP_PROTO),
        ("DP_PROTO", Dispatch.DP_PROTO),
        ("ONE_TO_ALL", Dispatch.ONE_TO_ALL),
        ("ALL_TO_ALL", Dispatch.ALL_TO_ALL),
    ],
)
def test_the_names_of_the_field(name: str, member: Dispatch) -> None:
    assert Dispatch(name) is member
    assert name[0].isdigit() or getattr(Dispatch, name) is member
    assert set(PREDEFINED) == {member.name for member in Dispatch if member.name in PREDEFINED}


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ProtocolError, match=r"HF412: no protocol is called '3D_PROTOO'; did you mean '3D_PROTO'\?"):
        Dispatch("3D_PROTOO")
    with pytest.raises(ProtocolError, match=r"HF412"):
        register(7)  # type: ignore[call-overload]
    with pytest.raises(ProtocolError, match=r"HF412: a dispatch mode is a Dispatch member or its name, got 7$"):
        register(7)  # type: ignore[call-overload]
    with pytest.raises(ProtocolError, match=r"HF412: no protocol is called 'zzz'; the protocols are 3D_ALL_MICRO_DP, "):
        Dispatch("zzz")
    with pytest.raises(ProtocolError, match=r"HF412: Dispatch has no DP; did you mean 'DP_PROTO'\? The protocols are "):
        cast(Any, Dispatch).DP  # noqa: B018  # the access is what is tested


def test_an_option_that_register_does_not_have_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"^HF412: register has no parameter 'row'; did you mean 'rows'\?"):
        register(Dispatch.DP_PROTO, row=Grouped(2))  # type: ignore[call-overload]  # the mistake


@pytest.mark.parametrize("mode", Dispatch)
def test_a_mode_of_the_field_travels_by_its_name_alone(mode: Dispatch) -> None:
    sent = pickle.dumps(mode)
    assert pickle.loads(sent) is mode
    assert b"Protocol" not in sent


# -- modes of the user -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("modes")
def test_a_registered_mode_is_a_member_everywhere() -> None:
    mode = register_dispatch_mode("rank_tagged", give_rank, collect_all_to_all)
    assert mode is Dispatch.RANK_TAGGED is Dispatch("RANK_TAGGED")  # type: ignore[attr-defined]
    assert mode in Dispatch
    assert mode in list(Dispatch)
    assert get_predefined_dispatch_fn(mode)["dispatch_fn"](group(2), "x") == (([(0, "x"), (1, "x")],), {})
    assert pickle.loads(pickle.dumps(mode)) is mode
    assert set(vars(mode)) == set(vars(Dispatch.DP_PROTO)), "all that an enum sets on its members"
    ranked: Any = [member._sort_order_ for member in Dispatch]  # type: ignore[attr-defined]
    assert sorted(ranked) == ranked
    for name in ("3D_MINE", "", 7):
        with pytest.raises(DefinitionError, match=r"HF111: a dispatch mode's name is an identifier"):
            register_dispatch_mode(name, give_rank, collect_all_to_all)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"HF111"):
        register_dispatch_mode("RANK_TAGGED", give_rank, collect_all_to_all)
    with pytest.raises(DefinitionError, match=r"HF111"):
        register_dispatch_mode("ONE_TO_ALL", give_rank, collect_all_to_all)
    with pytest.raises(DefinitionError, match=r"HF112"):
        register_dispatch_mode("NO_COLLECT", give_rank, None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("modes")
def test_a_registered_mode_reaches_a_process_that_never_heard_of_it() -> None:
    def twice(group: Any, *args: Any) -> Any:
        return tuple([arg * 2] * group.world_size for arg in args), {}

    mode = register_dispatch_mode("TWICE", twice, collect_all_to_all)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        sent = cloudpickle.dumps((mode, register(mode)(lambda self, x: x)))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    code = (
        "import sys, pickle; from types import SimpleNamespace as N\n"
        "mode, method = pickle.loads(sys.stdin.buffer.read())\n"
        "from hfdsl.protocols import Dispatch, get_predefined_dispatch_fn as fns, registration_of\n"
        "assert mode is Dispatch.TWICE and registration_of(method).dispatch_mode is mode\n"
        "print(fns('TWICE')['dispatch_fn'](N(world_size=2), 4))"
    )
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, cwd=root, check=False)
    assert process.stdout.decode().strip() == "(([8, 8],), {})", process.stderr.decode()


@pytest.mark.usefixtures("modes")
def test_a_member_that_arrives_is_added_with_its_functions() -> None:
    restore, (_, functions) = register_dispatch_mode("SENT", give_rank, collect_all_to_all).__reduce_ex__(4)
    arrived = restore("ARRIVED", functions)
    assert arrived is Dispatch("ARRIVED")
    assert get_predefined_dispatch_fn("ARRIVED") == {"dispatch_fn": give_rank, "collect_fn": collect_all_to_all}


@pytest.mark.usefixtures("modes")
def test_the_functions_of_a_mode_can_be_replaced() -> None:
    mode = register_dispatch_mode("REPLACED", give_rank, collect_all_to_all)
    update_dispatch_mode(mode, lambda group, *args: (args, {}), lambda group, outputs: sum(outputs))
    assert get_predefined_dispatch_fn("REPLACED")["collect_fn"](group(2), [1, 2]) == 3


def test_predefined_functions_read_only_the_group() -> None:
    fns = get_predefined_dispatch_fn("3D_PROTO")
    grid = group(4, Mesh(dp=2, tp=2))
    assert fns["dispatch_fn"](grid, [1, 2], b=[3, 4]) == (([[1], [1], [2], [2]],), {"b": [[3], [3], [4], [4]]})
    assert fns["collect_fn"](grid, [[1], None, [2], None]) == [1, 2]
    assert fns["dispatch_fn"](group(2), [1, 2]) == (([[1], [2]],), {})  # no mesh: pure data parallelism
    with pytest.raises(ResourceError, match=r"HF501"):
        fns["dispatch_fn"](group(3, Mesh(dp=2)), [1, 2])
    assert get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["dispatch_fn"](group(2), 5) == (([5, 5],), {})
    assert get_predefined_dispatch_fn(Dispatch.ALL_TO_ALL)["collect_fn"](group(2), [1, 2]) == [1, 2]


# -- decoration --------------------------------------------------------------------------------------------------------


def test_the_function_is_left_as_it_is() -> None:
    def add(self: object, x: int) -> int:
        return x

    assert register(Dispatch.ONE_TO_ALL)(add) is add  # type: ignore[comparison-overlap]
    declared = registration_of(add)
    assert declared is not None
    assert (declared.dispatch_mode, declared.execute_mode) == (Dispatch.ONE_TO_ALL, Execute.ALL)
    assert (declared.blocking, declared.pad, declared.gives) == (True, None, "per_rank")
    assert (declared.group_size, declared.leaves, declared.cuts) == (1, (), False)
    assert declared.protocol is PREDEFINED["ONE_TO_ALL"]


def test_every_way_to_name_a_mode() -> None:
    mine = Protocol("MINE", collect={"rank": "join"}, gives="per_rank")
    functions = {"dispatch_fn": give_rank, "collect_fn": collect_all_to_all}

    class Role:
        @register("MEGATRON_COMPUTE_PROTO")
        def by_name(self, x: Any) -> Any: ...

        @register(mine, rows=Grouped(4))
        def by_declaration(self, x: Any) -> Any: ...

        @register(dispatch_mode=functions, blocking=False)
        def by_functions(self, x: Any) -> Any: ...

        @register()
        async def by_default(self, x: Any) -> Any: ...

        @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
        def on_zero(self, x: Any) -> Any: ...

        def unregistered(self) -> None: ...

    class Child(Role):
        def by_name(self, x: Any) -> Any:
            """An override that does not register is a plain method."""

    methods = registered_methods(Role)
    assert list(methods) == ["by_declaration", "by_default", "by_functions", "by_name", "on_zero"]
    assert methods["by_name"].dispatch_mode is Dispatch.THREE_D_PROTO
    assert (methods["by_declaration"].protocol, methods["by_declaration"].group_size) == (mine, 4)
    assert methods["by_functions"].meaning == Functions(give_rank, collect_all_to_all)
    assert methods["by_functions"].protocol is None
    assert methods["by_functions"].gives == "whole"
    assert methods["by_default"].dispatch_mode is Dispatch.ALL_TO_ALL
    assert methods["on_zero"].gives == "whole"
    assert "by_name" not in registered_methods(Child)
    assert "on_zero" in registered_methods(Child)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"dispatch_mode": Dispatch.DP_PROTO, "execute_mode": Execute.RANK_ZERO}, "HF410"),
        ({"dispatch_mode": "3D_PP_ONLY", "execute_mode": Execute.RANK_ZERO}, "HF410"),
        ({"execute_mode": "RANK_ZERO"}, "HF410"),
        ({"blocking": 1}, "HF410"),
        ({"rows": 4}, "HF113"),
        ({"dispatch_mode": {"dispatch_fn": give_rank}}, "HF112"),
        ({"dispatch_mode": {"collect_fn": give_rank}}, "HF112"),
        ({"dispatch_mode": {"dispatch_fn": give_rank, "collect_fn": 3}}, "HF112"),
        ({"dispatch_mode": {"dispatch_fn": give_rank, "collect_fn": give_rank, "execute_fn": give_rank}}, "HF112"),
        ({"dispatch_mode": Dispatch.DP_PROTO, "pad": "last"}, "HF418"),
        ({"dispatch_mode": Dispatch.ONE_TO_ALL, "pad": "cycle"}, "HF418"),
        ({"dispatch_mode": {"dispatch_fn": give_rank, "collect_fn": give_rank}, "pad": "cycle"}, "HF418"),
        ({"dispatch_mode": Dispatch.DP_PROTO, "balance": ""}, "HF425"),
        ({"dispatch_mode": Dispatch.ONE_TO_ALL, "balance": "x"}, "HF425"),
        ({"dispatch_mode": Protocol("LISTS", split=("rank",), gives="per_rank"), "balance": "x"}, "HF425"),
        ({"dispatch_mode": {"dispatch_fn": give_rank, "collect_fn": give_rank}, "balance": "x"}, "HF425"),
    ],
)
def test_a_registration_without_meaning_is_refused_at_decoration(options: dict[str, Any], code: str) -> None:
    with pytest.raises(HfError, match=code):
        register(**options)


def test_a_missing_function_is_distinguished_from_a_wrong_one() -> None:
    with pytest.raises(DefinitionError, match=r"needs a callable 'collect_fn'; it has none$"):
        register({"dispatch_fn": give_rank})
    with pytest.raises(DefinitionError, match=r"needs a callable 'collect_fn'; got 3$"):
        register({"dispatch_fn": give_rank, "collect_fn": 3})


def test_another_value_under_the_registration_attribute_is_ignored() -> None:
    assert registration_of(SimpleNamespace(__hf_registration__=3)) is None  # type: ignore[arg-type]


AS_GIVEN: dict[str, AxisPlacement] = {"dp": Sharded(0), "tp": Replicated()}
CHANGED: tuple[tuple[dict[str, AxisPlacement], str], ...] = (
    ({"dp": Replicated()}, "dp=R"),
    ({"tp": Sharded(0)}, r"tp=S\(0\)"),
    ({"dp": Sharded(0), "tp": Sharded(0)}, r"tp=S\(0\)"),
    ({"dp": Sharded(1)}, r"dp=S\(1\)"),
)


def test_leaves_are_kept_as_they_are_said() -> None:
    declared = registration_of(register(Dispatch.THREE_D_PROTO, leaves=AS_GIVEN, pad="cycle")(give_rank))
    assert declared is not None
    assert dict(declared.leaves) == AS_GIVEN
    assert declared.cuts
    for leaves, _ in CHANGED:  # neither padded nor balanced: any will do
        registered = registration_of(register(Dispatch.THREE_D_PROTO, leaves=leaves)(give_rank))
        assert registered is not None
        assert dict(registered.leaves) == leaves
        assert registered.cuts is any(isinstance(placement, Sharded) for placement in leaves.values())


@pytest.mark.parametrize(("leaves", "said"), CHANGED)
def test_padded_and_balanced_rows_come_back_as_they_were_given(leaves: dict[str, AxisPlacement], said: str) -> None:
    with pytest.raises(ProtocolError, match=rf"HF418: pad='cycle' with leaves {said}: .* 3D_PROTO splits over dp$"):
        register(Dispatch.THREE_D_PROTO, leaves=leaves, pad="cycle")
    with pytest.raises(ProtocolError, match=rf"HF425: balance='mask' with leaves {said}: .* 3D_PROTO splits over dp$"):
        register(Dispatch.THREE_D_PROTO, leaves=leaves, balance="mask")


def test_register_goes_on_functions() -> None:
    for thing in (3, staticmethod(give_rank), property(give_rank), type):
        with pytest.raises(DefinitionError, match=r"HF118"):
            register()(thing)  # type: ignore[arg-type]


def test_requires() -> None:
    @requires("B % mini == 0", " P <= 4")
    @requires("B >= 2")
    def update(self: object) -> None: ...

    assert requirements_of(update) == ("B % mini == 0", " P <= 4", "B >= 2")


def test_a_class_requires_what_all_its_bases_do() -> None:
    @requires("tp == 1")
    class Trained: ...

    @requires("pp == 1", "heads > 1")
    class Sampled: ...

    @requires("dp > 1", "tp == 1")
    class Both(Trained, Sampled): ...

    assert requirements_of(Both) == ("dp > 1", "tp == 1", "pp == 1", "heads > 1")
    assert requirements_of(Sampled) == ("pp == 1", "heads > 1")
    refused: tuple[tuple[Any, ...], ...] = (("B %",), (), (3,), ("B = 2",))
    for bad in refused:
        with pytest.raises(DefinitionError, match=r"HF114"):
            requires(*bad)  # pyright: ignore[reportArgumentType]  # wrong on purpose


def test_provides() -> None:
    @provides("values", when="with_values")
    @provides("mask", "scores")
    def generate(self: object) -> None: ...

    assert list(map(str, provisions_of(generate))) == [
        "provides('values', when='with_values')",
        "provides('mask', 'scores')",
    ]
    with pytest.raises(DefinitionError, match=r"HF114: provides cannot read 'a ='"):
        provides("values", when="a =")
    with pytest.raises(DefinitionError, match=r"HF114: provides takes names of columns, got 'values', 3$"):
        provides("values", 3)  # type: ignore[arg-type]


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, hfdsl.protocols; print({'torch', 'ray', 'numpy', 'networkx'} & set(sys.modules) or 'none')"
    root = Path(__file__).parents[2]
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert process.stdout.strip() == "none"
