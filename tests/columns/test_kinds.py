"""Object columns of every kind: more batch dimensions, lists in rows, tensorclasses, constants, only objects."""

import json
import os

import pytest
import tensordict as reference
import torch

import tdmap
from tensordict_lite import NonTensorData, TensorDict, lazy_stack, tensorclass


def same(chunk):
    return chunk.clone()


@tensorclass
class Sample:
    x: torch.Tensor
    name: str
    note: str = None


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [2, 0])
def test_two_batch_dimensions(dim, size, workers, tmp_path):
    words = [[f"{i}{j}" for j in range(3)] for i in range(4)]
    data = TensorDict({"x": torch.zeros(4, 3), "word": words}, [4, 3])
    options = {"num_workers": workers, "chunksize": size}
    assert tdmap.map(data, same, dim, **options)["word"] == words
    assert tdmap.map(data, same, dim, out=tmp_path / "out", **options)["word"] == words
    out = data.clone().set("word", [["?"] * 3 for _ in range(4)])
    tdmap.map(data, same, dim, out=out, **options)
    assert out["word"] == words


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [2, 0])
def test_skipped_rows_of_two_batch_dimensions(dim, size, workers):
    words = [[f"{i}{j}" for j in range(3)] for i in range(4)]
    data = TensorDict({"x": torch.ones(4, 3), "word": words}, [4, 3])

    def fail(chunk):
        if "11" in str(chunk["word"]):
            raise ValueError("eleven")
        return chunk.clone()

    result = tdmap.map(data, fail, dim, num_workers=workers, chunksize=size, on_error=tdmap.RowErrors())
    bad = [[(i if dim == 0 else j) == 1 for j in range(3)] for i in range(4)]
    assert result["word"] == [[None if bad[i][j] else words[i][j] for j in range(3)] for i in range(4)]
    assert torch.equal(result["x"] == 0, torch.tensor(bad))


@pytest.mark.parametrize("lengths", [[2, 2, 2, 2, 2], [1, 3, 2, 5, 4]], ids=["regular", "ragged"])
@pytest.mark.parametrize("size", [2, 0])
def test_rows_that_are_lists_themselves(lengths, size, workers):
    tags = [[f"{i}{j}" for j in range(n)] for i, n in enumerate(lengths)]
    data = TensorDict({"row": torch.arange(5)}, [5])

    def tag(chunk):
        rows = chunk["row"]
        return TensorDict(
            {"tags": tags[int(rows)] if size == 0 else [tags[i] for i in rows.tolist()]}, chunk.batch_size
        )

    assert tdmap.map(data, tag, num_workers=workers, chunksize=size)["tags"] == tags


def test_lists_in_rows_go_into_a_folder(workers, tmp_path):
    tags = [[f"{i}{j}" for j in range(2)] for i in range(5)]
    data = TensorDict({"tags": tags}, [5])
    assert tdmap.map(data, same, num_workers=workers, chunksize=2, out=tmp_path / "out")["tags"] == tags


@pytest.mark.parametrize("size", [2, 0])
def test_tensorclasses_keep_their_type(size, workers, tmp_path):
    data = Sample(x=torch.arange(5), name=list("abcde"), batch_size=[5])
    for out in (None, tmp_path / "out"):
        result = tdmap.map(data, same, num_workers=workers, chunksize=size, out=out)
        assert type(result) is Sample and result.name == list("abcde") and result.note is None


def test_nothing_but_objects(workers, tmp_path):
    data = TensorDict({"meta": {"word": list("abcde")}}, [5])
    for out in (None, tmp_path / "out", data.clone()):
        result = tdmap.map(data, same, num_workers=workers, chunksize=2, out=out)
        assert result["meta", "word"] == list("abcde")


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_rows(rows, workers, tmp_path):
    data = TensorDict({"x": torch.zeros(3), "word": ["a"] * 3}, [3])[:rows]
    for out in (None, tmp_path / "out", data.clone()):
        assert tdmap.map(data, same, num_workers=workers, out=out).shape == (rows,)


def test_one_object_for_all_rows_stays_one(workers, tmp_path):
    data = TensorDict({"x": torch.arange(5)}, [5])

    def note(chunk):
        return TensorDict(
            {"note": NonTensorData("all", batch_size=chunk.batch_size), "x": chunk["x"]}, chunk.batch_size
        )

    def named(chunk):
        first = int(chunk["x"][0])
        return TensorDict({"note": NonTensorData(f"from {first}", batch_size=chunk.batch_size)}, chunk.batch_size)

    for out in (None, tmp_path / "one"):
        result = tdmap.map(data, note, num_workers=workers, chunksize=2, out=out)
        assert isinstance(result.get("note"), NonTensorData) and result["note"] == "all"
    for out in (None, tmp_path / "several"):
        result = tdmap.map(data, named, num_workers=workers, chunksize=2, out=out)
        assert result["note"] == ["from 0", "from 0", "from 2", "from 2", "from 4"]


