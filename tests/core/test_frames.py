"""Data frames, Arrow tables and files of tables: the names of both packages give one answer, as does the reference."""

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensordict_lite as lib
from tdmap import datasets
from tensordict_lite import NonTensorStack, Ragged, TensorClass, TensorDict, lazy_stack

pandas = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")


class Sample(TensorClass):
    x: torch.Tensor
    word: Any


def of_rows(columns: dict[str, Any]) -> TensorDict:
    first = next(iter(columns.values()))
    return TensorDict(columns, [len(next(iter(first.values())) if isinstance(first, dict) else first)])


def with_times() -> TensorDict:
    data = TensorDict({"t": torch.arange(3), "d": torch.arange(3, dtype=torch.int32)}, [3])
    data.arrow_types = {"t": "timestamp[us]", "d": "date32[day]"}
    return data


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged)


COLUMNS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: {"i": torch.arange(3), "f": torch.rand(3).double(), "b": torch.arange(3) > 1},
    "narrow": lambda: {"u": torch.arange(3).byte(), "h": torch.ones(3).half(), "i": torch.arange(6)[::2].short()},
    "bfloat16": lambda: {"x": torch.ones(3).bfloat16()},
    "complex": lambda: {"x": torch.ones(3).cfloat().conj()},
    "matrix": lambda: {"m": torch.arange(12.0).view(4, 3).T},
    "text": lambda: {"s": ["größer", "", "a\n"]},
    "None": lambda: {"s": Ragged.from_list(["a", None, "c"])},
    "objects": lambda: {"s": NonTensorStack("a", "b"), "o": NonTensorStack({"k": 1}, {"k": 2})},
    "odd objects": lambda: {"o": NonTensorStack({1}, {2}, {3})},
    "bytes": lambda: {"b": Ragged.from_list([b"a", b"", b"\xff"])},
    "lists": lambda: {"l": Ragged.from_list([[1, 2], [], [3]])},
    "jagged": lambda: {"l": jagged()},
    "nested": lambda: {"n": {"b": torch.arange(3), "m": {"c": ["x", "y", "z"]}}, "a": torch.ones(3)},
    "masks": lambda: {"n": {"x": torch.arange(2), "x.valid": torch.tensor([True, False])}},
    "a mask of numbers": lambda: {"x": torch.arange(2), "x.valid": torch.arange(2)},
    "no rows": lambda: {"x": torch.zeros(0), "s": Ragged.from_list(["a"])[:0]},
}
KINDS: dict[str, Callable[[], Any]] = {
    **{kind: lambda make=make: of_rows(make()) for kind, make in COLUMNS.items()},  # type: ignore[misc]
    "two batch dimensions": lambda: TensorDict({"m": torch.ones(3, 2)}, [3, 2]),
    "times": with_times,
    "lazy stack": lambda: lazy_stack([TensorDict({"x": torch.ones(n), "s": "a"}) for n in (1, 2)]),
    "tensorclass": lambda: Sample(torch.arange(2), ["a", "b"], batch_size=[2]),
    "no batch size": lambda: TensorDict({"x": torch.tensor(1)}),
}
FILES = {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json"}
"""The formats of files, and the names of methods for them."""


def doors(door: str, place: Path) -> tuple[Any, Any, Any, Any]:
    """Functions of one format: out and in by the names of tensordict_lite, out and in by those of tdmap."""
    if door in FILES:
        name = FILES[door]
        lines: Any = {"lines": True} if door == "jsonl" else {}

        def to_file(data: Any, **options: Any) -> bytes:
            getattr(data, f"to_{name}")(place, **lines, **options)
            return place.read_bytes()

        def write(data: Any, **options: Any) -> bytes:
            datasets.write(data, place, format=door, **options)
            return place.read_bytes()

        back = getattr(TensorDict, f"from_{name}")
        return (
            to_file,
            lambda made, **options: back(place, **lines, **options),
            write,
            lambda made, **options: datasets.read(place, format=door, **options),
        )
    if door == "pandas":
        to_pandas: Any = lambda data, **options: data.to_pandas(**options)  # noqa: E731
        return to_pandas, TensorDict.from_pandas, datasets.to_pandas, datasets.from_pandas
    return lib.to_arrow, lib.from_arrow, datasets.to_arrow, datasets.from_arrow


def answer(ask: Callable[..., Any], data: Any, nulls: str | None) -> Any:
    """What a call returns, or its error."""
    try:
        return ask(data, nulls=nulls)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, TensorDict):
        return repr(one) == repr(other) and bool(lib.to_arrow(one).equals(lib.to_arrow(other)))
    return bool(one.equals(other) if hasattr(one, "equals") else one == other)


