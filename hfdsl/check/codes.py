"""The table of codes: every mistake that hfdsl knows. A code is never reused; ``explain/CODE.md`` tells its rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """A kind of mistake."""

    title: str
    severity: str = "error"


CODES: dict[str, Code] = {
    # HF1xx definitions
    "HF101": Code("not a dim"),
    "HF102": Code("unknown dtype"),
    "HF104": Code("a port, result or column without a type that hfdsl can read"),
    "HF105": Code("a role method with *args or **kwargs"),
    "HF108": Code("a type variable in a result or record that no input binds"),
    "HF109": Code("an annotation that cannot be evaluated"),
    "HF111": Code("a name that is taken or not a name: of a protocol, or of a role's method or attribute"),
    "HF112": Code("a protocol without its dispatch or collect"),
    "HF113": Code("a row dependence that is neither Independent, Grouped(n) nor Whole"),
    "HF114": Code("a requirement that is not an expression"),
    "HF115": Code("columns of one record with different row dims"),
    "HF116": Code("an unknown reduction of a metric"),
    "HF117": Code("an optional column or a default that a record cannot have"),
    "HF118": Code("a decorator on what is no function"),
    "HF119": Code("a dataflow parameter that is neither a record nor a role"),
    "HF120": Code("a state without a name, or a staleness that is no number of steps"),
    "HF121": Code("a dataflow, function or role method that is async or a generator"),
    # HF2xx wiring, dtype, shape
    "HF201": Code("no column of that name"),
    "HF202": Code("no port or method of that name"),
    "HF203": Code("a port or column that is not wired"),
    "HF204": Code("a merge that lacks a column, or another record than the port takes"),
    "HF205": Code("a merge with two producers of one column"),
    "HF206": Code("a value of another kind than is taken there, or a record that is changed"),
    "HF207": Code("a value of the graph decides control flow"),
    "HF208": Code("computation on a value of the graph"),
    "HF209": Code("a value of another trace"),
    "HF210": Code("shapes differ"),
    "HF212": Code("row counts differ within one call"),
    "HF213": Code("a dim that cannot be solved for"),
    "HF214": Code("a ragged column where every row has one length, or the reverse"),
    "HF215": Code("a trailing dim of 1 that would broadcast"),
    "HF220": Code("dtypes differ"),
    "HF221": Code("truth values where whole numbers are taken, or the reverse"),
    "HF230": Code("two values of one type, each at the port of the other's name", "warning"),
    "HF231": Code("a column that may be absent where one is needed"),
    # HF3xx sizes
    "HF301": Code("a number of rows that nothing tells"),
    "HF302": Code("a size that is no whole number of at least 1, or not the one that was planned for"),
    "HF303": Code("a size that is not whole or below 1"),
    "HF304": Code("a count below 1"),
    "HF305": Code("a size of a dim that the program does not have", "warning"),
    "HF310": Code("rows that do not split evenly"),
    "HF313": Code("a split that cuts groups of rows"),
    "HF314": Code("a statistic of groups that are too small for it"),
    "HF317": Code("pad rows that count", "warning"),
    "HF318": Code("no size satisfies all that is demanded"),
    "HF319": Code("a size that cannot be decided before launch", "warning"),
    "HF321": Code("rows that only a run tells where their number matters"),
    "HF322": Code("a requirement of a role that does not hold"),
    "HF323": Code("a requirement that names nothing known"),
    # HF4xx dispatch and collect
    "HF401": Code("a list of ranks' values where a whole value is taken, or the reverse"),
    "HF402": Code("a list of as many values as another mesh has ranks"),
    "HF403": Code("a collect that loses a part of the value"),
    "HF404": Code("a collect that picks a coordinate without the value"),
    "HF405": Code("a collect that joins equal copies"),
    "HF407": Code("outputs or chunks that do not cover the ranks"),
    "HF409": Code("mesh axes that a protocol or a mesh does not have"),
    "HF410": Code("an execute or blocking mode that is none, or that does not go with the protocol"),
    "HF411": Code("a list that is not one value for each rank"),
    "HF412": Code("unknown protocol"),
    "HF413": Code("a value that cannot be split or joined"),
    "HF414": Code("generation sizes that do not divide the mesh"),
    "HF417": Code("a number from several chunks without a reduction"),
    "HF418": Code("padding that is none, or without a split and a join"),
    "HF419": Code("a collect that joins rows where another dim was split"),
    "HF420": Code("arguments of one call with different row counts"),
    "HF421": Code("a Whole method behind a protocol that splits"),
    "HF424": Code("an unknown reduction over ranks"),
    "HF425": Code("rows balanced by what does not weigh them, or without a split and a join"),
    # HF5xx resources
    "HF501": Code("a mesh of another size than its pool, or a size below 1"),
    "HF502": Code("a pool that the cluster's GPUs cannot hold"),
    "HF503": Code("a tensor-parallel group that crosses nodes", "warning"),
    "HF504": Code("a GPU or pool without room for what its roles keep, or processes that do not start in time"),
    "HF505": Code("a pool that the cluster's CPUs cannot hold"),
    "HF507": Code("a role without a place"),
    "HF508": Code("a place without a role", "warning"),
    "HF509": Code("a role that is placed and never called", "warning"),
    "HF510": Code("a role that never gets the weights that another one trains"),
    "HF512": Code("a role class whose requirement its config and mesh do not meet"),
    "HF513": Code("a rank that is not there"),
    "HF514": Code("a pool that cannot be made, or two pools of one name"),
    "HF515": Code("a role class of another type than the dataflow takes"),
    "HF516": Code("arguments that the role's constructor does not take"),
    "HF518": Code("an unknown backend"),
    "HF519": Code("a second plan that does not go with the first"),
    "HF520": Code("a reserved or odd variable in the environment of workers"),
    "HF521": Code("workers' names that are taken, or that make no group"),
    "HF522": Code("a worker group that was shut down"),
    "HF523": Code("a cluster description that cannot be read"),
    "HF524": Code("a transport that does not reach its readers"),
    "HF525": Code("a role that cannot be offloaded"),
    # HF6xx the graph
    "HF602": Code("a result that nobody reads", "warning"),
    "HF603": Code("a dataflow that returns something else than values of the graph, or than it is annotated to"),
    "HF607": Code("a worker that is no parameter of the dataflow"),
    "HF609": Code("a dataflow that is another one each time it is traced", "warning"),
    "HF610": Code("the dataflow raised while it was traced"),
    # HF7xx effects
    "HF701": Code("weights that are older than the method which reads them allows"),
    "HF703": Code("a body that writes into what it was given"),
    "HF707": Code("a sync between roles that share no state"),
    # HF8xx running
    "HF801": Code("a module that workers cannot import"),
    "HF802": Code("a value that cannot be sent to another process", "warning"),
    "HF804": Code("much data through the driver", "warning"),
    "HF805": Code("a body's result is not what its signature says"),
    "HF806": Code("a role's body raised, or a worker died"),
    "HF807": Code("a wait that outlasted its deadline"),
    "HF808": Code("a run that is closed or broken"),
    "HF810": Code("ranks that disagree on whether an optional column is there"),
    "HF811": Code("a row that a ready role cannot work with"),
    "HF812": Code("a configuration of a ready role that lacks what the role needs"),
    "HF813": Code("a tensor-parallel size that does not divide the model"),
    # HF9xx training
    "HF901": Code("a configuration that does not fit its fields"),
    "HF902": Code("a row that cannot be read, or has no field of that name"),
    "HF903": Code("a prompt that is too long"),
    "HF904": Code("a tokenizer that does not go with the model, or cannot pad"),
    "HF905": Code("a checkpoint of another configuration"),
    "HF906": Code("a checkpoint that is not whole, or cannot be written"),
    "HF907": Code("a metric that is no finite number"),
    "HF908": Code("a state that cannot be kept"),
    "HF911": Code("a server that does not answer in time"),
    "HF912": Code("a request that a server refuses"),
    "HF913": Code("an answer of a server that cannot be used"),
    # HF92x tests
    "HF921": Code("an argument that a check of hfdsl.testing does not take"),
    "HF922": Code("a check of hfdsl.testing that would compare nothing"),
}


def explain(code: str) -> str | None:
    """The explain page of a code, or None where there is no such code."""
    from pathlib import Path  # not at the top: `import hfdsl` is kept fast

    page = Path(__file__).parent / "explain" / f"{code.upper()}.md"
    return page.read_text(encoding="utf-8") if code.upper() in CODES else None
