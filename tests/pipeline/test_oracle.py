"""Random chains of stages against plain Python: the same elements for any workers, and from any position on."""

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline import oracle

relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@settings(relaxed, max_examples=150)
@given(oracle.chains(), st.sampled_from([None, 1, 5, 100]))
def test_random_chains_give_what_plain_python_gives(stages, chunksize):
    pipeline = oracle.apply(oracle.dataset().pipeline(), stages)
    wanted = oracle.evaluate(stages)
    assert oracle.numbers(pipeline.iter(num_workers=0, chunksize=chunksize)) == wanted
    assert pipeline.count(num_workers=0) == len(wanted)


@settings(relaxed, max_examples=12)
@given(stages=oracle.chains())
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "executor": "thread"}])
def test_workers_change_nothing(options, stages):
    pipeline = oracle.apply(oracle.dataset().pipeline(seed=3), stages)
    assert oracle.numbers(pipeline.iter(**options)) == oracle.evaluate(stages)


@settings(relaxed, max_examples=60)
@given(oracle.chains())
def test_collect_and_write_give_all_rows(tmp_path_factory, stages):
    pipeline = oracle.apply(oracle.dataset().pipeline(), stages)
    wanted = oracle.evaluate(stages)
    if wanted and isinstance(wanted[0], list):
        wanted = [row for batch in wanted for row in batch]
    assert pipeline.collect(num_workers=0)["x"].tolist() == wanted
    folder = tmp_path_factory.mktemp("written") / "out"
    assert pipeline.write(folder, num_workers=0)["x"].tolist() == wanted


@settings(relaxed, max_examples=60)
@given(oracle.chains())
def test_an_iteration_goes_on_from_any_position(stages):
    pipeline = oracle.apply(oracle.dataset().pipeline(), stages)
    wanted = oracle.evaluate(stages)
    states, elements = [], pipeline.iter(num_workers=0)
    for _ in wanted:
        states.append(json.dumps(elements.state_dict()))
        next(elements)
    states.append(json.dumps(elements.state_dict()))
    for position in range(0, len(states), max(len(wanted) // 6, 1)):
        later = pipeline.iter(num_workers=0)
        later.load_state_dict(json.loads(states[position]))
        assert oracle.numbers(itertools.islice(later, 1)) == wanted[position : position + 1]
        last = pipeline.iter(num_workers=0)
        last.load_state_dict(later.state_dict())
        assert oracle.numbers(last) == wanted[position + 1 :]
