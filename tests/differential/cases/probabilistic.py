"""Distributions and probabilistic modules: `mods` is the library's `nn`, `dist` is `torch.distributions`."""

from tests.differential.harness import parse_cases

_PREPARED = {
    "NORMAL": 'i = TD({"loc": torch.linspace(-1, 1, 6).view(3, 2), "scale": torch.ones(3, 2) * 0.5}, [3]);',
    "COMPOSITE": 'q = TD({"cont": {"loc": torch.zeros(3, 4), "scale": torch.ones(3, 4)}, ("n", "disc"): {"logits": '
    'torch.linspace(0, 1, 15).view(3, 5)}}, [3]); maps = {"cont": dist.Normal, ("n", "disc"): dist.Categorical}; '
    "d = Comp(q, maps);",
    "TWO": 'x = TD({"x": torch.linspace(0, 1, 3)}); two = [Mod(lambda x: x + 1, ["x"], ["loc"]), '
    'Prob(["loc"], ["s0"], distribution_class=dist.Normal, distribution_kwargs={"scale": '
    '1.0}, return_log_prob=True), Mod(lambda s: s * 2, ["s0"], ["loc2"]), '
    'Prob({"loc": "loc2"}, ["s1"], distribution_class=dist.Normal, '
    'distribution_kwargs={"scale": 2.0}, return_log_prob=True)]; ',
}

