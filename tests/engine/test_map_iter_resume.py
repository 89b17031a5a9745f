"""`map_iter` goes on in the middle of an epoch, and computes little ahead of a slow consumer."""

import json
import os
import time

import pytest
import torch

import tdmap


@pytest.fixture(params=["serial", "thread", "process"])
def options(request):
    return {"executor": request.param, "num_workers": 2, "chunksize": 3}


def rows_of(td):
    return td["meta", "row"].clone()


def noisy(td):
    return torch.cat([td["meta", "row"].float(), torch.rand(3)])


@pytest.mark.parametrize("taken", [0, 1, 5, 13, 14])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_goes_on_where_it_was_saved(options, data, taken, shuffle):
    whole = [part.tolist() for part in tdmap.map_iter(data, rows_of, shuffle=shuffle, seed=4, **options)]
    epoch = tdmap.map_iter(data, rows_of, shuffle=shuffle, seed=4, **options)
    got = [next(epoch).tolist() for _ in range(taken)]
    state = json.loads(json.dumps(epoch.state_dict()))
    epoch.close()
    later = tdmap.map_iter(data, rows_of, shuffle=shuffle, seed=4, **options)
    later.load_state_dict(state)
    got += [part.tolist() for part in later]
    assert got == whole


def test_random_streams_go_on_too(options, data):
    whole = list(tdmap.map_iter(data, noisy, shuffle=True, seed=4, **options))
    epoch = tdmap.map_iter(data, noisy, shuffle=True, seed=4, **options)
    for _ in range(6):
        next(epoch)
    later = tdmap.map_iter(data, noisy, shuffle=True, seed=999, **{**options, "num_workers": 3})
    later.load_state_dict(epoch.state_dict())
    rest = list(later)
    assert len(rest) == 8 and all(torch.equal(a, b) for a, b in zip(rest, whole[6:], strict=True))


def test_an_order_without_a_seed_is_saved(options, data):
    epoch = tdmap.map_iter(data, rows_of, shuffle=True, **options)
    first = [next(epoch) for _ in range(4)]
    state = epoch.state_dict()
    later = tdmap.map_iter(data, rows_of, shuffle=True, **options)
    later.load_state_dict(state)
    rows = torch.cat([*first, *later])
    assert torch.equal(rows.sort()[0], torch.arange(40))


def test_only_the_rest_is_computed(data, tmp_path):
    def note(td):
        (tmp_path / str(int(td["meta", "row"][0]))).touch()
        return None

    later = tdmap.map_iter(data, note, num_workers=2, chunksize=1)
    later.load_state_dict({**later.state_dict(), "position": 30})
    assert len(list(later)) == 10
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(30, 40))


def test_an_iterator_can_be_rewound(options, data):
    epoch = tdmap.map_iter(data, rows_of, **options)
    start = epoch.state_dict()
    once = [part.tolist() for part in epoch]
    assert next(epoch, None) is None
    epoch.load_state_dict(start)
    assert [part.tolist() for part in epoch] == once


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 41}, "rows was 41 and is 40"),
        ({"chunk_rows": 4}, "chunk_rows was 4 and is 3"),
        ({"order_seed": 1}, "shuffle was True and is False"),
        ({"position": 99}, "position 99"),
    ],
)
def test_a_state_of_something_else_is_refused(data, change, message):
    epoch = tdmap.map_iter(data, rows_of, num_workers=2, chunksize=3)
    next(epoch)
    with pytest.raises(ValueError, match=message):
        epoch.load_state_dict({**epoch.state_dict(), **change})
    assert len(list(epoch)) == 13  # as it was
    with pytest.raises(ValueError, match="not a state"):
        epoch.load_state_dict({"epoch": 3})


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_in_flight_chunks_are_bounded_at_every_step_of_a_slow_consumer(tmp_path, executor):
    """However the consumer dawdles, what was computed is at most a window ahead of what it has taken."""
    log = tmp_path / "log"
    log.touch()
    data = torch.zeros(1, 1 << 20).expand(300, -1)  # 4 MiB a row: a lease of the stream is one chunk

    def note(x):
        fd = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"x")
        os.close(fd)
        return None

    workers, ahead = 2, []
    stream = tdmap.map_iter(data, note, num_workers=workers, chunksize=1, executor=executor)
    for taken in range(1, 13):
        next(stream)
        before = -1
        while before != (before := log.stat().st_size):  # until nothing more is computed
            time.sleep(0.03)
        ahead.append(before - taken)
    stream.close()
    assert max(ahead) <= 3 * workers + 1
