"""CSV and JSON Lines: every value comes back equal, or the error names its column, row and file."""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tdmap import tuning
from tdmap.datasets import SkippedLines, convert, from_arrow, read, to_arrow, write
from tdmap.datasets.textfiles.blocks import Records, blocks_of
from tensordict_lite import Ragged, TensorDict
from tests.products import sampled

pa = pytest.importorskip("pyarrow")
from_csv = pytest.importorskip("pyarrow.csv")

TARGETS = ["memory", "folder", "file"]


def through(source: Any, target: str, place: Path, **options: Any) -> TensorDict:
    """What `read` gives in memory or in a folder, or what `convert` writes into a file."""
    if target == "memory":
        return read(source, **options)
    if target == "folder":
        return read(source, place / "out", overwrite=True, **options)
    convert(source, place / "out.arrow", **options)
    return read(place / "out.arrow", nulls=options.get("nulls", "raise"))


def values(table: TensorDict, name: str) -> list[Any]:
    return to_arrow(table, nulls="mask").flatten()[name].to_pylist()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.jsonl", "x.ndjson.zst"])
def test_a_row_may_be_longer_than_a_block(tmp_path: Path, name: str, target: str) -> None:
    words = ["ant", "b" * (tuning.DEFAULT.text_bytes + 9), "", 'c\n",\t' * 900_000, "dog"]
    write({"i": torch.arange(5), "word": Ragged.from_list(words)}, tmp_path / name)
    found = through(tmp_path / name, target, tmp_path)
    assert found["i"].tolist() == [0, 1, 2, 3, 4] and found["word"] == words


def test_a_row_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n" + '3,"4\n' + "5,6\n" * 9000)
    with pytest.raises(ValueError, match=r"x\.csv: the row that begins at byte 8 has no end .*: cut it"):
        list(blocks_of(str(tmp_path / "x.csv"), Records(",").last, 1 << 10, longest=1 << 12))


