"""A run that is resumed notices that strings, ragged rows or sparse numbers are others, and that they are the same."""

import pytest
import torch

import tdmap
from tdmap.run.fingerprint import function_parts, source_parts
from tensordict_lite import TensorDict
from tests import interpreters

CALLS = {
    "sort": lambda data, out: tdmap.sort(data, "k", out=out, resume=True, num_workers=0),
    "sort by strings": lambda data, out: tdmap.sort(data, "s", out=out, resume=True, num_workers=0),
    "map": lambda data, out: tdmap.map(data, lambda rows: rows, out=out, resume=True, num_workers=0),
    "filter": lambda data, out: tdmap.filter(data, tdmap.col("k") > 0, out=out, resume=True, num_workers=0),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mapped", [False, True])
def test_other_strings_are_other_data(name, mapped, tmp_path):
    def dataset(strings, folder):
        data = TensorDict({"k": torch.tensor([1, 2]), "s": strings}, [2])
        return TensorDict.load_memmap(data.memmap(str(tmp_path / folder)).saved_path) if mapped else data

    out = str(tmp_path / "out")
    CALLS[name](dataset(["a", "b"], "one"), out)
    with pytest.raises(tdmap.errors.ResumeMismatch, match="'s'"):
        CALLS[name](dataset(["x", "y"], "two"), out)


def test_other_strings_of_the_second_dataset_are_other_data(tmp_path):
    first = TensorDict({"k": torch.tensor([1, 2])}, [2])
    for strings, raises in ((["a", "b"], False), (["a", "c"], True)):
        second = TensorDict({"k": torch.tensor([1, 2]), "s": strings}, [2])
        call = lambda: tdmap.join(first, second, "k", out=str(tmp_path / "out"), resume=True, num_workers=0)  # noqa: B023, E731
        if raises:
            with pytest.raises(tdmap.errors.ResumeMismatch, match="differs in: b: 's'"):
                call()
        else:
            call()


def test_strings_are_told_apart_by_where_they_end():
    parts = [source_parts(TensorDict({"s": words}, [2])) for words in (["a", "bc"], ["ab", "c"], ["a", "bc"])]
    assert parts[0] == parts[2] != parts[1]


def tensors(middle):
    dense = torch.arange(5000.0)
    dense[2500] = middle
    pairs = torch.nested.nested_tensor([dense, dense[:7]], layout=torch.jagged)
    square = dense.view(50, 100)
    return {
        "jagged": pairs,
        "nested": torch.nested.nested_tensor([dense, dense]),
        "coo": dense.to_sparse(),
        "csr": square.to_sparse_csr(),
        "csc": square.to_sparse_csc(),
        "quantized": torch.quantize_per_tensor(dense, 20.0, 0, torch.quint8),
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["jagged", "nested", "coo", "csr", "csc", "quantized"])
def test_tensors_that_print_alike_are_told_apart(kind):
    one, same, other = (tensors(middle)[kind] for middle in (-1.0, -1.0, 4999.0))
    parts = [function_parts(lambda rows, t=t: (rows, t)) for t in (one, same, other)]
    assert parts[0] == parts[1] != parts[2]


SCRIPT = """
import sys, torch
from tdmap.run.fingerprint import source_parts
from tensordict_lite import TensorDict
ragged = lambda: torch.nested.nested_tensor([torch.tensor([1.0, 2.0]), torch.tensor([3.0])], layout=torch.jagged)
for _ in range(int(sys.argv[1])):
    ragged()
print(source_parts(TensorDict({"t": ragged()}, [2])))
"""


def test_ragged_rows_are_the_same_in_another_process():
    runs = [interpreters.run(["-c", SCRIPT, str(n)], check=True) for n in (0, 4)]
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("words", [False, True])
def test_a_dataset_whose_files_were_replaced_since_is_not_written_into(tmp_path, resume, words):
    def rows(value):
        found = TensorDict({"x": torch.full((20,), value)}, [20])
        return found.set("word", [f"{value}"] * 20) if words else found

    def change(chunk):
        found = TensorDict({"x": chunk["x"] + 10}, chunk.batch_size)
        return found.set("word", ["new"] * len(chunk)) if words else found

    said = r"a later save replaced .*x\.memmap.*load the dataset again"
    old = rows(1).memmap(tmp_path / "d")
    rows(2).memmap(tmp_path / "d")
    if resume:
        with pytest.raises(ValueError, match=said):
            tdmap.map(old, change, out=old, num_workers=0, resume=True)
    else:
        tdmap.map(old, change, out=old, num_workers=0)
        assert old["x"].unique().tolist() == [11]
    there = TensorDict.load_memmap(tmp_path / "d")
    assert there["x"].unique().tolist() == [2]
    assert not (words and resume) or list(there["word"]) == ["2"] * 20
