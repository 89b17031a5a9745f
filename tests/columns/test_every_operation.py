"""Strings, bytes and other objects are rows like others: every operation, every kind of output."""

import pytest
import torch

import tdmap
from tdmap import reducers
from tests.cells import kinds as cells
from tests.cells.operations import OPERATIONS, resumable
from tests.columns.conftest import ROWS, full_table, rows_of, table

EVEN = list(range(0, ROWS, 2))


def same(chunk):
    return chunk.clone()


def is_even(chunk):
    return chunk["x"] % 2 == 0


def even_of(chunksize):
    return (lambda row: bool(row["x"] % 2 == 0)) if chunksize == 0 else is_even


def again(chunksize):
    return (lambda row: row.unsqueeze(0)) if chunksize == 0 else same


def blank(rows: int = ROWS):
    """An output that holds other values."""
    out = full_table(rows)
    out["x"].fill_(-1)
    for key in ("name", ("meta", "word"), "blob", "thing"):
        out[key] = ["?"] * rows
    return out


def picked(rows, index):
    return [rows[i] for i in index]


CALLS = {
    "map": lambda data, size, **o: tdmap.map(data, same, chunksize=size, **o),
    "filter": lambda data, size, **o: tdmap.filter(data, even_of(size), chunksize=size, **o),
    "flat_map": lambda data, size, **o: tdmap.flat_map(data, again(size), chunksize=size, **o),
}
"""Of functions that get chunks, or rows."""


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("place", ["memory", "given", "folder", "resumed"])
def test_rows_come_through(name, place, workers, chunksize, tmp_path):
    data = full_table() if place in ("memory", "given") else table()
    wanted, out = picked(rows_of(data), EVEN) if name == "filter" else rows_of(data), tmp_path / "out"
    out = {"memory": None, "given": blank(ROWS + 2 * (name == "flat_map"))}.get(place, out)
    found = CALLS[name](data, chunksize, out=out, resume=place == "resumed", num_workers=workers)
    assert rows_of(found) == wanted
    if place == "given":
        assert rows_of(out) == wanted + rows_of(blank())[: len(out) - len(wanted)]
    elif place != "memory":
        assert rows_of(type(data).load_memmap(out)) == wanted


def test_map_in_place(workers, chunksize):
    data = full_table()

    def shout(chunk):
        names = chunk["name"]
        return chunk.clone().set("name", [n + "!" for n in names] if isinstance(names, list) else names + "!")

    tdmap.map(data, shout, num_workers=workers, chunksize=chunksize, out=data)
    assert rows_of(data) == [(x, name + "!", *rest) for x, name, *rest in rows_of(full_table())]


def test_map_iter(workers, chunksize):
    data = full_table()
    chunks = list(tdmap.map_iter(data, same, num_workers=workers, chunksize=chunksize))
    joined = torch.stack(chunks) if chunksize == 0 else torch.cat(chunks)
    assert rows_of(joined) == rows_of(data)


@pytest.mark.parametrize("name", resumable())
def test_every_operation_that_makes_rows(name, workers, tmp_path):
    operation = OPERATIONS[name]
    for data, out in ((full_table(), None), (table(), tmp_path / "out")):
        data.update({"k": data["x"] % 3, "f": data["x"].double() / 4})
        rows = cells.rows_of(data)
        assert operation.read(operation.call(data, out=out, num_workers=workers)) == operation.expected(rows)
        assert cells.rows_of(data) == rows


def test_rows_by_a_string_into_an_output_that_is_there(workers):
    data, rows = full_table(), rows_of(full_table())
    by_name = sorted(range(ROWS), key=lambda i: rows[i][1])
    assert rows_of(tdmap.sort(data, "name", out=blank(), num_workers=workers)) == picked(rows, by_name)


def test_join_with_nothing_on_the_right(workers):
    none = table(1)[:0].select("name", "meta")
    result = tdmap.join(table(), none, "name", "left", num_workers=workers)
    assert [row["meta_right", "word"] for row in result.unbind(0)] == [None] * ROWS


