"""`tdmap stats` and `tdmap head`: figures against numpy, rows as they are, pictures as pictures."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tdmap.cli import app
from tensordict_lite import TensorDict, lazy_stack

ROWS = 3000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("look") / "data"
    torch.manual_seed(3)
    x = torch.randn(ROWS, 2)
    x[::100, 0] = float("nan")
    x[5, 1] = -float("inf")
    red = torch.zeros(ROWS, 3, 16, 16, dtype=torch.uint8)
    red[:, 0] = 255
    entries = {
        "x": x,
        "red": red,
        "deep": {"flag": torch.rand(ROWS) > 0.25},
        "wide": torch.randint(-(1 << 40), 1 << 40, (ROWS,)),
        "half": torch.rand(ROWS).bfloat16(),
        "empty": torch.full((ROWS,), float("nan")),
        "z": torch.zeros(ROWS, dtype=torch.complex64),
        "name": [f"row {row}\x1b[2J" for row in range(ROWS)],
    }
    TensorDict(entries, [ROWS]).memmap_(path)
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_are_those_of_numpy(workers, folder):
    answer = run("stats", folder, "--json", "--num-workers", workers)
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    data = TensorDict.load_memmap(folder)
    assert told["rows"] == ROWS
    by_key = {"/".join(entry["key"]): entry for entry in told["keys"]}
    for key in ("x", "red", "deep/flag", "wide", "half"):
        values = data.get(tuple(key.split("/"))).double().numpy().reshape(-1)
        good, found = values[np.isfinite(values)], by_key[key]
        assert (found["count"], found["nan"]) == (values.size, np.isnan(values).sum())
        assert found["infinite"] == np.isinf(values).sum()
        assert (found["min"], found["max"]) == (good.min(), good.max())
        np.testing.assert_allclose(found["mean"], good.mean(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found["std"], good.std(ddof=1), rtol=1e-9)
        wanted = np.quantile(good, [0.05, 0.5, 0.95], method="lower")
        np.testing.assert_allclose(found["quantiles"], wanted, rtol=0.011, atol=1e-9)
        assert sum(found["histogram"]) == good.size
    assert by_key["empty"]["mean"] is None and by_key["empty"]["histogram"] == []
    assert "mean" not in by_key["z"] and "mean" not in by_key["name"]


def test_statistics_are_a_table_with_a_sparkline_and_a_picture(folder, tmp_path):
    answer = run("stats", folder, "x", "deep/flag", "--num-workers", 0, "--plot", tmp_path / "s.png")
    assert answer.exit_code == 0, answer.output
    (line,) = [line for line in answer.stdout.splitlines() if line.strip().startswith("x ")]
    assert "30 +1 inf" in line and "█" in line and "float32" in line
    with Image.open(tmp_path / "s.png") as picture:
        assert picture.width > 300 and len(picture.convert("RGB").getcolors(1 << 20)) > 5


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["stats", "xx"], "did you mean x"),
        (["head", "--start", ROWS], "no row"),
        (["stats", "x", "--plot", "/no/p.png"], "not written"),
    ],
)
def test_what_is_not_there_is_named(arguments, why, folder):
    command, *rest = arguments
    answer = run(command, folder, *rest)
    assert answer.exit_code == 2 and why in answer.output, answer.output


def test_rows_are_shown_as_they_are(folder):
    answer = run("head", folder, "-n", 2, "--start", 5)
    assert answer.exit_code == 0, answer.output
    assert "row 5" in answer.stdout and "row 6" in answer.stdout and "row 7\n" not in answer.stdout
    assert "-inf" in answer.stdout and "uint8 [3, 16, 16]" in answer.stdout and "760 more" in answer.stdout
    assert "\x1b" not in answer.stdout, "a text in a dataset commands no terminal"
    assert "red: pictures" in answer.stdout


def test_rows_are_json_with_all_numbers(folder):
    data = TensorDict.load_memmap(folder)
    answer = run("head", folder, "--start", -3, "--json")
    rows = json.loads(answer.stdout)["rows"]
    assert [row["row"] for row in rows] == [ROWS - 3, ROWS - 2, ROWS - 1]
    assert [row["wide"] for row in rows] == data["wide"][-3:].tolist()
    assert rows[0]["name"] == f"row {ROWS - 3}\x1b[2J" and rows[0]["empty"] == "nan"
    assert torch.tensor(rows[0]["red"], dtype=torch.uint8).equal(data["red"][-3])


def test_the_sheet_shows_the_pictures(folder, tmp_path):
    answer = run("head", folder, "-n", 10, "--sheet", tmp_path / "sheet.png")
    assert answer.exit_code == 0, answer.output
    with Image.open(tmp_path / "sheet.png") as sheet:
        colours = {colour: count for count, colour in sheet.getcolors(1 << 20)}
        assert colours[255, 0, 0] == 10 * 128 * 128
    small = tmp_path / "plain"
    TensorDict({"x": torch.zeros(4)}, [4]).memmap_(small)
    answer = run("head", small, "--sheet", tmp_path / "none.png")
    assert answer.exit_code == 2 and "looks like pictures" in answer.output


@pytest.mark.parametrize("numbers", [2, 7, 10, 15, 16])
def test_the_histogram_of_few_whole_numbers_counts_each(numbers, tmp_path):
    values = torch.arange(5000) % numbers
    values[: numbers // 2] = 0
    TensorDict({"label": values}, [5000]).memmap_(tmp_path / "labels")
    told = json.loads(run("stats", tmp_path / "labels", "--json", "--num-workers", 0).stdout)
    assert told["keys"][0]["histogram"] == values.bincount(minlength=numbers).tolist()


def test_the_histogram_of_many_numbers_is_about_that_of_numpy(tmp_path):
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    TensorDict({"x": values}, [len(values)]).memmap_(tmp_path / "normal")
    told = json.loads(run("stats", tmp_path / "normal", "--json", "--num-workers", 0).stdout)["keys"][0]
    expected, _ = np.histogram(values.numpy(), bins=16)
    assert sum(told["histogram"]) == 200_000
    np.testing.assert_allclose(told["histogram"], expected, atol=0.02 * 200_000)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.int32])
@pytest.mark.parametrize("sign", [1, -1])
def test_quantiles_of_numbers_that_are_far_from_zero_for_how_close_they_are(dtype, sign, tmp_path):
    """Such as identifiers, or years: within a hundredth of their range, whatever the order of rows."""
    values = sign * (1_000_000_000 + torch.randperm(3000, generator=torch.Generator().manual_seed(0))).to(dtype)
    TensorDict({"id": values, "one": torch.full((3000,), 7e9)}, [3000]).memmap_(tmp_path / "ids")
    ids, one = json.loads(run("stats", tmp_path / "ids", "--json", "--num-workers", 2).stdout)["keys"]
    wanted = np.quantile(values.double().numpy(), [0.05, 0.5, 0.95])
    assert np.abs(np.array(ids["quantiles"]) - wanted).max() <= 30
    assert max(ids["histogram"]) < 2 * 3000 / 16 and min(ids["histogram"]) > 0
    assert one["quantiles"] == [7e9] * 3 and ids["time"] is one["time"] is None


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.float32, torch.float64])
def test_quantiles_of_years_are_years(dtype, tmp_path):
    TensorDict({"year": (2000 + torch.arange(300) % 25).to(dtype)}, [300]).memmap_(tmp_path / "years")
    (found,) = json.loads(run("stats", tmp_path / "years", "--json", "--num-workers", 0).stdout)["keys"]
    np.testing.assert_allclose(found["quantiles"], [2001, 2012, 2023], atol=0.5)


def test_a_lazy_stack_of_rows_of_different_lengths_is_shown(tmp_path):
    rows = [TensorDict({"x": torch.arange(n % 3), "k": torch.tensor(-n)}, []) for n in range(5)]
    lazy_stack(rows).memmap(tmp_path / "rows")
    keys = json.loads(run("info", tmp_path / "rows", "--json").stdout)["keys"]
    assert [(entry["key"], entry["dtype"], entry["bytes"]) for entry in keys] == [
        (["k"], "int64", 40),
        (["x"], "ragged int64", 32),
    ]
    assert "x  [0, 1]  (ragged int64 [2])" in run("head", tmp_path / "rows").output
    assert json.loads(run("stats", tmp_path / "rows", "--json").stdout)["rows"] == 5
