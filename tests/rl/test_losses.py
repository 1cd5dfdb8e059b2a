"""Losses against the papers' formulas, term by term, and what is known of them."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfdsl.errors import ConfigError
from hfdsl.rl.corrections import Correction
from hfdsl.rl.losses import (
    CISPO,
    DPO,
    Clip,
    ClippedValue,
    PolicyLoss,
    Reinforce,
    SequenceClip,
    imitation,
)
from hfdsl.rl.masked import token_weights
from tests.rl import oracle
from tests.rl.cases import Case, cases

POLICY_LOSSES: tuple[PolicyLoss, ...] = (
    Clip(),
    Clip(0.2, 0.28, dual=3.0),
    SequenceClip(0.1, 0.1),
    CISPO(0.2, 1.0),
    Reinforce(),
    Clip(kl=0.1, entropy=0.01),
    Clip(kl=0.1, estimator="k2", aggregation="sequence-mean-token-mean"),
    Reinforce(aggregation="sequence-mean-token-sum", constant=7.0),
)
INFINITE = math.inf


class Returns(PolicyLoss):
    """A loss whose surrogate returns what ``of`` makes of the mask."""

    of: Any

    def surrogate(
        self, log_probs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> Any:
        return type(self).of(mask.float())


@pytest.mark.parametrize(
    ("of", "returned"),
    [
        (lambda mask: (mask[:, :1], mask), r"\(2, 1\) and \(2, 3\)"),
        (lambda mask: (mask, mask[:, :1]), r"\(2, 3\) and \(2, 1\)"),
        (lambda mask: mask, r"\(2, 3\)"),
        (lambda mask: (mask.mean(), None), r"\(\) and NoneType"),
        (lambda mask: (), "nothing"),
    ],
)
def test_a_surrogate_has_a_value_for_each_token(of: Any, returned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Returns, "of", staticmethod(of), raising=False)
    column = torch.zeros(2, 3)
    with pytest.raises(ConfigError, match=rf"HF940: Returns\.surrogate .* \(2, 3\), but returned {returned}$"):
        Returns()(column, column, column[:, :1], torch.ones(2, 3, dtype=torch.bool))


class WithoutMask(PolicyLoss):
    def surrogate(self, log_probs: Any, old: Any, advantages: Any) -> Any: ...  # type: ignore[override]


class WithMore(PolicyLoss):
    def surrogate(self, log_probs: Any, old: Any, advantages: Any, mask: Any, width: Any) -> Any: ...  # type: ignore[override]


class Weighted(Returns):
    def weights(self, mask: Any) -> Any: ...  # type: ignore[override]


class Any4(PolicyLoss):
    def surrogate(self, *tensors: Any) -> Any: ...


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            WithoutMask,
            r"WithoutMask\.surrogate\(log_probs, old, advantages\) is called with .*mask\): too many",
        ),
        (WithMore, r"WithMore\.surrogate\(.*\) is called with .*mask\): missing a required argument: 'width'"),
        (Weighted, r"Weighted\.weights\(mask\) is called with \(mask, reduce\): too many positional arguments"),
    ],
)
def test_a_loss_takes_what_losses_are_called_with(loss: type[PolicyLoss], message: str) -> None:
    with pytest.raises(ConfigError, match=f"HF940: {message}"):
        loss()
    assert Any4().kl == 0, "however it takes them"


def test_a_surrogate_of_the_shape_of_the_mask_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Returns, "of", staticmethod(lambda mask: (mask, mask)), raising=False)
    column = torch.zeros(2, 3)
    terms = Returns()(column, column, column[:, :1], torch.ones(2, 3, dtype=torch.bool))
    assert terms.loss.tolist() == [[1.0] * 3] * 2


def columns(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return case.log_probs(1), case.log_probs(2), case.column(3)


@given(cases(), st.floats(0, 0.9), st.floats(0, 2), st.none() | st.floats(1.5, 4))
def test_clip(case: Case, low: float, high: float, dual: float | None) -> None:
    new, old, advantages = columns(case)
    rows = zip(*(case.tokens(x) for x in (new, old, advantages)), strict=True)
    expected = [[oracle.clip_loss(a, b, c, low, high, dual) for a, b, c in zip(*row, strict=True)] for row in rows]
    terms = Clip(low, high, dual)(new, old, advantages, case.mask)
    torch.testing.assert_close(terms.loss, case.placed(expected))


@given(cases())
def test_what_is_clipped_has_no_gradient(case: Case) -> None:
    new, old, advantages = columns(case)
    for loss in (Clip(0.2, 0.28), Clip(0.2, 0.28, dual=1.5)):
        leaf = new.clone().requires_grad_()
        terms = loss(leaf, old, advantages, case.mask)
        [gradient] = torch.autograd.grad(terms.loss.sum(), leaf)
        assert torch.equal(gradient == 0, (terms.clipped == 1) | ~case.mask)


@given(cases(), st.floats(0, 1), st.floats(0, 4))
def test_cispo(case: Case, low: float, high: float) -> None:
    new, old, advantages = columns(case)
    rows = zip(*(case.tokens(x) for x in (new, old, advantages)), strict=True)
    expected = [[oracle.cispo_loss(a, b, c, low, high) for a, b, c in zip(*row, strict=True)] for row in rows]
    leaf = new.clone().requires_grad_()
    terms = CISPO(low, high)(leaf, old, advantages, case.mask)
    torch.testing.assert_close(terms.loss.detach(), case.placed(expected))
    [gradient] = torch.autograd.grad(terms.loss.sum(), leaf)
    weights = (new - old).exp().clamp(1 - low, 1 + high)
    torch.testing.assert_close(gradient, torch.where(case.mask, -weights * advantages, torch.zeros_like(new)))


@given(cases(), st.floats(0, 0.9), st.floats(0, 2), st.floats(1, 5))
def test_decoupled_ppo_has_three_policies(case: Case, low: float, high: float, most: float) -> None:
    new, proximal, advantages = columns(case)
    behavior = case.log_probs(8)
    rows = zip(*(case.tokens(x) for x in (new, proximal, behavior, advantages)), strict=True)
    expected = [
        [oracle.decoupled_loss(a, b, c, d, low, high, most) for a, b, c, d in zip(*row, strict=True)] for row in rows
    ]
    loss = Clip(low, high, correction=Correction(high=most))
    terms = loss(new, proximal, advantages, case.mask, engine_log_probs=behavior)
    torch.testing.assert_close(terms.loss, case.placed(expected))


@given(cases())
def test_an_infinite_range_is_the_plain_ratio(case: Case) -> None:
    new, old, advantages = columns(case)
    terms = Clip(INFINITE, INFINITE)(new, old, advantages, case.mask)
    torch.testing.assert_close(terms.loss, -(new - old).exp() * advantages)
    assert terms.clipped.sum() == 0


@given(cases())
def test_at_the_policy_that_generated_all_have_the_gradient_of_reinforce(case: Case) -> None:
    new = case.log_probs(1)
    weights = token_weights(case.mask, "sequence-mean-token-mean")
    level = case.scores(4)[:, None].expand(case.mask.shape)  # GSPO's are advantages of responses
    gradients = []
    for loss in (Reinforce(), Clip(), Clip(dual=3.0), SequenceClip(), CISPO()):
        leaf = new.clone().requires_grad_()
        terms = loss(leaf, new, level, case.mask)
        assert terms.clipped.sum() == 0
        assert terms.kl.abs().max() == 0
        gradients.append(torch.autograd.grad((terms.loss * weights).sum(), leaf)[0])
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


@given(cases(), st.floats(0, 0.9), st.floats(0, 2))
def test_gspo(case: Case, low: float, high: float) -> None:
    new, old, _ = columns(case)
    scores = case.scores(4)
    expected = []
    for a, b, score in zip(case.tokens(new), case.tokens(old), scores.tolist(), strict=True):
        ratio = math.log(oracle.sequence_ratio(a, b)) if a else 0.0
        expected.append([oracle.clip_loss(ratio, 0.0, score, low, high)] * len(a))
    terms = SequenceClip(low, high)(new, old, scores[:, None], case.mask)
    torch.testing.assert_close(terms.loss, case.placed(expected))


@given(st.integers(0, 1000), st.integers(1, 5))
def test_gspo_is_ppo_for_responses_of_one_token(seed: int, rows: int) -> None:
    case = Case(torch.tensor([[False, True, False]] * rows), seed)
    new, old, advantages = columns(case)
    gspo, ppo = (loss(new, old, advantages, case.mask) for loss in (SequenceClip(0.2, 0.3), Clip(0.2, 0.3)))
    for gspo_term, ppo_term in zip(gspo, ppo, strict=True):
        torch.testing.assert_close(gspo_term, ppo_term)


@given(cases())
def test_a_kl_term_and_an_entropy_bonus(case: Case) -> None:
    new, old, advantages = columns(case)
    reference, entropy = case.log_probs(5), case.column(6).abs()
    plain = Clip()(new, old, advantages, case.mask)
    both = Clip(kl=0.2, estimator="k2", entropy=0.03)(
        new, old, advantages, case.mask, reference_log_probs=case.spoilt(reference), entropy=case.spoilt(entropy)
    )
    kl = (new - reference) ** 2 / 2
    torch.testing.assert_close(both.loss, plain.loss + 0.2 * kl - 0.03 * entropy)
    torch.testing.assert_close(both.reference_kl, kl)
    torch.testing.assert_close(both.kl, (new - old).exp() - 1 - (new - old))


@pytest.mark.parametrize("loss", POLICY_LOSSES, ids=repr)
@given(case=cases())
def test_padding_never_matters(loss: PolicyLoss, case: Case) -> None:
    def terms_and_gradient(spoil: bool) -> list[torch.Tensor]:
        columns_ = [case.log_probs(1), case.log_probs(2), case.column(3), case.log_probs(5), case.column(6)]
        new, old, advantages, reference, entropy = (case.spoilt(x) if spoil else x for x in columns_)
        new.requires_grad_()
        terms = loss(new, old, advantages, case.mask, reference_log_probs=reference, entropy=entropy)
        total = (terms.loss * loss.weights(case.mask)).sum()
        [gradient] = torch.autograd.grad(total, new)
        return [*terms, gradient]

    clean, spoilt = terms_and_gradient(spoil=False), terms_and_gradient(spoil=True)
    for clean_column, spoilt_column in zip(clean, spoilt, strict=True):
        assert torch.equal(clean_column, spoilt_column)
        assert spoilt_column.isfinite().all()
        assert (spoilt_column[~case.mask] == 0).all()


@pytest.mark.parametrize("loss", POLICY_LOSSES, ids=repr)
@pytest.mark.parametrize("gap", [300.0, -300.0])
@pytest.mark.parametrize("advantage", [1e4, 0.0, -1e4])
def test_policies_far_apart_make_no_nan(loss: PolicyLoss, gap: float, advantage: float) -> None:
    new = torch.full((1, 2), -400.0, requires_grad=True)
    old, mask = torch.full((1, 2), -400.0 - gap), torch.ones(1, 2)
    terms = loss(new, old, torch.full((1, 2), advantage), mask, reference_log_probs=old, entropy=torch.ones(1, 2))
    [gradient] = torch.autograd.grad(terms.loss.sum(), new)
    assert all(x.isfinite().all() for x in (*terms, gradient))


@pytest.mark.parametrize("loss", [loss for loss in POLICY_LOSSES if not isinstance(loss, CISPO)], ids=repr)
def test_gradients(loss: PolicyLoss) -> None:
    case = Case(torch.tensor([[True, True, False], [True, True, True], [False, False, False]]), seed=3)
    new, old, advantages = columns(case)
    reference, entropy = case.log_probs(5), case.column(6)
    weights = loss.weights(case.mask)

    def total(log_probs: torch.Tensor, bonus: torch.Tensor) -> torch.Tensor:
        terms = loss(log_probs, old, advantages, case.mask, reference_log_probs=reference, entropy=bonus)
        return (terms.loss * weights).sum()

    # CISPO's is no derivative of its value: no gradient passes its weight, see test_cispo.
    assert torch.autograd.gradcheck(total, (new.requires_grad_(), entropy.requires_grad_()))


class Fading(Clip):
    """Rows count half for every update that they are old."""

    def staleness_weights(self, staleness: torch.Tensor) -> torch.Tensor:
        return 0.5**staleness


@given(cases(), st.lists(st.integers(0, 8), min_size=1))
def test_rows_weigh_what_a_loss_gives_their_staleness(case: Case, updates: list[int]) -> None:
    """The surrogate alone: what a row loses by a KL term or gains by entropy does not depend on who sampled it."""
    rows = len(case.mask)
    staleness = torch.tensor((updates * rows)[:rows])[:, None]
    now, old, advantage = columns(case)
    inputs = (now, old, advantage, case.mask)
    plain, with_kl = Fading(0.2)(*inputs), Fading(0.2, kl=0.5)(*inputs, reference_log_probs=case.log_probs(4))
    stale = Fading(0.2, kl=0.5)(*inputs, reference_log_probs=case.log_probs(4), staleness=staleness)
    kl = with_kl.loss - plain.loss
    torch.testing.assert_close(stale.loss, plain.loss * 0.5**staleness + kl)
    assert torch.equal(Clip(0.2)(*inputs, staleness=staleness).loss, Clip(0.2)(*inputs).loss)


def test_only_the_loss_has_a_gradient() -> None:
    case = Case(torch.tensor([[True, True]]), seed=1)
    new, old, advantages = columns(case)
    terms = Clip(kl=0.1)(new.requires_grad_(), old, advantages, case.mask, reference_log_probs=old)
    assert [name for name, term in terms._asdict().items() if term.requires_grad] == ["loss"]


@pytest.mark.parametrize("loss", [*POLICY_LOSSES, ClippedValue(), DPO()], ids=repr)
def test_a_loss_is_a_value(loss: Any) -> None:
    copy = pickle.loads(pickle.dumps(loss))
    assert copy == loss
    assert hash(copy) == hash(loss)
    assert eval(repr(loss), {type(loss).__name__: type(loss), "Correction": Correction}) == loss


def test_dapo_and_gspo_are_a_change_of_one_argument() -> None:
    assert Clip(0.2, 0.28).aggregation == "token-mean"
    assert SequenceClip().aggregation == "sequence-mean-token-mean"
    assert replace(SequenceClip(3e-4, 4e-4), aggregation="token-mean") != SequenceClip(3e-4, 4e-4)


# -- values


@given(cases(), st.floats(0.01, 1))
def test_value_loss(case: Case, clip: float) -> None:
    values, old, returns = case.column(1), case.column(2), case.column(3)
    rows = zip(*(case.tokens(x) for x in (values, old, returns)), strict=True)
    expected = [[oracle.value_loss(v, o, g, clip) for v, o, g in zip(*row, strict=True)] for row in rows]
    terms = ClippedValue(clip)(case.spoilt(values), case.spoilt(old), case.spoilt(returns), case.mask)
    torch.testing.assert_close(terms.loss, case.placed(expected))
    assert set(terms.clipped.flatten().tolist()) <= {0.0, 1.0}


@given(cases())
def test_without_a_clip_it_is_half_the_squared_error(case: Case) -> None:
    values, old, returns = case.column(1), case.column(2), case.column(3)
    for clip in (None, INFINITE):
        terms = ClippedValue(clip)(values, old, returns, case.mask)
        torch.testing.assert_close(terms.loss, (values - returns) ** 2 / 2)
    assert ClippedValue()(returns, returns, returns, case.mask).loss.abs().max() == 0


def test_value_gradients() -> None:
    case = Case(torch.tensor([[True, True, False], [True, False, False]]), seed=5)
    loss, old, returns = ClippedValue(0.2), case.column(2), case.column(3)
    assert torch.autograd.gradcheck(
        lambda values: (loss(values, old, returns, case.mask).loss * loss.weights(case.mask)).sum(),
        (case.column(1).requires_grad_(),),
    )


# -- preferences


@given(st.lists(st.floats(-50, 0), min_size=4, max_size=4), st.floats(0.01, 1), st.floats(0, 0.5))
def test_dpo(log_probs: list[float], beta: float, smoothing: float) -> None:
    chosen, rejected, ref_chosen, ref_rejected = log_probs
    margin = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    expected = (1 - smoothing) * math.log1p(math.exp(-margin)) + smoothing * math.log1p(math.exp(margin))
    terms = DPO(beta, smoothing)(*(torch.tensor([x], dtype=torch.float64) for x in log_probs))
    assert terms.loss.item() == pytest.approx(expected)
    assert terms.margin.item() == pytest.approx(margin)
    assert terms.correct.item() == float(margin > 0)


@given(st.floats(-1000, 0), st.floats(-1000, 0), st.floats(0.01, 1))
def test_dpo_at_equal_policies_is_log_2(chosen: float, rejected: float, beta: float) -> None:
    a, b = torch.tensor([chosen]), torch.tensor([rejected])
    assert DPO(beta)(a, b, a, b).loss.item() == pytest.approx(math.log(2))


def test_dpo_pushes_the_pair_apart() -> None:
    chosen, rejected = (torch.tensor([-3.0, -2.0], dtype=torch.float64, requires_grad=True) for _ in range(2))
    reference = torch.tensor([-2.5, -2.5], dtype=torch.float64)
    terms = DPO(0.1)(chosen, rejected, reference, reference)
    up, down = torch.autograd.grad(terms.loss.sum(), (chosen, rejected))
    torch.testing.assert_close(up, -down)
    assert (up < 0).all()
    assert torch.autograd.gradcheck(lambda a, b: DPO(0.1, 0.2)(a, b, reference, reference).loss, (chosen, rejected))


def test_dpo_of_certain_pairs_is_finite() -> None:
    far, near = torch.tensor([-1e6, 0.0]), torch.tensor([0.0, -1e6])
    terms = DPO(1.0)(far, near, near, near)
    assert terms.loss.isfinite().all()


# -- the rest


@given(cases())
def test_imitation_is_cross_entropy(case: Case) -> None:
    log_probs = case.log_probs(1)
    assert torch.equal(imitation(case.spoilt(log_probs), case.mask), log_probs.abs())
    logits = torch.randn(*case.mask.shape, 5, generator=torch.Generator().manual_seed(case.seed), dtype=torch.float64)
    target = logits.argmin(-1)
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), target, reduction="none") * case.mask
    loss = imitation(logits.log_softmax(-1).gather(-1, target[..., None])[..., 0], case.mask)
    torch.testing.assert_close(loss, expected)