def test_ones_beside_words_are_no_bools(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,true\ntrue,False\n")
    found = read(tmp_path / "x.csv")
    assert found["a"] == ["1", "true"] and found["b"].tolist() == [True, False]
    (tmp_path / "x.csv").write_text("a\n1\ntrue\n0\n")
    assert read(tmp_path / "x.csv", types={"a": torch.bool})["a"].tolist() == [True, True, False]


@pytest.mark.parametrize("seed", [*range(100), *(pytest.param(n, marks=pytest.mark.soak) for n in range(100, 300))])
def test_records_end_where_arrow_ends_them(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    block_bytes = choose.choice([16, 40, 100])
    pieces = ["a", "1", '"', '""', ",", "\n", "\r\n", "\r", "x y", " ", '5"', "é"]
    names = [f"c{number}" for number in range(choose.randint(1, 4))]
    if seed % 3:  # what Python writes; else anything
        text = io.StringIO()
        writer = csv.writer(
            text,
            quoting=choose.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
            lineterminator=choose.choice(["\r\n", "\n", "\r"]),
        )
        rows = [["".join(choose.choices(pieces, k=choose.randint(0, 4))) for _ in names] for _ in range(9)]
        writer.writerows([names, *rows])
        content = text.getvalue().encode()
    else:
        content = (
            ",".join(names).encode()
            + choose.choice([b"\n", b"\r", b"\r\n"])
            + "".join(choose.choices(pieces, k=60)).encode()
        )
    (tmp_path / "x.csv").write_bytes(content)
    types: Any = dict.fromkeys(names, str)
    parse = from_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
    convert_options = from_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    try:
        expected = from_csv.read_csv(pa.BufferReader(content), None, parse, convert_options).to_pydict()
    except pa.ArrowInvalid:
        with tuning.use(text_bytes=block_bytes), pytest.raises(ValueError, match=r"x\.csv"):
            read(tmp_path / "x.csv", types=types)
        return
    if not expected["c0"]:
        return
    with tuning.use(text_bytes=block_bytes):
        assert to_arrow(read(tmp_path / "x.csv", types=types)).to_pydict() == expected


LATER = {
    "x.csv": [
        ("1", "1.5", [1.0, 1.5]),
        ("1", "x", ["1", "x"]),
        ("", "7", [None, 7]),
        ("", "x", [None, "x"]),
        ("2.50", "x", ["2.50", "x"]),
        ("true", "x", ["true", "x"]),
        ("true", "2", ["true", "2"]),
        ("501", "00501", ["501", "00501"]),
        ("2020-01-01", "spring", ["2020-01-01", "spring"]),
        ("12:30:00", "2020-01-01", ["12:30:00", "2020-01-01"]),
        ("1", str(2**64 - 1), [1, 2**64 - 1]),
        (str(2**64 - 1), "1", [2**64 - 1, 1]),
        ("0.5", "2", [0.5, 2.0]),
    ],
    "x.jsonl": [
        ("1", "1.5", [1.0, 1.5]),
        ("null", "7", [None, 7]),
        ("null", '"x"', [None, "x"]),
        ("[]", "[7]", [[], [7]]),
        ("[1]", "[0.5]", [[1.0], [0.5]]),
        ('"2020-01-01"', '"spring"', ["2020-01-01", "spring"]),
        ('"spring"', '"2020-01-01"', ["spring", "2020-01-01"]),
        ("1", str(2**64 - 1), [1, 2**64 - 1]),
        (f"[{2**64 - 1}]", "[]", [[2**64 - 1], []]),
        ("0.5", "2", [0.5, 2.0]),
    ],
}


def rows_of(name: str, cells: list[str]) -> str:
    if name.endswith("csv"):
        return "i,v\n" + "".join(f"{number},{cell}\n" for number, cell in enumerate(cells))
    return "".join(f'{{"i": {number}, "v": {cell}}}\n' for number, cell in enumerate(cells))


NAMED = [(name, *case) for name, cases in LATER.items() for case in cases]


@pytest.mark.parametrize("case, where, target", sampled(2, NAMED, ["same block", "later block", "other file"], TARGETS))
@tuning.use(text_bytes=1 << 10)
def test_a_later_value_widens_the_type_of_its_column(
    tmp_path: Path, case: tuple[str, str, str, list[Any]], where: str, target: str
) -> None:
    name, first, later, expected = case
    count = 3 if where == "same block" else 500 if where == "later block" else 9
    parts = [[first] * count, [later]]
    if where == "other file":
        for number, cells in enumerate(parts):
            (tmp_path / f"{number}{name}").write_text(rows_of(name, cells))
        found = through(str(tmp_path / f"*{name}"), target, tmp_path, nulls="mask")
    else:
        (tmp_path / name).write_text(rows_of(name, parts[0] + parts[1]))
        found = through(tmp_path / name, target, tmp_path, nulls="mask")
    assert list(found.keys())[::2] == ["i", "v"]
    assert values(found, "v") == [expected[0]] * count + [expected[1]]


@pytest.mark.parametrize("target", TARGETS)
@tuning.use(text_bytes=1 << 10)
def test_a_field_may_come_late(tmp_path: Path, target: str) -> None:
    lines = [*['{"a": 1, "s": {"x": 1}}\n'] * 500, '{"b": "x", "s": {"y": 2}}\n', '{"a": 2, "s": {}}\n']
    (tmp_path / "x.jsonl").write_text("".join(lines))
    with pytest.raises(ValueError, match=r"x\.jsonl: the column '(a|b|s\.x|s\.y)' has .* nulls"):
        through(tmp_path / "x.jsonl", target, tmp_path)
    found = through(tmp_path / "x.jsonl", target, tmp_path, nulls="mask")
    assert values(found, "b") == [None] * 500 + ["x", None] and values(found, "s.y") == [None] * 500 + [2, None]
    chosen = through(tmp_path / "x.jsonl", target, tmp_path, nulls="mask", columns=["b"])
    assert values(chosen, "b") == [None] * 500 + ["x", None] and list(chosen.keys()) == ["b", "b.valid"]
    with pytest.raises(ValueError, match=r"x\.jsonl has no column 'c'. Columns: 'a', 's', 'b'"):
        through(tmp_path / "x.jsonl", target, tmp_path, nulls="mask", columns=["c"])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("where", [0, 700])
@pytest.mark.parametrize(
    ("name", "cells", "told"),
    [
        ("x.csv", [str(2**64)], "integer 18446744073709551616"),
        ("x.csv", [str(-(2**63) - 1)], "integer -9223372036854775809"),
        ("x.csv", ["-1", str(2**63)], "9223372036854775808|-1"),
        ("x.csv", ["0.5", str(2**53 + 1)], "9007199254740993 .* besides fractions"),
        ("x.jsonl", [str(2**64)], "integer 18446744073709551616"),
        ("x.jsonl", ["-1", str(2**63)], "9223372036854775808|-1"),
        ("x.jsonl", ["0.5", str(2**53 + 1)], "9007199254740993 .* besides fractions"),
        ("x.jsonl", [f"[{2**64}]"], "18446744073709551616"),
        ("x.jsonl", ["[-1]", f"[{2**63}]"], "9223372036854775808|-1"),
        ("x.jsonl", [f'{{"a": [{2**64}]}}'], "18446744073709551616"),
        ("x.jsonl", ["1", '"x"'], "from number to string.* one type: .*from_pandas"),
    ],
)
@tuning.use(text_bytes=1 << 10)
def test_a_value_that_no_type_holds_is_refused_by_name(
    tmp_path: Path, name: str, cells: list[str], told: str, where: int, target: str
) -> None:
    (tmp_path / name).write_text(rows_of(name, [cells[0]] * where + cells))
    with pytest.raises(ValueError, match=told) as caught:
        through(tmp_path / name, target, tmp_path)
    rows = (0, where, where + len(cells) - 1)
    assert any(f"row {row}" in str(caught.value) for row in rows)
    assert str(tmp_path / name) in str(caught.value) and "'v'" in str(caught.value) or "/v" in str(caught.value)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.arrow").exists()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "cells", "kind", "expected"),
    [
        ("x.csv", ["1", "2"], str, ["1", "2"]),
        ("x.csv", ["1", ""], "string", ["1", ""]),
        ("x.csv", ["1", "2"], bytes, [b"1", b"2"]),
        ("x.csv", ["1", "2"], torch.float32, [1.0, 2.0]),
        ("x.csv", [str(2**64), "1"], torch.float64, [2.0**64, 1.0]),
        ("x.csv", ["00501", "7"], torch.int16, [501, 7]),
        ("x.csv", ["0", "1"], torch.bool, [False, True]),
        ("x.csv", ["2020-01-01", "2020-01-02"], "string", ["2020-01-01", "2020-01-02"]),
        ("x.csv", ["5", "6"], pa.uint8(), [5, 6]),
        ("x.jsonl", ["1", "2"], torch.float32, [1.0, 2.0]),
        ("x.jsonl", [str(2**64), "1"], torch.float64, [2.0**64, 1.0]),
        ("x.jsonl", ['"2020-01-01"', '"2020-01-02"'], str, ["2020-01-01", "2020-01-02"]),
        ("x.jsonl", ["[1]", "[]"], pa.list_(pa.int8()), [[1], []]),
    ],
)
def test_types_are_those_that_are_said(
    tmp_path: Path, name: str, cells: list[str], kind: Any, expected: list[Any], target: str
) -> None:
    (tmp_path / name).write_text(rows_of(name, cells))
    found = through(tmp_path / name, target, tmp_path, types={"v": kind})
    assert values(found, "v") == expected and list(found.keys()) == ["i", "v"]
    if isinstance(kind, torch.dtype):
        assert found["v"].dtype is kind


@pytest.mark.parametrize("where", [0, 700])
@pytest.mark.parametrize(
    ("name", "cell"), [("x.csv", "x"), ("x.csv", "300"), ("x.csv", "1.5"), ("x.jsonl", "300"), ("x.jsonl", '"x"')]
)
@tuning.use(text_bytes=1 << 10)
def test_a_value_of_another_type_than_is_said_is_named(tmp_path: Path, name: str, cell: str, where: int) -> None:
    (tmp_path / name).write_text(rows_of(name, ["1"] * where + [cell, "2"]))
    with pytest.raises(ValueError, match=rf"{name}: .*['/]v.* row ({where}|{where + 1})\b"):
        read(tmp_path / name, types={"v": torch.uint8})


def test_types_that_have_no_place_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("v\n1\n")
    (tmp_path / "x.jsonl").write_text('{"v": 1}\n')
    write({"v": torch.arange(2)}, tmp_path / "x.parquet")
    for kind in (3, "number", torch.bfloat16, torch.float16, list):
        with pytest.raises(TypeError, match="types= has .* for the column 'v'"):
            read(tmp_path / "x.csv", types={"v": kind})
    for name in ("x.csv", "x.jsonl"):
        with pytest.raises(ValueError, match=f"{name} has no column 'w'. Columns: 'v'"):
            read(tmp_path / name, types={"w": torch.int64})
    with pytest.raises(ValueError, match="types= applies to columns of csv, tsv, jsonl, json: files of parquet store"):
        read(tmp_path / "x.parquet", types={"v": torch.int64})


def test_fields_of_objects_have_types_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"s": {"day": "2020-01-01", "n": 1}}\n')
    found = read(tmp_path / "x.jsonl", types={"s.day": str, "s.n": torch.int16})
    assert found["s", "day"] == ["2020-01-01"] and found["s", "n"].dtype is torch.int16


