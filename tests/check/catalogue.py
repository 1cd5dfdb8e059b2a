"""One hundred mistakes of RL post-training that were listed before hfdsl was built, and what answers each of them.

``shown`` names fixtures (``hf310`` for ``hf310.py`` in ``fixtures`` or ``fixtures_run``) and tests. Where hfdsl has
no code of that number, ``why`` says what takes its place: another code, or the reason why the mistake cannot be made.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    listed: str  # the code that the mistake had in the list
    mistake: str
    codes: tuple[str, ...]
    shown: tuple[str, ...]
    why: str = ""


def row(listed: str, mistake: str, *shown: str, codes: str | None = None, why: str = "") -> Row:
    return Row(listed, mistake, tuple((listed if codes is None else codes).split()), shown, why)


CATALOGUE = (
    # definitions
    row("HF101", "dims that cannot be read", "hf101"),
    row("HF102", "a dtype that does not exist", "hf102"),
    row("HF103", "an expression in an unusual order", "test_the_order_of_factors_and_terms_is_no_difference",
        codes="", why="every order is one normal form"),
    row("HF104", "a port or result without dtype and dims", "hf104", "hf104_result"),
    row("HF105", "*args or **kwargs in a role", "hf105"),
    row("HF106", "two variadic dims in one column", "test_a_column_has_no_variadic_dims",
        codes="HF101", why="a variadic dim is no dim"),
    row("HF107", "two dims that look alike", "test_different_dims_of_one_name_are_reported_apart",
        codes="HF210", why="dims are classes; a note says where both come from"),
    row("HF108", "a dim of a result that nothing binds", "hf108"),
    row("HF109", "an annotation that cannot be evaluated", "hf109"),
    row("HF110", "a bare tensor as a result", "test_a_bare_tensor_is_no_result_and_a_loose_column_is_one",
        codes="HF104", why="a body builds its columns; a bare tensor has no dtype and dims"),
    row("HF111", "a name that is taken", "test_names_are_taken_once"),
    row("HF112", "a protocol with one of its two functions", "test_a_protocol_has_both_of_its_functions"),
    # wiring, dtypes, shapes
    row("HF201", "no such column", "hf201"),
    row("HF202", "no such port or method", "hf202", "hf202_method"),
    row("HF203", "a port that is not wired", "hf203"),
    row("HF204", "a record that lacks columns", "hf204", "hf204_merge"),
    row("HF205", "one column of two makers in a merge", "hf205"),
    row("HF206", "a Python value where a tensor is needed", "hf206"),
    row("HF207", "control flow that needs a value", "hf207", "hf207_loop"),
    row("HF208", "computation in a dataflow", "hf208", "hf208_tensor"),
    row("HF209", "a value of another trace", "hf209"),
    row("HF210", "other dims than the port takes", "hf210", "hf210_rank"),
    row("HF211", "one dim of two sizes within a call", "hf210", "hf212",
        codes="HF210 HF212", why="a width is HF210, rows are HF212; both name the port that bound the dim first"),
    row("HF212", "one argument with a multiple of the other's rows", "hf212"),
    row("HF213", "a dim that cannot be solved for", "hf213"),
    row("HF214", "ragged rows where dense ones are needed, or the reverse", "hf214", "hf214_dense"),
    row("HF215", "a trailing dim of 1 that would broadcast", "hf215"),
    row("HF216", "lengths that differ by the prompt", "test_the_order_of_factors_and_terms_is_no_difference",
        codes="HF210", why="a note says by which dims one is shorter"),
    row("HF220", "another dtype", "hf220"),
    row("HF221", "a mask of whole numbers for one of truth values", "hf221"),
    row("HF222", "a cast that loses precision", "test_nothing_is_cast_on_an_edge",
        codes="HF220", why="nothing is cast on an edge"),
    row("HF230", "two values, each at the port of the other's name", "hf230"),
    row("HF231", "an optional column where one is needed", "hf231", "hf231_absent"),
    # sizes
    row("HF301", "a dim that nothing determines", "hf301"),
    row("HF302", "two sizes of one dim", "hf302", "test_inputs_that_do_not_fit_are_refused_and_break_nothing"),
    row("HF303", "a quotient that is not whole", "hf303"),
    row("HF304", "a count that is not a positive integer", "hf304", "hf310_minibatches", codes="HF304 HF310"),
    row("HF310", "rows that do not split evenly", "hf310"),
    row("HF311", "an exact division that nothing proves", "hf303", "hf319",
        codes="HF303 HF319", why="Div[...] is exact: refuted with a size, a warning without one"),
    row("HF312", "a micro-batch that does not divide a rank's rows", "hf322_micro",
        codes="HF322", why="a requirement of the role, solved with every split"),
    row("HF313", "a group that is cut by a split", "hf313", "hf313_function"),
    row("HF314", "a statistic of groups of one", "test_a_group_of_one_has_no_deviation"),
    row("HF315", "a rank that gets no rows",
        "test_every_chunk_reaches_somebody_and_is_collected_once_in_order", "hf310",
        codes="HF310", why="chunks are equal; there is no split that rounds up"),
    row("HF316", "a sequence that its parallel size does not divide", "hf322_sequence",
        codes="HF322", why="a requirement of the role"),
    row("HF317", "pad rows that are counted", "hf317"),
    row("HF318", "demands that no size satisfies", "hf318"),
    row("HF319", "what cannot be decided before launch", "hf319"),
    row("HF320", "a sequence beyond an engine's limit", "hf322_length",
        codes="HF322", why="a requirement of the role"),
    row("HF321", "a split of rows that a filter left", "hf321", "hf321_group", "hf321_take"),
    # dispatch and collect
    row("HF401", "one value a rank where a whole one is taken", "hf401"),
    row("HF402", "a list of another mesh", "hf402"),
    row("HF403", "a collect that drops a part of the value", "hf403", "hf403_partial"),
    row("HF404", "a collect that picks where no value is", "hf404", "hf404_stage"),
    row("HF405", "a collect that joins copies", "hf405"),
    row("HF406", "parts collected in another order", "test_every_chunk_reaches_somebody_and_is_collected_once_in_order",
        "test_the_numbering_of_ranks_does_not_matter",
        codes="", why="protocols go by coordinates, not by rank numbers"),
    row("HF407", "a dispatch that misses ranks", "test_a_dispatch_function_gives_one_value_a_rank"),
    row("HF408", "ranks of one model with different parts", "test_every_rank_has_only_its_rows_and_replicas_agree",
        codes="", why="a declared protocol gives all ranks of a coordinate the same chunk"),
    row("HF409", "an axis that the mesh does not have",
        "test_splitting_over_an_axis_of_another_system_is_refused"),
    row("HF410", "an execute mode that contradicts the protocol",
        "test_options_of_a_protocol_are_checked_before_any_call"),
    row("HF411", "a list that may mean two things", "hf411"),
    row("HF412", "a protocol that does not exist", "test_an_unknown_name_gets_a_suggestion"),
    row("HF413", "a value that has no rows to split", "hf413"),
    row("HF414", "generation sizes that do not divide training's",
        "test_a_generation_size_that_does_not_divide_names_the_divisors"),
    row("HF415", "a protocol that promises more than it keeps", "hf403_partial", "hf404_at", "hf405",
        codes="HF403 HF404 HF405", why="a collect is judged against what the body leaves"),
    row("HF416", "a gather that the next dispatch undoes", "test_edges_count_every_cell_that_a_rank_reads",
        codes="", why="a plan moves only what is read; `hfdsl plan` shows it"),
    row("HF417", "a number a rank without a reduction", "hf417"),
    row("HF418", "padding in a result that is not joined", "test_pad_rows_and_balanced_rows_come_back_where_they_went"),
    row("HF419", "a collect of rows where another dim was cut", "hf419"),
    row("HF420", "arguments of one call with different rows", "test_unrelated_rows_are_not_split_together"),
    # resources
    row("HF501", "a mesh of another size than its pool", "hf501"),
    row("HF502", "pools beyond the cluster", "hf502", "hf502_node"),
    row("HF503", "a tensor-parallel group across nodes", "hf503"),
    row("HF504", "roles that overfill a GPU", "hf504", "hf504_gib"),
    row("HF505", "processes beyond the CPUs", "hf505"),
    row("HF506", "nodes of unequal size", "test_unequal_nodes_are_no_finding",
        "test_groups_on_unequal_nodes_on_halves_and_on_the_whole",
        codes="", why="they work"),
    row("HF507", "a role without a place", "hf507"),
    row("HF508", "a place without a role", "hf508"),
    row("HF509", "an engine whose size does not divide its pool", "hf501",
        codes="HF501", why="an engine is a role with a mesh"),
    row("HF510", "a copy of weights that is never loaded", "hf510"),
    row("HF511", "roles of one pool that take turns", "test_roles_on_disjoint_devices_overlap_and_others_do_not",
        codes="", why="no mistake; a plan says which steps overlap"),
    row("HF512", "a model that its mesh does not divide", "hf512"),
    row("HF513", "a rank beyond the group", "test_a_rank_or_coordinate_outside_the_mesh_is_refused"),
    # the graph
    row("HF601", "a cycle without state", "test_a_value_is_made_before_it_is_read",
        codes="HF610", why="a Python variable is set before it is read"),
    row("HF602", "a result that nobody reads", "hf602"),
    row("HF603", "an output that is missing", "hf603_none", "hf603"),
    row("HF604", "a value of one branch only",
        "test_a_branch_on_a_constant_is_resolved_and_one_on_a_value_refused",
        codes="HF207 HF610", why="branches are on constants and are resolved"),
    row("HF605", "a type that changes from round to round",
        "test_a_loop_unrolls_and_a_value_that_grows_in_it_is_compared_each_time",
        codes="HF212", why="loops unroll, and every round is compared"),
    row("HF606", "a role that is used before it is built", "test_roles_are_built_before_any_of_them_is_called",
        codes="", why="a launch builds all roles first"),
    row("HF609", "two traces that differ", "hf609", "hf609_iterator"),
    # effects
    row("HF701", "generation with weights that are too old", "hf701"),
    row("HF702", "two writers of one state", "test_calls_of_one_role_keep_the_order_of_the_program",
        codes="", why="calls of a role keep the order of the program"),
    row("HF703", "a body that writes into a shared value", "test_a_role_that_writes_into_its_argument_is_reported"),
    row("HF704", "a column that another engine computes again", "hf205",
        codes="HF205", why="a column of a record has one maker, which is written down"),
    row("HF705", "random numbers without a seed", "test_the_numbers_of_a_row_are_the_same_on_any_mesh",
        codes="", why="every stream is derived from the run's seed"),
    row("HF706", "steps that overlap more than staleness allows", "hf701",
        codes="HF701", why="steps do not overlap; staleness is counted over several of them"),
    # running
    row("HF801", "a role that workers cannot import", "test_a_module_that_workers_cannot_import_is_reported"),
    row("HF802", "a value that cannot be pickled", "hf802", "hf802_function"),
    row("HF804", "large values that pass through the driver", "test_results_are_counted_once_and_inputs_are_not"),
    row("HF805", "a result that breaks its port", "test_a_result_is_held_against_its_signature"),
    row("HF806", "a worker that does not answer", "test_an_exception_in_a_body_is_reported_once_while_its_peers_wait"),
)  # fmt: skip

BESIDES = (
    # named since then, beside the list; the numbers are those of the codes
    row("HF509", "a role that nobody calls", "hf509"),
    row("HF520", "two groups, or a group and a server, at one port", "hf520",
        why="nowhere is a port named: a group meets at one that is free, and MASTER_PORT in an environment is refused; "
        "a port in a role's config is an argument like any other"),
)  # fmt: skip