def test_what_a_folder_holds_is_what_the_reference_reads(tmp_path):
    data = TensorDict({"x": torch.arange(5), "word": list("abcde"), "n": {"k": NonTensorData(3, batch_size=[5])}}, [5])
    tdmap.map(data, same, num_workers=2, chunksize=2, out=tmp_path / "out")
    loaded = reference.TensorDict.load_memmap(tmp_path / "out")
    assert list(loaded["word"]) == list("abcde") and loaded["n", "k"] == 3 and loaded["x"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", [{1, 2}, {1: "key"}, object()], ids=["set", "int key", "object"])
@pytest.mark.parametrize("call", ["map", "filter", "flat_map", "shuffle", "sort"])
def test_objects_that_a_folder_cannot_hold_are_refused_at_once(value, call, tmp_path):
    """At the first rows, not at the end; and nothing is left behind."""
    data = TensorDict({"x": torch.arange(4), "thing": [value] * 4}, [4])
    out = tmp_path / "out"
    run = {
        "map": lambda: tdmap.map(data, same, out=out, num_workers=0),
        "filter": lambda: tdmap.filter(data, lambda c: c["x"] > 0, out=out, num_workers=0),
        "flat_map": lambda: tdmap.flat_map(data, same, out=out, num_workers=0),
        "shuffle": lambda: tdmap.shuffle(data, 1, out=out, num_workers=0),
        "sort": lambda: tdmap.sort(data, "x", out=out, num_workers=0),
    }[call]
    with pytest.raises(
        tdmap.errors.OutputMismatch, match=f"the entry 'thing' holds a {type(value).__name__}, and a folder"
    ):
        run()
    assert not out.exists()


def test_an_entry_that_is_a_tensor_here_and_objects_there_is_refused(workers):
    data = TensorDict({"x": torch.arange(6)}, [6])

    def mixed(chunk):
        word = ["a"] * len(chunk) if int(chunk["x"][0]) == 0 else chunk["x"]
        return TensorDict({"word": word}, chunk.batch_size)

    with pytest.raises(tdmap.errors.OutputMismatch, match="'word' is"):
        tdmap.map(data, mixed, num_workers=workers, chunksize=2)
    out = TensorDict({"word": list("abcdef")}, [6])
    with pytest.raises(
        tdmap.errors.OutputMismatch, match="'word': out holds Python objects and the function returned a tensor"
    ):
        tdmap.map(data, mixed, num_workers=workers, chunksize=2, out=out)
    with pytest.raises(
        tdmap.errors.OutputMismatch, match="'word': out holds a tensor and the function returned Python objects"
    ):
        tdmap.map(data, mixed, num_workers=workers, chunksize=2, out=TensorDict({"word": torch.zeros(6)}, [6]))


# -- memory-mapped outputs -------------------------------------------------------------------------------------------


def mapped(path):
    TensorDict({"x": torch.arange(5), "word": list("abcde")}, [5]).memmap(path)
    return TensorDict.load_memmap(path)


def shout(chunk):
    return chunk.clone().set("word", [word.upper() for word in chunk["word"]]).set("x", chunk["x"] + 1)


@pytest.mark.parametrize("resume", [False, True], ids=["plain", "resume"])
@pytest.mark.parametrize("in_place", [False, True], ids=["given", "in place"])
def test_objects_of_a_mapped_dataset_reach_its_file(in_place, resume, tmp_path):
    data = mapped(tmp_path / "in")
    out = data if in_place else mapped(tmp_path / "out")
    tdmap.map(data, shout, num_workers=2, chunksize=2, out=out, resume=resume)
    again = TensorDict.load_memmap(tmp_path / ("in" if in_place else "out"))
    assert out["word"] == again["word"] == list("ABCDE") and again["x"].tolist() == [1, 2, 3, 4, 5]


def test_objects_that_do_not_change_leave_the_file_alone(tmp_path):
    data = mapped(tmp_path / "in")
    before = os.stat(tmp_path / "in" / "word" / "meta.json").st_mtime_ns
    tdmap.map(data, lambda c: c.clone().set("x", c["x"] + 1), num_workers=2, chunksize=2, out=data)
    assert os.stat(tmp_path / "in" / "word" / "meta.json").st_mtime_ns == before
    assert data["x"].tolist() == [1, 2, 3, 4, 5]


def failing_once(marker):
    def run(chunk):
        if int(chunk["x"][0]) == 4 and not marker.exists():
            marker.touch()
            raise RuntimeError("in the middle")
        return shout(chunk)

    return run


def test_rows_done_before_a_failure_stay_done(tmp_path):
    data = mapped(tmp_path / "in")
    with pytest.raises(RuntimeError, match="in the middle"):
        tdmap.map(data, failing_once(tmp_path / "marker"), num_workers=1, chunksize=2, out=data)
    assert data["word"] == TensorDict.load_memmap(tmp_path / "in")["word"] == list("ABCDe")
    assert data["x"].tolist() == [1, 2, 3, 4, 4]


@pytest.mark.parametrize("target", ["folder", "given", "in place"])
def test_an_interrupted_run_goes_on_with_its_objects(target, tmp_path):
    data = mapped(tmp_path / "in")
    out = {"folder": tmp_path / "new", "given": mapped(tmp_path / "out"), "in place": data}[target]
    run = failing_once(tmp_path / "marker")
    with pytest.raises(RuntimeError, match="in the middle"):
        tdmap.map(data, run, num_workers=1, chunksize=2, out=out, resume=True)
    result = tdmap.map(data, run, num_workers=1, chunksize=2, out=out, resume=True)
    assert result["word"] == list("ABCDE") and result["x"].tolist() == [1, 2, 3, 4, 5]
    folder = {"folder": "new", "given": "out", "in place": "in"}[target]
    assert TensorDict.load_memmap(tmp_path / folder)["word"] == list("ABCDE")
    assert not (tmp_path / folder / ".tdmap" / "spill-objects.jsonl").exists()


FORGED = {
    "a chunk beyond the plan": ('"chunk": 1', '"chunk": 700'),
    "no row": ('["C", "D"]', "[]"),
    "too many rows": ('["C", "D"]', '["C", "D", "E"]'),
    "no column": ('[["each", ["C", "D"], []]]', "[]"),
    "row numbers out of range": ('["C", "D"], []', '["C", "D"], [900]'),
    "another form": ('["each", ["C"', '["none", ["C"'),
    "no list": ('[["each", ["C", "D"], []]]', "7"),
}


@pytest.mark.parametrize("what", FORGED)
def test_edited_objects_of_an_interrupted_run_are_refused(what, tmp_path):
    data, run = mapped(tmp_path / "in"), failing_once(tmp_path / "marker")
    with pytest.raises(RuntimeError, match="in the middle"):
        tdmap.map(data, run, num_workers=0, chunksize=2, out=tmp_path / "new", resume=True)
    objects = tmp_path / "new" / ".tdmap" / "spill-objects.jsonl"
    text = objects.read_text()
    assert FORGED[what][0] in text
    objects.write_text(text.replace(*FORGED[what]))
    with pytest.raises(tdmap.errors.UntrustedFile, match="spill-objects"):
        tdmap.map(data, run, num_workers=0, chunksize=2, out=tmp_path / "new", resume=True)


def test_the_list_of_objects_is_json_and_survives_a_torn_line(tmp_path):
    data = mapped(tmp_path / "in")
    run = failing_once(tmp_path / "marker")
    with pytest.raises(RuntimeError):
        tdmap.map(data, run, num_workers=1, chunksize=2, out=tmp_path / "new", resume=True)
    log = tmp_path / "new" / ".tdmap" / "spill-objects.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["columns"] == [["word"]]
    assert lines[1] == {"chunk": 0, "pieces": [["each", ["A", "B"], []]]}
    with open(log, "a") as file:
        file.write('{"chunk": 1, "pieces": [["each", ["tor')
    assert tdmap.map(data, run, num_workers=1, chunksize=2, out=tmp_path / "new", resume=True)["word"] == list("ABCDE")


def test_rows_that_differ_in_shape_travel_with_their_objects(workers):
    data = TensorDict({"n": torch.tensor([2, 3, 1, 4])}, [4])

    def ragged(chunk):
        rows = [TensorDict({"v": torch.ones(n), "word": f"w{n}"}, []) for n in chunk["n"].tolist()]
        return lazy_stack(rows)

    result = tdmap.map(data, ragged, num_workers=workers, chunksize=2)
    assert [row["v"].numel() for row in result.unbind(0)] == [2, 3, 1, 4]
    assert [row["word"] for row in result.unbind(0)] == ["w2", "w3", "w1", "w4"]


@pytest.mark.parametrize("size", [1, 2])
def test_skipped_rows_of_ragged_results_are_zeros_of_some_shape(size, workers):
    data = TensorDict({"n": torch.tensor([2, 3, 1, 4])}, [4])

    def ragged(chunk):
        if 3 in chunk["n"].tolist():
            raise ValueError("three")
        return lazy_stack([TensorDict({"v": torch.ones(n), "word": f"w{n}"}, []) for n in chunk["n"].tolist()])

    result = tdmap.map(data, ragged, num_workers=workers, chunksize=size, on_error=tdmap.RowErrors())
    rows = result.unbind(0)
    assert [row["word"] for row in rows] == ["w2", None, "w1", "w4"]
    assert [float(row["v"].sum()) for row in rows] == [2.0, 0.0, 1.0, 4.0]