@pytest.mark.parametrize("target", TARGETS)
def test_digits_behind_a_zero_are_text(tmp_path: Path, target: str) -> None:
    (tmp_path / "x.csv").write_text(
        "zip,n,x,day,t\n00501,0,0.5,2020-01-05,01:05:00\n2134,10,-0.25,2020-10-01,10:00:00\n"
    )
    found = through(tmp_path / "x.csv", target, tmp_path)
    assert values(found, "zip") == ["00501", "2134"]
    assert found["n"].tolist() == [0, 10] and found["x"].tolist() == [0.5, -0.25]
    assert list(found.arrow_types.values()) == ["date32[day]", "time32[s]"]
    for cells in ("+05", "-05", '"05"', "00.5", " 05", "0x1f", "0XFFFFFFFFFFFFFFFF", "-0x1"):
        (tmp_path / "x.csv").write_text(f"i,v\n1,{cells}\n")
        assert values(through(tmp_path / "x.csv", target, tmp_path), "v") == [cells.strip('"')]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv.gz", "x.jsonl"])
@pytest.mark.parametrize(
    "columns",
    [
        {"x": [1, None, 3]},
        {"x": [None, 1, None]},
        {"x": ["a", None, ""]},
        {"x": [None, "NA", None]},
        {"x": [1.5, None, 2.5], "y": ["", None, "null"]},
        {"x": ["", "", None], "y": [True, None, False], "z": [None, None, None]},
    ],
)
def test_nulls_that_are_written_are_nulls_again(
    tmp_path: Path, name: str, columns: dict[str, list[Any]], target: str
) -> None:
    if name.startswith("x.tsv"):
        columns = {**columns, "x": columns["x"][::-1]}
    write(from_arrow(pa.table(columns), nulls="mask"), tmp_path / name, nulls="mask", batch_rows=2)
    found = through(tmp_path / name, target, tmp_path, nulls="mask")
    assert {column: values(found, column) for column in columns} == columns


