"""Every operation, on every kind of dataset, with every option: the right rows, or an error that names the option.

A cell that fails today is listed in `failing.txt` and must fail: the change that mends it removes its line.
`python -m tests.cells` writes the list.
"""

import itertools
import warnings
from pathlib import Path

import pytest

import tdmap
from tests.cells.kinds import KINDS, rows_of
from tests.cells.operations import all_operations
from tests.cells.options import OPTIONS

FAILING = Path(__file__).with_name("failing.txt")

OPERATIONS = all_operations()

CELLS = ["/".join(cell) for cell in itertools.product(OPERATIONS, KINDS, OPTIONS)]


def ask(cell: str, folder: Path) -> None:
    """Make the call of a cell in this folder, and raise AssertionError unless it answers as it should."""
    operation_name, kind, option_name = cell.split("/")
    operation, option = OPERATIONS[operation_name], OPTIONS[option_name]
    data = KINDS[kind](folder)
    rows = rows_of(data)
    arguments = {"num_workers": 0, **option.arguments(folder)}
    if kind in operation.refuses:
        with pytest.raises(ValueError, match="rows"):
            operation.call(data, num_workers=0)
        return
    applies = option.applies(operation) and option_name not in operation.lacks
    if not applies and option_name not in operation.own:
        names = [name for name in arguments if name != "num_workers"]
        with pytest.raises((TypeError, ValueError), match="|".join(names)):
            operation.read(operation.call(data, **arguments))
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tdmap.errors.AlreadyComplete)
        for _ in range(option.calls):
            result = operation.read(operation.call(data, **arguments))
    assert result == operation.expected(rows)
    if not arguments.get("resume"):
        assert not [*folder.rglob(".tdmap")], "something is left in a hidden folder"
    assert not (folder / "memory:").exists(), "the URL was taken for a path of this machine"
    assert rows_of(data) == rows


def _marked(cell: str, failing: set[str]) -> object:
    return (
        pytest.param(cell, marks=pytest.mark.xfail(strict=True, reason="listed in failing.txt"))
        if cell in failing
        else cell
    )


@pytest.mark.parametrize("cell", [_marked(cell, set(FAILING.read_text().split("\n"))) for cell in CELLS])
def test_cell(cell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ask(cell, tmp_path)


def test_the_list_names_cells_only():
    assert set(FAILING.read_text().split("\n")) - {""} <= set(CELLS)