@pytest.mark.parametrize("door", ["pandas", "arrow", *FILES])
@pytest.mark.parametrize("kind", KINDS)
def test_both_names_give_one_answer(kind: str, door: str, tmp_path: Path) -> None:
    data = KINDS[kind]()
    out, back, write, read = doors(door, tmp_path / "file")
    for nulls in (None, "mask"):
        found, expected = answer(out, data, nulls), answer(write, data, nulls)
        assert is_same(found, expected), (found, expected)
        if isinstance(found, str):
            assert kind in ("bfloat16", "complex", "odd objects", "no batch size", "a mask of numbers") or door in FILES
            continue
        one, other = answer(back, found, nulls or "raise"), answer(read, found, nulls or "raise")
        assert is_same(one, other), (one, other)
        assert not isinstance(one, str) or kind in ("None", "no rows"), one
        if door in ("arrow", "parquet") and not isinstance(one, str):
            assert is_same(out(one, nulls=nulls), found)


@pytest.mark.parametrize("separator", [None, "."])
def test_numbers_are_those_of_the_reference(separator: str | None) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    frame = pandas.DataFrame({"i": [1, 2], "f": [0.5, -1], "b": [True, False], "o.x": [4, 5], "o.y.z": [6, 7]})
    found, expected = (kind.from_pandas(frame, separator=separator) for kind in (TensorDict, reference))
    assert set(found.keys(True, True)) == set(expected.keys(True, True)) and found.batch_size == expected.batch_size
    for key in found.keys(True, True):
        assert found[key].dtype is expected[key].dtype and torch.equal(found[key], expected[key]), key
    again, theirs = (data.to_pandas(separator=separator) for data in (found, expected))
    assert again.equals(theirs[list(again.columns)])
    found["i"].zero_()
    assert frame["i"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", FILES)
def test_the_reference_reads_and_writes_the_same_files(tmp_path: Path, kind: str) -> None:
    reference = pytest.importorskip("tensordict").TensorDict
    name, options = FILES[kind], {"separator": "."} | ({"lines": True} if kind == "jsonl" else {})
    for writer, reader in ((TensorDict, reference), (reference, TensorDict)):
        data = writer({"x": torch.arange(4), "deep": {"y": torch.arange(4) / 4}, "s": list("abcd")}, [4])
        getattr(data, f"to_{name}")(tmp_path / "d", **options)
        found = getattr(reader, f"from_{name}")(tmp_path / "d", **options)
        assert torch.equal(found["x"], data["x"]) and found["deep", "y"].tolist() == data["deep", "y"].tolist()
        assert list(found["s"]) == list("abcd") and found.batch_size == data.batch_size
    assert set(TensorDict.from_parquet(tmp_path / "d", columns=["x"]).keys()) == {"x"} if kind == "parquet" else True


@pytest.mark.parametrize("separator", [".", "/", "_"])
def test_masks_stay_beside_their_columns(separator: str) -> None:
    names = [f"n{separator}x", f"n{separator}s", "y"]
    frame = pandas.DataFrame(
        dict(zip(names, (pandas.array([1, None], dtype="Int64"), ["a", None], [True, False]), strict=True))
    )
    with pytest.raises(ValueError, match=f"the column 'n{separator}x' has nulls, the first in row 1"):
        TensorDict.from_pandas(frame, separator=separator)
    found = TensorDict.from_pandas(frame, separator=separator, nulls="mask")
    assert found["n", "x"].tolist() == [1, 0] and found["n", "x.valid"].tolist() == [True, False]
    assert found["n", "s"] == ["a", ""] and found["n", "s.valid"].tolist() == [True, False]
    again = found.to_pandas(separator=separator, nulls="mask")
    assert again.isna().equals(frame.isna()[list(again.columns)]) and again[names[0]].dtype == "Int64"


def test_columns_that_would_be_one_entry_are_told() -> None:
    for names in (["a.b", "a"], ["a", "a.b"]):
        with pytest.raises(KeyError, match="already present"):
            TensorDict.from_pandas(pandas.DataFrame([[1, 2]], columns=names), separator=".")
    for names in (["a", "a"], [1, "1"]):
        with pytest.raises(ValueError, match="(?i)duplicate column names|2 columns have the name"):
            TensorDict.from_pandas(pandas.DataFrame([[1, 2]], columns=names))
    with pytest.raises(KeyError, match=r"a\.b"):
        TensorDict({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, [1]).to_pandas(separator=".")


def test_a_tensorclass_and_other_options_of_a_collection() -> None:
    frame = pandas.DataFrame({"x": pandas.to_datetime(["2020-01-01"]), "word": ["a"]})
    found = Sample.from_pandas(frame, device="cpu")
    assert type(found) is Sample and found.word == ["a"] and found.device == torch.device("cpu")
    assert found.to_pandas().equals(frame.astype({"x": found.arrow_types["x"].replace("timestamp", "datetime64")}))
    assert TensorDict.from_pandas(frame[["x"]], batch_size=[]).batch_size == ()
    with pytest.raises(RuntimeError, match="batch"):
        TensorDict.from_pandas(frame, batch_size=[2])


def test_memory_is_shared_only_where_arrow_may_write(tmp_path: Path) -> None:
    mutable = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(np.arange(4))])
    lib.from_arrow({"x": mutable})["x"].add_(1)
    assert mutable.to_pylist() == [1, 2, 3, 4]
    table = pa.table({"x": [1, 2], "n": [{"t": datetime.date(2020, 1, 1)}, {"t": None}]})
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    with pa.memory_map(str(tmp_path / "t.arrow")) as source:
        found = lib.from_arrow(pa.ipc.open_file(source).read_all(), nulls="mask")
        found["x"].add_(1)  # into the file, this would end the process
        found["n", "t"].zero_()
        assert found["x"].tolist() == [2, 3] and found.arrow_types == {("n", "t"): "date32[day]"}
    data = TensorDict({"a": torch.arange(3)}, [3])
    assert lib.to_arrow(data)["a"].chunk(0).buffers()[1].address == data["a"].data_ptr()


def test_without_tdmap_the_methods_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tdmap.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"tdmap\.datasets"):
        TensorDict({"x": torch.ones(1)}, [1]).to_pandas()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": 2}\n', "format='jsonl'"),
        (b"[1, 2]", "not an array of objects"),
        (b'{"a": [1]}', "not an array of objects"),
        (b"[]", "no rows"),
        (b"[" * 100_000, "recursion"),
        (b'[{"a": 1}, {"a": "x"}]', "from number to string"),
    ],
)
def test_a_file_that_is_no_array_of_objects_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.json.*{message}"):
        TensorDict.from_json(tmp_path / "x.json")


def test_rows_of_a_hugging_face_dataset_on_disk_may_be_written(tmp_path: Path) -> None:
    saved = pytest.importorskip("datasets")
    saved.Dataset.from_dict({"x": [1, 2]}).save_to_disk(tmp_path)
    found = datasets.from_huggingface(saved.load_from_disk(tmp_path))
    found["x"].add_(1)  # into the mapped file, this would end the process
    assert found["x"].tolist() == [2, 3]