def test_lines_of_one_column_are_rows(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\nword\nant\n\nbee\n")
    assert read(tmp_path / "x.csv")["word"] == ["ant", "", "bee"]
    (tmp_path / "y.csv").write_text("n\n1\n\n3\n")
    with pytest.raises(ValueError, match=r"y\.csv: the column 'n' has nulls, the first in row 1"):
        read(tmp_path / "y.csv")
    (tmp_path / "z.csv").write_text("a,b\n\n1,2\n\n3,4\n\n")
    assert read(tmp_path / "z.csv")["b"].tolist() == [2, 4]


@pytest.mark.parametrize("row", [0, 1, 4321])
@pytest.mark.parametrize(
    ("name", "torn", "told"),
    [
        ("x.jsonl", '{"i": 1, "v": "x', ""),
        ("x.jsonl", '{"i": 1, "v": "\\ud83d"}', "surrogate"),
        ("x.jsonl", "[1]", "object to array.*each line must be an object"),
        ("x.csv", "1", "Expected 2 columns, got 1"),
        ("x.csv", '1,2,"3\n"', "Expected 2 columns, got 3"),
    ],
)
def test_a_torn_row_is_named(tmp_path: Path, name: str, torn: str, told: str, row: int) -> None:
    lines = rows_of(name, ['"' + "x" * 2000 + '"'] * 5000).splitlines()
    lines[row + name.endswith("csv")] = torn
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    line = rf" \(line {row + 1}\)" if name == "x.jsonl" else ":"
    with pytest.raises(ValueError, match=rf"{name}: .*{told}") as caught:
        read(tmp_path / name)
    assert f"row {row}{line}".replace("\\", "") in str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("torn", ['3,"', '3,"c', '3,"c""', '"3', '3,"c\n4,d\n5,""\n'])
@pytest.mark.parametrize("before", [["1,a"], ["1,a", "2", '2,"5"""'], ["1,a"] * 30_000])
def test_a_quote_that_is_not_closed_is_named(tmp_path: Path, before: list[str], torn: str, end: str) -> None:
    path, torn = tmp_path / "x.csv", torn.replace("\n", end)
    rows = [row for row in before if "," in row]
    with tuning.use(text_bytes=1 << 10):
        for last in ("", end):
            path.write_bytes(end.join(["n,t", *before, torn + last]).encode())
            with pytest.raises(ValueError, match=r"x\.csv: .*(quote that is not closed|got 1).*on_error='skip'"):
                read(path)
            found: list[Any] = []
            assert len(read(path, on_error=found.append)) == len(rows)
            assert found[-1].line == len(before) + 2 and found[-1].text == torn.rstrip(end)
            assert len(found) == 1 + len(before) - len(rows)
        for closed in ('3,""', '3,"c""\n"', '3,5"'):
            path.write_bytes(end.join(["n,t", *rows, closed]).encode())
            assert len(read(path)) == len(rows) + 1
    path.write_bytes(f'n,"t{end}1,a{end}'.encode())
    with pytest.raises(ValueError, match="line 1 has a quote that is not closed"):
        read(path)


def test_blank_lines_count_as_lines(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n\n\n{"a": 2}\n{"a": \n')
    with pytest.raises(ValueError, match=r"row 2 \(line 5\)"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
@pytest.mark.parametrize("row", [1, 30_000])
def test_text_of_other_encodings_is_named(tmp_path: Path, name: str, row: int) -> None:
    lines = rows_of(name, ['"' + "x" * 200 + '"'] * (row + 2)).encode().splitlines()
    lines[row + name.endswith("csv")] = lines[-1].replace(b"xx", b"caf\xe9", 1)
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(ValueError, match=rf"{name}: the column 'v' (has text )?in row {row}\b.*(not UTF-8|UTF8)"):
        read(tmp_path / name)
    assert len(read(tmp_path / name, columns=["i"])) == row + 2
    if name == "x.csv":
        assert b"\xe9" in read(tmp_path / name, types={"v": bytes})["v"].tolist()[row]


@pytest.mark.parametrize(
    "value",
    ['{"a":' * 5000 + "1" + "}" * 5000, "[" * 100_000 + "]" * 100_000, "[" * 100_000, '[{"a":' * 40 + "1" + "}]" * 40],
)
@pytest.mark.parametrize("target", TARGETS)
def test_deep_values_are_refused_before_they_are_parsed(tmp_path: Path, value: str, target: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"v": "[[\\"{{"}\n' + f'{{"v": {value}}}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl: .* 64 levels deep: row 1 \(line 2\)"):
        through(tmp_path / "x.jsonl", target, tmp_path)


def test_brackets_in_text_are_not_deep(tmp_path: Path) -> None:
    rows = ["[" * 500, '\\"{{' * 100, '"[' * 100, "\\"]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"v": row, "w": [1]}) + "\n" for row in rows))
    assert list(read(tmp_path / "x.jsonl")["v"]) == rows


def test_rows_without_fields_are_not_left_out(tmp_path: Path) -> None:
    for text, told in [
        ("{}\n{}\n", "no row has a field"),
        ('{"a": {}}\n', "the column 'a' is a struct without fields"),
    ]:
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises((ValueError, TypeError), match=rf"x\.jsonl.*{told}"):
            read(tmp_path / "x.jsonl", nulls="mask")
    (tmp_path / "x.jsonl").write_text('{}\n{"a": 1}\n{}\n')
    assert values(read(tmp_path / "x.jsonl", nulls="mask"), "a") == [None, 1, None]


def test_deep_values_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"v": 1}\n' + '{"v": ' + "[" * 100_000 + "]" * 100_000 + '}\n{"v": 2}\n')
    with pytest.warns(SkippedLines, match="line 2"):
        assert read(tmp_path / "x.jsonl", on_error="skip")["v"].tolist() == [1, 2]
