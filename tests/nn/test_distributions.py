"""Distributions against scipy and torch, and probabilistic modules where the reference is no oracle."""

import copy
import pickle

import pytest
import torch
from torch import distributions as D

from tensordict_lite import TensorDict
from tensordict_lite.nn import (
    CompositeDistribution,
    OneHotCategorical,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TruncatedNormal,
    rand_one_hot,
    set_interaction_type,
)
from tensordict_lite.nn.distributions.truncated_normal import TruncatedStandardNormal

INTERVALS = [(-1.0, 1.0), (0.5, 2.0), (-3.0, -0.1), (-2.0, 8.0), (6.0, 9.0), (-40.0, -35.0), (-8.0, 30.0)]


@pytest.mark.parametrize(("a", "b"), INTERVALS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_truncated_normal_is_scipys(a: float, b: float, dtype: torch.dtype) -> None:
    from scipy import integrate, stats  # slow: not for those who only collect

    loc, scale = 0.7, 1.9
    low, high = loc + scale * a, loc + scale * b
    ours = TruncatedNormal(*(torch.tensor(v, dtype=dtype) for v in (loc, scale, low, high)))
    theirs = stats.truncnorm(float(ours.a), float(ours.b), loc=loc, scale=scale)
    close = {"rtol": 2e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 1e-6, "atol": 1e-9}
    # scipy's own entropy loses its digits away from the mode, and its variance where the mass is small.
    start, end = theirs.ppf(0.0), theirs.ppf(1.0)
    points = theirs.ppf([1e-9, 0.1, 0.5, 0.9, 1 - 1e-9])
    entropy = integrate.quad(lambda x: -theirs.pdf(x) * theirs.logpdf(x), start, end, points=points)[0]
    part = torch.tensor([0.01, 0.3, 0.5, 0.99], dtype=dtype)
    at = torch.tensor(theirs.ppf(part.numpy()), dtype=dtype).clamp(ours._bounds[0], ours._bounds[1])
    for found, wanted in (
        (ours.mean, theirs.mean()),
        (ours.entropy(), entropy),
        (ours.icdf(part), theirs.ppf(part.numpy())),
        (ours.cdf(at), theirs.cdf(at.numpy())),
        (ours.log_prob(at), theirs.logpdf(at.numpy())),
    ):
        torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=dtype), **close)
    if abs(a) < 30:
        torch.testing.assert_close(ours.variance, torch.as_tensor(theirs.var(), dtype=dtype), **close)


def test_truncated_normal_far_out_has_moments_and_samples_inside() -> None:
    dist = TruncatedNormal(torch.tensor([50.0, -50.0]), torch.tensor(0.5), -1.0, 1.0)
    assert dist.mean.isfinite().all() and ((dist.mean > -1) & (dist.mean < 1)).tolist() == [True, True]
    sample = dist.sample((1000,))
    assert ((sample >= -1) & (sample <= 1)).all()
    torch.testing.assert_close(sample.mean(0), dist.mean, atol=1e-3, rtol=1e-3)
    assert dist.log_prob(sample).isfinite().all()
    outside = TruncatedNormal(0.0, 1.0, -1.0, 1.0, validate_args=False).log_prob(torch.tensor([3.0]))
    assert outside.tolist() == [-torch.inf]


def test_truncated_normal_is_reparameterised() -> None:
    torch.manual_seed(0)
    loc = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    part = torch.rand(5, dtype=torch.float64)
    value = lambda at: TruncatedNormal(at, torch.ones_like(at), -1.0, 1.0).icdf(part)  # noqa: E731
    assert torch.autograd.gradcheck(value, (loc,))
    assert TruncatedNormal(loc, torch.ones_like(loc), -1.0, 1.0).rsample().requires_grad


def test_an_interval_without_end_is_the_normal_distribution() -> None:
    dist = TruncatedStandardNormal(torch.tensor(-torch.inf), torch.tensor(torch.inf))
    normal = D.Normal(torch.tensor(0.0), torch.tensor(1.0))
    assert dist.mean == 0 and dist.variance == 1
    torch.testing.assert_close(dist.entropy(), normal.entropy())
    torch.testing.assert_close(dist.log_prob(torch.tensor(0.3)), normal.log_prob(torch.tensor(0.3)))