def test_group_by(workers, tmp_path):
    data, rows = full_table(), rows_of(full_table())
    by_name = sorted(range(ROWS), key=lambda i: rows[i][1])
    groups = tdmap.group_by(data, "name")
    counts = groups.reduce(reducers.Count(), num_workers=workers)
    assert (counts["name"], counts["result"].tolist()) == (["n0", "n1", "n2", "n3", "n4"], [3, 3, 3, 2, 2])
    assert rows_of(groups.map_groups(lambda group: group, num_workers=workers)) == picked(rows, by_name)
    out = tmp_path / "out"
    found = tdmap.group_by(table(), "name").map_groups(lambda group: group, out=out, num_workers=workers)
    assert rows_of(found) == picked(rows_of(table()), by_name)


def test_reducers_that_make_sense(workers):
    data = full_table()
    parts = {
        "n": reducers.Count(),
        "all": reducers.Unique("name"),
        "counts": reducers.ValueCounts("name"),
        "nested": reducers.Unique(("meta", "word")),
        "top": reducers.TopK("name", 3),
        "last": reducers.TopK("blob", 2, largest=False),
    }
    answer = tdmap.reduce(data, parts, num_workers=workers, chunksize=4)
    assert int(answer["n"]) == ROWS
    assert answer["all"] == answer["counts", "value"] == ["n0", "n1", "n2", "n3", "n4"]
    assert answer["counts", "count"].tolist() == [3, 3, 3, 2, 2]
    assert answer["nested"] == sorted(f"w{i}" for i in range(ROWS))
    assert (answer["top", "value"], answer["top", "row"].tolist()) == (["n4", "n4", "n3"], [4, 9, 3])
    assert answer["last", "value"] == [b"\x00", b"\x01"]


def test_objects_that_cannot_be_reduced_say_so():
    with pytest.raises(TypeError, match="'thing' holds a dict, and only values that can be hashed are counted"):
        tdmap.reduce(full_table(), reducers.Unique("thing"), num_workers=0)
    with pytest.raises(TypeError, match="TopK ranks values that compare"):
        tdmap.reduce(full_table(), reducers.TopK("thing"), num_workers=0)
    with pytest.raises(TypeError, match="'name' holds Python objects.*Last, Unique, ValueCounts and TopK take objects"):
        tdmap.reduce(full_table(), reducers.Mean("name"), num_workers=0)
    with pytest.raises(TypeError, match="'name', which holds Python objects. Of groups, First and Last reduce these"):
        tdmap.group_by(full_table(), "x").reduce(reducers.Unique("name"), num_workers=0)


def test_pipelines(workers, tmp_path):
    data, rows = full_table(), rows_of(full_table())
    pipeline = data.pipeline().map(same)
    assert rows_of(pipeline.collect(num_workers=workers)) == rows
    assert rows_of(pipeline.map_rows(same).collect(num_workers=workers)) == rows
    assert rows_of(pipeline.filter(is_even).collect(num_workers=workers)) == picked(rows, EVEN)
    assert rows_of(pipeline.write(blank(), num_workers=workers)) == rows
    batches = list(pipeline.batch(4).iter(num_workers=workers))
    assert rows_of(torch.cat(batches)) == rows
    epoch = torch.cat(list(pipeline.shuffle(1).batch(4).iter(num_workers=workers)))
    assert sorted(rows_of(epoch), key=lambda row: row[0]) == rows
    files = table().pipeline().map(same)
    plain = rows_of(table())
    assert rows_of(files.write(tmp_path / "all", num_workers=workers)) == plain
    assert rows_of(files.filter(is_even).write(tmp_path / "even", num_workers=workers)) == picked(plain, EVEN)
    for _ in range(2):  # written, and read again
        assert rows_of(files.cache(tmp_path / "cache").collect(num_workers=workers)) == plain
