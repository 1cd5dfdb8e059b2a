"""The check: trace, infer, gather demands, and run every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from numbers import Integral
from operator import index
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hfdsl.check.context import EVERYTHING, Context, NumberEdits, Tester, Timing
from hfdsl.check.findings import Finding, Label, is_error, order
from hfdsl.check.program import Program
from hfdsl.check.queue_bounds import queue_bounds
from hfdsl.check.report import Coverage, Report
from hfdsl.check.rules.dataflow import (
    columns,
    definitions,
    formulas,
    misuses,
    presence,
    renamed,
    repeatable,
    results,
    serialization,
    swapped,
    unread,
    unread_masks,
    wiring,
)
from hfdsl.check.rules.learning import (
    baselines,
    body_temperatures,
    borrowed_scores,
    clip_ranges,
    constant_seeds,
    critic_losses,
    critics,
    crossed_critics,
    discounts,
    drifting_replicas,
    dropout,
    ends,
    engines,
    equal_scores,
    imitation,
    kl_signs,
    learned_parts,
    lengths,
    loss_masks,
    loss_signs,
    loss_terms,
    mistaken_numbers,
    optimizer_steps,
    padded_losses,
    precision,
    preference_losses,
    prompt_scores,
    ratio_bases,
    ratios,
    references,
    repeated_terms,
    returns,
    reward_signs,
    sampling,
    shifted_tokens,
    step_estimates,
    temperatures,
    unusual,
    updates,
    value_targets,
    vocabularies,
)
from hfdsl.check.rules.placement import (
    caches,
    call_obstacles,
    classes,
    constructors,
    driver_load,
    loaders,
    memory,
    model_memory,
    obstacles,
    overrides,
    placements,
    resources,
    slices,
    stated_facts,
    tensor_groups,
    transports,
)
from hfdsl.check.rules.queues import (
    bounds,
    concurrency,
    followed_queues,
    in_flight,
    lags,
    live_queues,
    sources,
    spare_lags,
)
from hfdsl.check.rules.rows import (
    balances,
    broadcasts,
    collects,
    copies,
    dims,
    filtered,
    groups,
    mixed_rows,
    padded_tokens,
    padding,
    provenance,
    reordered,
    sizes,
    sliced_rows,
    zero_spreads,
)
from hfdsl.check.rules.weights import (
    copied_models,
    declared_states,
    exported_parts,
    ignored_layouts,
    layouts,
    rank_zero,
    state,
    stated_parameters,
    unsaved_attributes,
)
from hfdsl.check.sizes.kept_rows import KeptRows
from hfdsl.check.sizes.multiple_sizes import Rule, check_each_size
from hfdsl.deploy.cluster import Cluster
from hfdsl.deploy.deployment import Deployment, Placement
from hfdsl.errors import DefinitionError
from hfdsl.graph.infer import infer
from hfdsl.graph.parameters import with_placed_roles
from hfdsl.graph.spans import Span, caller_span, definition_span
from hfdsl.graph.trace import trace
from hfdsl.protocols.role_facts import sampling_engine
from hfdsl.types.dims import Dim, Sizes
from hfdsl.types.numbers import is_count

if TYPE_CHECKING:
    from hfdsl.check.repair.trials import Trials


@dataclass(frozen=True, slots=True)
class BySize:
    """A rule whose findings depend on sizes. Those of the others are the same for all sizes."""

    find: Rule


RULES: tuple[Rule | BySize, ...] = (
    definitions.results_are_bound,
    definitions.records_name_dims,
    balances.balance_columns_weigh_rows,
    misuses.misuses,
    BySize(wiring.mismatches),
    unread.unused,
    unread_masks.masks_of_learned_tokens_are_read,
    columns.bodies_read_their_columns,
    formulas.numbers_fit_formulas,
    formulas.groups_have_a_spread,
    zero_spreads.divisors_are_not_zero,
    mixed_rows.rows_are_kept_apart,
    broadcasts.rows_meet_rows,
    padded_tokens.padding_is_no_token,
    padded_losses.losses_leave_padding_out,
    loss_masks.losses_are_of_responses,
    shifted_tokens.log_probs_are_of_the_next_tokens,
    BySize(results.results),
    swapped.names_are_not_crossed,
    renamed.columns_keep_their_names,
    repeatable.traces_agree,
    BySize(presence.certain_columns),
    BySize(presence.provisions_are_right),
    BySize(presence.tests_of_columns),
    BySize(presence.returned_columns),
    BySize(sizes.row_arithmetic),
    BySize(filtered.filtered_rows),
    BySize(filtered.enough_rows),
    BySize(filtered.fills_need_not_repeat),
    BySize(sizes.rows_split_alike),
    groups.groups_are_of_one_question,
    copies.groups_are_no_copies,
    provenance.rows_that_meet_are_the_same,
    reordered.reordered_rows_meet_their_own,
    borrowed_scores.tokens_have_scores_of_their_own,
    prompt_scores.scores_are_of_responses,
    ratios.ratios_name_columns,
    ratios.ratios_are_of_one_policy,
    repeated_terms.rows_are_learned_with_a_ratio,
    repeated_terms.rows_are_learned_a_few_times,
    repeated_terms.references_hold_once,
    kl_signs.policies_pay_for_the_kl,
    reward_signs.rewards_have_their_signs,
    bounds.all_rules,
    BySize(live_queues.batches_are_filled),
    BySize(sources.sources_take_alike),
    sources.sources_lose_alike,
    followed_queues.runs_follow_queues,
    BySize(followed_queues.runs_follow_groups),
    live_queues.stages_overlap,
    live_queues.stages_need_processes_of_their_own,
    in_flight.roles_take_weights_in_flight,
    concurrency.concurrent_calls_overlap,
    lags.all_rules,
    dims.whole_sizes,
    dims.dims_are_known,
    dims.row_dims_are_determined,
    BySize(sizes.requirements),
    BySize(padding.pad_rows_count_for_nothing),
    placements.roles_have_places,
    placements.placed_roles_are_called,
    placements.meshes_fill_pools,
    placements.pool_names_are_unique,
    constructors.constructors_take_arguments,
    constructors.constructors_take_types,
    constructors.constructors_take_numbers,
    stated_facts.facts_take_arguments,
    overrides.overrides_agree,
    overrides.numbers_fit_overrides,
    loaders.batches_fit,
    placements.protocols_fit_meshes,
    collects.values_are_kept,
    placements.results_can_be_joined,
    collects.lists_fit_ranks,
    collects.lists_are_not_joined,
    declared_states.states_are_declared,
    state.weights_are_fresh,
    unsaved_attributes.attributes_are_saved,
    rank_zero.ranks_hold_the_same_weights,
    drifting_replicas.replicas_learn_together,
    optimizer_steps.steps_have_their_gradients,
    constant_seeds.steps_draw_other_numbers,
    layouts.weights_reach_every_rank,
    exported_parts.parts_are_joined,
    ignored_layouts.layouts_are_of_ranks,
    stated_parameters.parameters_are_of_own_states,
    copied_models.copies_have_the_model,
    precision.copies_compute_alike,
    precision.references_compute_alike,
    vocabularies.readers_have_the_vocabulary,
    temperatures.temperatures_agree,
    body_temperatures.updates_are_at_the_temperature_of_their_samples,
    engines.losses_correct_engines,
    dropout.ratios_are_without_dropout,
    loss_terms.terms_do_what_they_say,
    loss_signs.losses_have_their_signs,
    preference_losses.losses_prefer_the_preferred,
    critic_losses.critics_take_the_greater_error,
    clip_ranges.clips_are_around_one,
    ratio_bases.ratios_are_to_samplers,
    references.losses_have_their_reference,
    references.references_are_other_models,
    critics.critics_learn,
    step_estimates.estimates_add_up_later_steps,
    value_targets.critics_learn_returns,
    value_targets.advantages_have_the_values_from_before,
    mistaken_numbers.advantages_say_how_good,
    mistaken_numbers.numbers_are_those_that_roles_gave,
    learned_parts.critics_learn_the_rows_of_policies,
    returns.critics_learn_the_returns_of_advantages,
    critic_losses.critics_learn_no_advantages,
    critic_losses.critics_clip_around_old_values,
    crossed_critics.critics_learn_over_their_own_values,
    baselines.baselines_are_other_scores,
    imitation.imitated_responses_are_chosen,
    sampling.responses_of_a_prompt_differ,
    sampling.rollouts_are_of_the_whole_distribution,
    ends.responses_end,
    equal_scores.scores_tell_responses_apart,
    BySize(sampling.results_have_their_size),
    BySize(caches.caches_hold_a_row),
    BySize(lengths.penalties_can_act),
    BySize(lengths.divisors_are_lengths),
    updates.learning_rates_change_parameters,
    updates.steps_are_not_rounded_away,
    unusual.numbers_are_usual,
    unusual.rates_suit_saved_weights,
    unusual.temperatures_leave_a_choice,
    BySize(discounts.rewards_reach_the_first_tokens),
    classes.classes_fit_meshes,
    obstacles.roles_can_be_constructed,
    call_obstacles.roles_run_their_calls,
    resources.pools_fit_cluster,
    memory.memory_fits_gpus,
    model_memory.models_fit_gpus,
    tensor_groups.tensor_groups_stay,
    slices.tp_divides_models,
    sliced_rows.slices_get_the_same_rows,
    transports.transports_reach,
    serialization.values_can_be_sent,
    driver_load.little_through_driver,
)


def check(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], Sizes],
    cluster: Cluster | None = None,
    call_site: Span | None = None,
    loader: Callable[[], Any] | None = None,
    *,
    numbers: NumberEdits | None = None,
    is_shuffled: bool = False,
    repairs: bool = True,
    timing: Timing | None = None,
) -> Report:
    """The report on a dataflow: every finding of every rule.

    ``call_site`` is where its sizes are given, or else ``numbers`` edits them; ``loader`` gives the batches of an
    experiment, and ``is_shuffled`` says that their rows are of different questions in random order. Without ``repairs``
    the report says only what is wrong. With ``timing`` it says how long a step of a program with queues takes.
    """
    start = perf_counter()
    try:
        context = build_context(body, deployment, dims, cluster, call_site)
    except DefinitionError as error:  # an annotation without meaning: there is no program to continue with
        return Report(body.__name__, (Finding(error.code, error.message, Label(definition_span(body))),))
    context = replace(context, loader=loader, numbers=numbers, is_shuffled=is_shuffled, timing=timing)
    return build_report(context, start, repairs=repairs)


def build_context(
    body: Callable[..., Any],
    deployment: Deployment | None,
    dims: Mapping[type[Dim], Sizes],
    cluster: Cluster | None = None,
    call_site: Span | None = None,
) -> Context:
    """The traced program with its inferred sizes.

    Raises:
        DefinitionError: HF109 if an annotation of the dataflow cannot be evaluated.
    """
    body = with_placed_roles(body, deployment.placements if deployment else ())
    graph = trace(body)
    requested: Mapping[Any, Any] = dims if isinstance(dims, Mapping) else {EVERYTHING: dims}
    sizes = {dim: numbers for dim, size in requested.items() if (numbers := _sizes_of(dim, size))}
    program = Program(graph, infer(graph), deployment, body)
    return replace(
        Context.of(program, {dim: numbers[0] for dim, numbers in sizes.items()}),
        alternatives={dim: numbers for dim, numbers in sizes.items() if len(numbers) > 1},
        invalid={dim: size for dim, size in requested.items() if dim not in sizes},
        call_site=call_site or caller_span(),
        cluster=cluster,
    )


def _sizes_of(dim: object, requested: Any) -> tuple[int, ...]:
    """The sizes given for a dim, each once; none if one of them is not a size."""
    sizes: tuple[Any, ...] = tuple(requested) if isinstance(requested, (tuple, list)) else (requested,)
    sizes = tuple(size if isinstance(size, bool) or not isinstance(size, Integral) else index(size) for size in sizes)
    all_counts = all(is_count(size) for size in sizes)  # NumPy's are as good as Python's
    return tuple(dict.fromkeys(sizes)) if all_counts and isinstance(dim, type) and issubclass(dim, Dim) else ()


def build_report(context: Context, start: float, *, repairs: bool = True) -> Report:
    """Run every rule; repairs are tried, and suggested if they work."""

    @cache
    def all_trials() -> Trials:
        from hfdsl.check.repair.trials import Trials  # late: a program without findings needs no repairs

        return Trials(context, run_rules)

    def tester(finding: Finding) -> Tester | None:
        return partial(all_trials().removes, finding) if all_trials().admit(finding) else None

    asked = replace(context, trials=tester if repairs else None, search=repairs)
    findings = order(run_rules(asked))
    if findings:
        from hfdsl.check.suppressions import unsuppressed

        kept_rows = KeptRows(context.program)
        findings = tuple(map(kept_rows.explained, unsuppressed(findings)))
    milliseconds = (perf_counter() - start) * 1000
    nodes, roles = len(context.program.graph.nodes), len(context.program.graph.roles)
    counts = f"{nodes} node{'s' * (nodes != 1)}, {roles} role{'s' * (roles != 1)}"
    coverage = Coverage(
        checked=sum(len(part.bindings) for part in context.components),
        combinations=sum(part.combinations for part in context.components),
        search_cut_off=context.budget.exhausted,
    )
    engines = [f"'{role}' samples with {engine}" for role, engine in _engines(context.program.placements)]
    times = () if any(map(is_error, findings)) else _times(asked)
    facts = f" ({', '.join([counts, *engines, *times, *coverage.omissions, f'{milliseconds:.1f} ms'])})"
    report = Report(context.program.graph.name, findings, facts, coverage)
    return replace(report, queues=queue_bounds(context)) if report.ok and context.program.split.queues else report


def _times(context: Context) -> Iterator[str]:
    """The time of a step and its bottleneck."""
    if (time := context.step_time) is not None:
        yield f"{time.seconds:.4g} s per step, longest {time.bottleneck}"


def _engines(placements: Mapping[str, Placement[Any]]) -> Iterator[tuple[str, str]]:
    """The roles that sample with another engine than the trainer's, and the engine."""
    for role, place in placements.items():
        if engine := sampling_engine(place.role, place.args, place.kwargs):
            yield role, engine


def run_rules(context: Context) -> Sequence[Finding]:
    """The findings of all rules, those of sizes for each combination of them."""
    findings: dict[tuple[object, ...], Finding] = {}
    for rule in RULES:
        find = rule.find if isinstance(rule, BySize) else rule
        several = context.alternatives and isinstance(rule, BySize)
        for finding in check_each_size(context, find) if several else find(context):
            # A loop over mini-batches or epochs unrolls: a mistake in its body is one mistake.
            findings.setdefault((finding.code, finding.primary.span, finding.message), finding)
    if context.timing is None or any(map(is_error, findings.values())):
        return list(findings.values())
    return [*findings.values(), *spare_lags.lags_make_steps_faster(context, findings.values())]