_TEXT = r"""
# -- parameters of distributions
mods.NormalParamExtractor()(torch.tensor([[1.0, 2.0, -100.0, 0.0, 3.0]]), torch.ones(2))  #! close
mods.NormalParamExtractor("exp", 0.5)(torch.tensor([1.0, 2.0, -100.0, 0.0]))  #! close
mods.NormalParamExtractor("nothing")
mods.AddStateIndependentNormalScale(4)(torch.ones(3, 4), torch.ones(1))
mods.AddStateIndependentNormalScale()(torch.ones(3, 4))
mods.AddStateIndependentNormalScale((2, 4), make_param=False, init_value=1.0, scale_mapping="softplus")(torch.ones(3,
    2, 4))
mods.AddStateIndependentNormalScale(3)(torch.ones(3, 4))
# -- distributions
g = mods.distributions.Delta(torch.zeros(4, 2));
    (g.batch_shape, g.event_shape, g.mode, g.mean, g.sample((2,)), g.rsample(), g.deterministic_sample)
g = mods.distributions.Delta(torch.zeros(4, 2));
    (g.log_prob(torch.zeros(4, 2)), g.log_prob(torch.ones(4, 2)), g.log_prob(torch.zeros(3, 4, 2)))
mods.distributions.Delta(torch.tensor(1.0)).log_prob(torch.tensor(1.0))
g = mods.OneHotCategorical(logits=torch.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 3.0]]));
    (g.mode, g.deterministic_sample, g.log_prob(torch.tensor([[0, 1, 0], [1, 0, 0]])), g.entropy(), g.probs)
mods.OneHotCategorical(logits=torch.randn(3, 4)).sample((2,))
mods.OneHotCategorical(probs=torch.rand(3, 4)).rsample((2,)).sum(-1)
mods.OneHotCategorical(probs=torch.rand(3, 1)).batch_shape
mods.OneHotCategorical()
mods.OneHotCategorical(logits=torch.ones(2), probs=torch.ones(2))
mods.rand_one_hot(torch.randn(5, 4)).sum(-1)
mods.TruncatedNormal(torch.zeros(3), torch.ones(3), 1.0, -1.0)
# -- interaction types
[str(k) for k in mods.InteractionType] + [str(mods.InteractionType("RANDOM")),
    str(mods.InteractionType.from_str("Mode")), mods.InteractionType.MODE == "mode"]
mods.InteractionType("nothing")
(within(mods.set_interaction_type("MEAN"), lambda: str(mods.interaction_type())), mods.interaction_type())
# -- one module
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal)(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True)(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True,
    default_interaction_type="random")(i)
NORMAL Prob({"loc": "scale", "scale": "scale"}, [("p", "q")], distribution_class=dist.Normal, return_log_prob=True)(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, num_samples=4,
    default_interaction_type="random")(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, num_samples=torch.Size([2, 4]))(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True, log_prob_key="L")(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True, log_prob_key="o")
NORMAL Prob(["loc", "scale"], [("o", "p")], distribution_class=dist.Normal, return_log_prob=True, log_prob_key="o")
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal)(loc=torch.zeros(2), scale=torch.ones(2))
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, default_interaction_type="median")(i)
NORMAL Prob(["nothing"], ["o"], distribution_class=dist.Normal)(i)  #! any error
NORMAL Prob(["loc"], ["o"], distribution_class=dist.Normal)(i.rename_key_("scale", "zz"))
NORMAL Prob(["loc", "scale"], ["o", "p"], distribution_class=dist.Normal)(i)
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, default_interaction_type="nothing")
NORMAL Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, generator=3,
    default_interaction_type="random")(i)
NORMAL (Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, generator=3,
    default_interaction_type="random")(i), torch.rand(1))
m = Prob(["loc"], ["o"], distribution_class=dist.Normal, distribution_kwargs={"scale": 1.0}, generator="seed",
    default_interaction_type="random"); m(TD(loc=torch.zeros(2), seed=torch.tensor(3)))["o"]
m = Prob(["loc"], ["o"], distribution_class=dist.Normal, distribution_kwargs={"scale": 1.0}, generator="seed",
    default_interaction_type="random"); m(TD(loc=torch.zeros(2), seed=torch.zeros(2, dtype=torch.long)))
Prob(["param"], ["o"])(TD({"param": torch.ones(3, 2)}, [3]))
Prob(["logits"], ["o"], distribution_class=dist.Categorical)(TD({"logits": torch.randn(3, 4)}, [3]))
Prob(["probs"], ["o"], distribution_class=dist.Bernoulli)(TD({"probs": torch.rand(3, 4)}, [3]))
Prob(["probs"], ["o"], distribution_class=lambda probs: dist.Independent(dist.Bernoulli(probs),
    1))(TD({"probs": torch.rand(3, 4)}, [3]))
Prob(["probs"], ["o"], distribution_class=lambda probs: dist.RelaxedOneHotCategorical(torch.tensor(1.0),
    probs))(TD({"probs": torch.rand(3, 4)}, [3]))
Prob(["loc", "scale"], ["o"], distribution_class=dist.LogisticNormal)(TD({"loc": torch.randn(3, 4),
    "scale": torch.ones(3, 4)}, [3]))
NORMAL m = Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True);
    (m.in_keys, m.out_keys, m.dist_params_keys, m.dist_sample_keys, m.log_prob_keys, m.log_prob_key,
    m.log_prob(m(i)), repr(m.get_dist(i)))
# -- composites
COMPOSITE (repr(d), d.batch_shape, d.event_shape, len(d), list(d), d.log_prob_key, d.entropy_key)
COMPOSITE (d.sample(), d.sample((2,)))
COMPOSITE (d.mode, d.deterministic_sample)
COMPOSITE (d.log_prob(d.mode), d.log_prob_composite(d.mode, include_sum=True))  #! close
COMPOSITE (d.entropy(), d.entropy(include_sum=True), d.entropy_composite())  #! close
COMPOSITE d.sample_and_log_prob((2,))  #! close
COMPOSITE within(mods.set_composite_lp_aggregate(True), lambda: (d.log_prob(d.mode), d.log_prob_composite(d.mode),
    d.entropy(), d.sample_and_log_prob()))  #! close
COMPOSITE e = Comp(q, maps, name_map={"cont": ("x", "c")}, log_prob_key="L", entropy_key="E");
    (e.sample(), e.log_prob_composite(e.mode, include_sum=True), e.entropy_composite(include_sum=True))  #! close
COMPOSITE Comp(TD({}, [3]), maps)
COMPOSITE d["nothing"]
COMPOSITE e = Comp(q.select("cont"), {"cont": dist.Normal});
    (e.cdf(TD({"cont": torch.ones(3, 4)}, [3])), e.icdf(TD({"cont": torch.ones(3, 4)}, [3])), e.rsample())  #! close
COMPOSITE Comp(q.select("cont"), {"cont": dist.Normal}).icdf(TD({}, [3]))
COMPOSITE Comp.from_distributions(TD(batch_size=[3]), {"a": dist.Normal(torch.zeros(3), 1.0)},
    name_map={"a": "b"}).mode
COMPOSITE m = Prob(["p"], distribution_class=Comp, distribution_kwargs={"distribution_map": maps},
    return_log_prob=True, default_interaction_type="random"); (m.out_keys, m(TD({"p": q}, [3])))  #! close
COMPOSITE m = Prob(["p"], ["cont", ("n", "disc")], distribution_class=Comp,
    distribution_kwargs={"distribution_map": maps}, return_log_prob=True, log_prob_keys=["A", ("B", "C")]);
    m(TD({"p": q}, [3]))  #! close
COMPOSITE Prob(["p"], ["cont", ("n", "disc")], distribution_class=Comp,
    distribution_kwargs={"distribution_map": maps}, return_log_prob=True, log_prob_key="A")
COMPOSITE m = within(mods.set_composite_lp_aggregate(True), lambda: Prob(["p"], ["cont", ("n", "disc")],
    distribution_class=Comp, distribution_kwargs={"distribution_map": maps}, return_log_prob=True));
    within(mods.set_composite_lp_aggregate(True), lambda: (m.out_keys, m.log_prob_key, m(TD({"p": q},
    [3]))))  #! close
NORMAL m = Prob(["loc", "scale"], ["o"], distribution_class=dist.Normal, return_log_prob=True);
    within(mods.set_composite_lp_aggregate(True), lambda: m(i))
# -- sequences
TWO (ProbSeq(*two)(x), ProbSeq(*two).log_prob_keys, ProbSeq(*two).dist_sample_keys, ProbSeq(*two).dist_params_keys,
    ProbSeq(*two).in_keys, ProbSeq(*two).out_keys)
TWO (repr(ProbSeq(*two).get_dist(x)), repr(ProbSeq(*two, return_composite=False).get_dist(x)))
TWO s = ProbSeq(*two); s.log_prob(s(x))
TWO s = ProbSeq(*two, return_composite=False); s.log_prob(s(x))
TWO ProbSeq(*two).get_dist_params(x)
TWO ProbSeq(*two).get_dist_params(x, tensordict_out=TD())
TWO s = ProbSeq(*two); repr(s.build_dist_from_params(s.get_dist_params(x)))
TWO ProbSeq(*two)(x=torch.ones(2))
TWO ProbSeq(*two)(x, tensordict_out=TD())
TWO ProbSeq(*two, inplace=False)(x)
TWO ProbSeq(*two, selected_out_keys=["s1"])(x)
TWO ProbSeq(*two[:3], return_composite=False)
TWO (repr(ProbSeq(*two[:3]).get_dist(x)), ProbSeq(*two[:3])(x))
TWO ProbSeq()
TWO ProbSeq(two[0]).get_dist(x)
TWO ProbSeq(*two).log_prob_key
TWO (ProbSeq(*two[:2]).log_prob_key, str(ProbSeq(*two).default_interaction_type), tuple(ProbSeq(*two).num_samples))
TWO (type(ProbSeq(*two)[:2]), len(ProbSeq(*two).select_subsequence(out_keys=["s0"])))
TWO ProbSeq(Mod(lambda x: (x + 1, x + 5), ["x"], ["loc", "s0"]), two[1])(x)
"""


def _expand(text: str) -> str:
    """Puts what a line begins with in capitals into its place."""
    for name, code in _PREPARED.items():
        text = text.replace(f"\n{name} ", f"\n{code} ")
    return text


CASES = parse_cases("probabilistic", _expand(_TEXT))