def test_one_hot_samples_have_the_frequencies_of_their_probabilities() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([0.1, 0.6, 0.3])
    for sample in (OneHotCategorical(probs=probs).sample((5000,)), rand_one_hot(probs.expand(5000, 3), False)):
        assert sample.dtype is torch.long and (sample.sum(-1) == 1).all()
        torch.testing.assert_close(sample.float().mean(0), probs, atol=0.03, rtol=0)
    logits = torch.randn(4, 3, requires_grad=True)
    relaxed = OneHotCategorical(logits=logits).rsample()
    assert (relaxed.sum(-1) == 1).all() and torch.autograd.grad(relaxed[..., 0].sum(), logits)[0].any()
    assert OneHotCategorical(logits=torch.zeros(3)).expand((2,)).sample().shape == (2, 3)


# -- probabilistic modules -----------------------------------------------------------------------------------------


def chain(**options) -> ProbabilisticTensorDictSequential:
    def part(source, loc, value):
        return [
            TensorDictModule(lambda x: x * 2 + 1, [source], [loc]),
            ProbabilisticTensorDictModule(
                {"loc": loc}, [value], distribution_class=D.Normal, distribution_kwargs={"scale": 1.0},
                return_log_prob=True, default_interaction_type="random",
            ),
        ]  # fmt: skip

    return ProbabilisticTensorDictSequential(*part("x", "loc", "s0"), *part("s0", "loc2", "s1"), **options)


@pytest.mark.parametrize("composite", [True, False])
def test_the_log_probability_of_values_is_that_of_these_values(composite: bool) -> None:
    policy = chain(return_composite=composite)
    td = policy(TensorDict(x=torch.ones(3)))
    found = policy.log_prob(td.select("x", "s0", "s1"))
    wanted = td["s1_log_prob"]
    torch.testing.assert_close(found["s1_log_prob"] if composite else found, wanted)
    if composite:
        torch.testing.assert_close(found["s0_log_prob"], td["s0_log_prob"])


def test_the_distribution_of_a_nested_sequence() -> None:
    nested = ProbabilisticTensorDictSequential(TensorDictModule(torch.abs, ["x"], ["x"]), chain())
    td = nested(TensorDict(x=torch.ones(3)))
    assert sorted(nested.get_dist(td)) == ["s0", "s1"]
    torch.testing.assert_close(nested.log_prob(td)["s1_log_prob"], td["s1_log_prob"])


def test_a_generator_leaves_the_global_one_alone_and_goes_with_copies() -> None:
    module = ProbabilisticTensorDictModule(
        ["loc"], ["o"], distribution_class=D.Normal, distribution_kwargs={"scale": 1.0}, generator=7,
        default_interaction_type="random",
    )  # fmt: skip
    twins = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    state = torch.get_rng_state()
    first, second = (module(TensorDict(loc=torch.zeros(3)))["o"] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state) and not torch.equal(first, second)
    for twin in twins:
        assert torch.equal(twin(TensorDict(loc=torch.zeros(3)))["o"], first)


def test_a_distribution_that_scores_its_own_draw_is_asked_for_both() -> None:
    class Own(D.Normal):
        def rsample_and_log_prob(self, shape=()):
            return torch.full(self.batch_shape, 9.0), torch.full(self.batch_shape, 8.0)

    params = TensorDict({"p": {"a": {"loc": torch.zeros(3), "scale": torch.ones(3)}}}, [3])
    module = ProbabilisticTensorDictModule(
        {"params": "p"}, distribution_class=lambda params: CompositeDistribution(params, {"a": Own}),
        out_keys=["a"], return_log_prob=True,
    )  # fmt: skip
    with set_interaction_type("random"):
        out = module(params)
    assert (out["a"] == 9).all() and (out["a_log_prob"] == 8).all()


def test_deterministic_values_without_a_mean_are_estimates() -> None:
    def squashed(loc, scale):
        return D.TransformedDistribution(D.Normal(loc, scale), [D.TanhTransform()])

    torch.manual_seed(0)
    td = TensorDict({"loc": torch.full((4,), 0.5), "scale": torch.full((4,), 1e-3)}, [4])
    out = ProbabilisticTensorDictModule(["loc", "scale"], ["o"], distribution_class=squashed)(td)
    torch.testing.assert_close(out["o"], torch.full((4,), 0.5).tanh(), atol=1e-3, rtol=0)
    params = TensorDict({"a": td.select("loc", "scale")}, [4])
    with pytest.raises(NotImplementedError, match="component 'a'.*deterministic_sample"):
        _ = CompositeDistribution(params, {"a": squashed}).deterministic_sample
