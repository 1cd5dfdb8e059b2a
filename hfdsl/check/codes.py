"""The table of codes: every mistake that hfdsl knows. A code is never reused; ``explain/CODE.md`` explains its rule."""

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
    "HF111": Code("a name that is taken or invalid: of a protocol, or of a role's method or attribute"),
    "HF112": Code("a protocol without its dispatch or collect"),
    "HF113": Code("a row dependence that is not Independent, Grouped(n) or Whole"),
    "HF114": Code("a requirement that is not an expression"),
    "HF115": Code("columns of one record with different row dims"),
    "HF116": Code("an unknown reduction of a metric"),
    "HF117": Code("an optional column or a default that a record cannot have"),
    "HF118": Code("a decorator on something other than a function or method"),
    "HF119": Code("a dataflow parameter that is neither a record nor a role"),
    "HF120": Code("a state without a name, or an invalid staleness or ratio"),
    "HF121": Code("a dataflow, function or role method that is async or a generator"),
    # HF2xx wiring, dtype, shape
    "HF201": Code("no column of that name"),
    "HF202": Code("no port or method of that name"),
    "HF203": Code("a port or column that is not wired"),
    "HF204": Code("a merge that lacks a column, or another record than the port takes"),
    "HF205": Code("a merge with two producers of one column"),
    "HF206": Code("a value of the wrong kind, or a change to a record"),
    "HF207": Code("control flow that depends on a value of the graph"),
    "HF208": Code("computation on a value of the graph"),
    "HF209": Code("a value of another trace"),
    "HF210": Code("shapes differ"),
    "HF212": Code("row counts differ within one call"),
    "HF213": Code("a dim that cannot be solved for"),
    "HF214": Code("a ragged column where every row has one length, or the reverse"),
    "HF215": Code("a trailing dim of 1 that would broadcast"),
    "HF220": Code("dtypes differ"),
    "HF221": Code("booleans where integers are expected, or the reverse"),
    "HF230": Code("two values of one type, each at the port of the other's name", "warning"),
    "HF231": Code("a column that may be absent where one is required"),
    "HF240": Code("a role of another class than an inner dataflow takes"),
    # HF3xx sizes
    "HF301": Code("a number of rows that nothing determines"),
    "HF302": Code("a size that is not an integer of at least 1, or not the planned one"),
    "HF303": Code("a computed size that is not an integer or is below 1"),
    "HF304": Code("a count below 1"),
    "HF305": Code("a size for a dim that the program does not have", "warning"),
    "HF310": Code("rows that do not split evenly"),
    "HF313": Code("a split that cuts groups of rows"),
    "HF314": Code("a statistic over groups that are too small for it"),
    "HF317": Code("pad rows that affect a result", "warning"),
    "HF318": Code("no size satisfies all demands"),
    "HF319": Code("a size that cannot be decided before launch", "warning"),
    "HF321": Code("a row count that only the run knows, where it matters before"),
    "HF322": Code("a requirement of a role that does not hold"),
    "HF323": Code("a requirement with an unknown name"),
    "HF330": Code("groups of rows in which different questions are mixed"),
    "HF331": Code("groups of rows that a filter has cut"),
    "HF332": Code("groups that are smaller than those that repeat made", "warning"),
    "HF333": Code("values side by side that do not have the same rows"),
    "HF334": Code("columns of tokens that are not of the same samples"),
    "HF335": Code("a ratio of log-probs that are not of one policy before and after its update"),
    "HF336": Code("a ratio of a column that the method does not take"),
    "HF337": Code("groups whose rows are copies of one", "warning"),
    "HF360": Code("a fill that repeats every row in every step", "warning"),
    # HF4xx dispatch and collect
    "HF401": Code("a list of per-rank values where a single value is expected, or the reverse"),
    "HF402": Code("a list of per-rank values from a mesh of another size"),
    "HF403": Code("a collect that loses part of the value"),
    "HF404": Code("a collect that picks a coordinate without the value"),
    "HF405": Code("a collect that joins replicas"),
    "HF407": Code("outputs or chunks that do not cover the ranks"),
    "HF409": Code("mesh axes that a protocol or a mesh does not have"),
    "HF410": Code("an execute or blocking mode that is invalid, or does not fit the protocol"),
    "HF411": Code("a list that is not one value for each rank"),
    "HF412": Code("unknown protocol"),
    "HF413": Code("a value that cannot be split or joined"),
    "HF414": Code("generation sizes that do not divide the mesh"),
    "HF417": Code("a number from several chunks without a reduction"),
    "HF418": Code("invalid padding, or padding without a split and a join"),
    "HF419": Code("a collect that joins rows where another dim was split"),
    "HF420": Code("arguments of one call with different row counts"),
    "HF421": Code("a Whole method behind a protocol that splits"),
    "HF424": Code("an unknown reduction over ranks"),
    "HF425": Code("rows balanced by a column without weights, or without a split and a join"),
    # HF5xx resources
    "HF501": Code("a mesh of another size than its pool, or a size below 1"),
    "HF502": Code("a pool that the cluster's GPUs cannot hold"),
    "HF503": Code("a tensor-parallel group that crosses nodes", "warning"),
    "HF504": Code("a GPU or pool without room for its roles, or processes that do not start in time"),
    "HF505": Code("a pool that the cluster's CPUs cannot hold"),
    "HF507": Code("a role without a placement"),
    "HF508": Code("a placement without a role", "warning"),
    "HF509": Code("a role that is placed but never called", "warning"),
    "HF510": Code("a role that never receives the weights that another one trains"),
    "HF512": Code("a role class whose config and mesh do not meet its requirement"),
    "HF513": Code("a rank that does not exist"),
    "HF514": Code("an invalid pool, or two pools with one name"),
    "HF515": Code("a role class of another type than the dataflow declares"),
    "HF516": Code("arguments that the role's constructor does not accept"),
    "HF518": Code("an unknown backend"),
    "HF519": Code("a second plan that does not match the first"),
    "HF520": Code("a reserved or invalid environment variable for workers"),
    "HF521": Code("worker names that are taken, or that do not form a group"),
    "HF522": Code("a worker group that was shut down"),
    "HF523": Code("a cluster description that cannot be read"),
    "HF524": Code("a transport that does not reach its readers"),
    "HF525": Code("a role that cannot be offloaded"),
    "HF526": Code("a version of Ray that was not tried"),
    "HF540": Code("a constructor argument of another type than its parameter's annotation"),
    "HF541": Code("a placed class whose method differs from the one that the dataflow calls"),
    "HF542": Code("batches of an experiment that are not what its dataflow takes"),
    # HF6xx the graph
    "HF602": Code("a result that is never read", "warning"),
    "HF603": Code("a dataflow result that is not a value of the graph, or not of the annotated type"),
    "HF607": Code("a worker that is not a parameter of the dataflow"),
    "HF609": Code("a dataflow that differs each time it is traced", "warning"),
    "HF610": Code("the dataflow raised while it was traced"),
    # HF7xx effects
    "HF701": Code("weights that are staler than their reader allows"),
    "HF703": Code("a body that writes into its arguments"),
    "HF707": Code("a sync between roles that share no state"),
    "HF708": Code("weights that only rank 0 gets and every rank reads", "warning"),
    # HF71x configurations of runs
    "HF710": Code("a package that a configuration needs and that is not installed"),
    "HF711": Code("responses of another length than their columns"),
    "HF712": Code("policies that are compared and have different temperatures", "warning"),
    "HF713": Code("a KL coefficient without a reference"),
    "HF714": Code("responses that are sampled in another dtype than the policy learns in", "warning"),
    "HF715": Code("a model in parts where it has to be whole"),
    "HF716": Code("a learning rate that never reaches its peak, or ends at 0 before the run", "warning"),
    "HF717": Code("a verifier that scores the tasks of another data set", "warning"),
    "HF718": Code("a penalty of length that no response is long enough for", "warning"),
    "HF719": Code("parameters that learn in 16 bits by steps too small for them", "warning"),
    "HF720": Code("a key of a model's configuration that nothing reads", "warning"),
    # HF8xx running
    "HF801": Code("a module that workers cannot import"),
    "HF802": Code("a value that cannot be sent to another process", "warning"),
    "HF804": Code("much data through the driver", "warning"),
    "HF805": Code("a body's result is not what its signature says"),
    "HF806": Code("a role's body raised, or a worker died"),
    "HF807": Code("a wait that exceeded its deadline"),
    "HF808": Code("a run that is closed or broken"),
    "HF810": Code("ranks that disagree on whether an optional column is present"),
    "HF811": Code("a row that a ready-made role cannot process"),
    "HF812": Code("a configuration that lacks what a ready-made role needs"),
    "HF813": Code("a tensor-parallel size that does not divide the model"),
    # HF9xx training
    "HF901": Code("a configuration that does not match its fields"),
    "HF902": Code("a row that cannot be read, or lacks a field"),
    "HF903": Code("a prompt that is too long"),
    "HF904": Code("a tokenizer that does not match the model, or cannot pad"),
    "HF905": Code("a checkpoint of another configuration"),
    "HF906": Code("a checkpoint that is incomplete or cannot be written"),
    "HF907": Code("a metric that is not finite"),
    "HF908": Code("a state that cannot be saved"),
    "HF911": Code("a server that does not answer in time"),
    "HF912": Code("a request that a server refuses"),
    "HF913": Code("an answer of a server that cannot be used"),
    # HF92x tests
    "HF921": Code("an argument that a check of hfdsl.testing does not accept"),
    "HF922": Code("a check of hfdsl.testing that would compare nothing"),
    # HF93x the imperative layer
    "HF930": Code("rows of a worker group's method that do not add up"),
    "HF931": Code("a deadline that is not a positive number of seconds"),
    # HF94x values of training
    "HF940": Code("a value that a loss, a configuration or a formula does not take"),
    "HF941": Code("a loss without the columns that its terms need"),
    "HF942": Code("a copy of a policy that computes in another dtype", "warning"),
    "HF943": Code("a loss that does not account for the engine that samples", "warning"),
    # HF95x generation engines
    "HF950": Code("a version of an engine that was not tried"),
    "HF951": Code("an engine that does not start"),
    "HF952": Code("an engine without room for its cache"),
    "HF953": Code("a prompt that an engine cannot take"),
    "HF954": Code("an engine that died or failed"),
    "HF955": Code("an engine that does not answer in time"),
    "HF956": Code("weights of another model than the engine's"),
    "HF957": Code("an engine on ranks over which it cannot be divided"),
    # HF96x adapters
    "HF962": Code("a LoRA adapter that the model cannot have"),
}


def explain(code: str) -> str | None:
    """The explain page of a code, or None where there is no such code."""
    from pathlib import Path  # not at the top: `import hfdsl` is kept fast

    page = Path(__file__).parent / "explain" / f"{code.upper()}.md"
    return page.read_text(encoding="utf-8") if code.upper() in CODES else None
