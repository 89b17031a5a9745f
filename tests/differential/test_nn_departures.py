"""Where modules and functional parameters answer otherwise than the reference, on purpose: see test_departures.py."""

from __future__ import annotations

import pytest

from tests.differential.harness import Case, Outcome, difference, evaluate
from tests.differential.harness.namespace import PROJECT, REFERENCE

CHAIN = (
    'n = dict(distribution_class=dist.Normal, distribution_kwargs={"scale": 1.0}, return_log_prob=True); '
    'p = ProbSeq(Prob({"loc": "x"}, ["s"], **n), Prob({"loc": "s"}, ["t"], **n)); '
    "q = TD(x=torch.zeros(3), s=torch.ones(3), t=torch.ones(3) * 2, batch_size=[3]); "
)

DEPARTURES = [
    (
        CHAIN + 'p.log_prob(q)["t_log_prob"]',
        "dist.Normal(torch.ones(3), 1.0).log_prob(torch.ones(3) * 2)",
        "the density of t given s has the s that is there, as in the factors of a joint density",
    ),
    (
        "m = nn.Linear(2, 2); TD(weight=torch.zeros(3, 3)).to_module(m)",
        'raise RuntimeError("shape")',
        "a weight of another shape is an error before the module is changed, not in its next forward",
    ),
    (
        "mods.TruncatedNormal(0.0, 1.0, -1.0, 1.0, validate_args=False).log_prob(torch.tensor([3.0]))",
        "torch.tensor([-torch.inf])",
        "there is no density outside of the interval",
    ),
    (
        "mods.inv_softplus(torch.tensor([100.0]))",
        "torch.tensor([100.0])",
        "softplus(100) is 100; exp(100) overflows",
    ),
    (
        'Mod(lambda x: [x, x + 1], ["b"], ["o", "p"])(fl.select("b"))',
        'Mod(lambda x: (x, x + 1), ["b"], ["o", "p"])(fl.select("b"))',
        "a list of outputs is one output each, as a tuple is",
    ),
    (
        "q = TD(b=torch.ones(3), h=torch.zeros(3), batch_size=[3]); "
        'Seq(Mod(lambda x: x + 1, ["b"], ["h"]), Mod(lambda x: x + 1, ["h"], ["p"]), selected_out_keys=["p"])(q)["h"]',
        "torch.zeros(3)",
        "what is not among the selected keys is not written, over an entry of the input neither",
    ),
    (
        "m, p = nn.Linear(2, 2), nn.Parameter(torch.ones(2, 2), requires_grad=False); "
        "TD(weight=p).to_module(m); m.weight.requires_grad",
        "False",
        "a Parameter goes in as it is: it says itself whether it is trained",
    ),
    (
        'type(TD.from_module(nn.ModuleDict({"p": Params(TD(a=torch.ones(2)))}))["p"])',
        "TD",
        "a tree of its own: locking the parameters of a model locks no part of the model",
    ),
    (
        "torch.vmap(lambda q: q)(lib.lazy_stack([TD(a=torch.ones(2)), TD(a=torch.ones(3))]))",
        'raise RuntimeError("one shape")',
        "rows of one map have one shape; the error says which entry to leave out",
    ),
    (
        'e = mods.EnsembleModule(Mod(nn.Sequential(nn.Linear(1, 20), nn.Dropout()), ["x"], ["o"]), 2); '
        'e(TD(x=torch.ones(1, 1), batch_size=[1]))["o"].shape',
        "torch.Size([2, 1, 20])",
        "the members of an ensemble drop values of their own",
    ),
    (
        'Prob(["loc"], ["o"], distribution_class=dist.Normal)(TD())',
        'raise KeyError("loc")',
        "the error names the key that is absent",
    ),
    (
        'torch.func.hessian(lambda q: (q["b"] ** 2).sum())(fl.select("b"))["b", "b"]',
        'torch.func.hessian(lambda b: (b ** 2).sum())(fl["b"])',
        "documented to work on tensordicts as on other pytrees",
    ),
]


@pytest.mark.parametrize(("source", "same_as", "reason"), DEPARTURES, ids=[row[0] for row in DEPARTURES])
def test_departs_on_purpose(source: str, same_as: str, reason: str) -> None:
    ours, wanted = _value(source, PROJECT), _value(same_as, PROJECT)
    assert not difference(wanted, ours), f"{source} no longer equals {same_as} ({reason})"
    assert difference(_value(source, REFERENCE), ours), "the reference agrees now: drop the row"


def _value(source: str, library: str) -> Outcome:
    outcome = evaluate(Case("departure", source), library)
    return Outcome(outcome.value, error=outcome.error)
