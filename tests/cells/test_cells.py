"""Every operation, on every kind of dataset, with every option: the right rows, or an error that names the option."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import tdmap
from tdmap.run import disk
from tests.cells.kinds import KINDS, Row, rows_of
from tests.cells.operations import Operation, all_operations
from tests.cells.options import OPTIONS
from tests.products import sampled

OPERATIONS = all_operations()


@pytest.fixture(autouse=True)
def _do_not_wait_for_the_disk(monkeypatch):
    """Start no process for each resumable call: what it does is a matter of `tests/faults`."""
    monkeypatch.setattr(disk.Helper, "_start", lambda self: False)


def ask(operation: Operation, option_name: str, data: Any, rows: list[Row], folder: Path) -> None:
    """Make the call of a cell in this folder, and raise AssertionError unless it answers as it should."""
    option = OPTIONS[option_name]
    arguments = {"num_workers": 0, **option.arguments(folder)}
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
        left = [path for place in (folder, folder.parent / "data") for path in place.rglob(".tdmap")]
        assert not left, "something is left in a hidden folder"
    assert not (folder / "memory:").exists(), "the URL was taken for a path of this machine"
    assert rows_of(data) == rows


@pytest.mark.parametrize("name, kind, half", sampled(2, OPERATIONS, KINDS, [0, 1]))
def test_an_operation_on_a_kind_of_dataset_with_every_option(name, kind, half, tmp_path, monkeypatch):
    operation, data, errors = OPERATIONS[name], KINDS[kind](tmp_path / "data"), []
    if kind in operation.refuses:
        with pytest.raises(ValueError, match="rows"):
            operation.call(data, num_workers=0)
        return
    rows = rows_of(data)
    for option in list(OPTIONS)[half::2]:
        (tmp_path / option).mkdir()
        monkeypatch.chdir(tmp_path / option)
        try:
            ask(operation, option, data, rows, tmp_path / option)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"with the option {option!r}")
            errors.append(error)
    if errors:
        raise BaseExceptionGroup(f"{name} of the kind {kind!r}", errors)
