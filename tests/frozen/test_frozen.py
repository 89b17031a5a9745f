"""The same bits as ever, for any number of workers; the same public names; folders of before open as they did."""

import pytest

from tensordict_lite import load_memmap
from tests.cells.kinds import KINDS, rows_of
from tests.frozen.frozen import (
    FOLDERS,
    PUBLIC,
    ROWS,
    WORKERS,
    WRITTEN,
    digest,
    frozen_operations,
    load_digests,
    public_names,
)

OPERATIONS = frozen_operations()


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_are_the_recorded_bits_for_any_number_of_workers(name, tmp_path):
    found = {
        f"{name}/{kind}": {
            digest(OPERATIONS[name], kind, workers, tmp_path / f"{kind}{workers}") for workers in WORKERS
        }
        for kind in KINDS
    }
    recorded = load_digests()
    assert found == {cell: {recorded[cell]} for cell in found}


def test_public_names_and_signatures_are_the_recorded_ones():
    assert public_names() == PUBLIC.read_text(), "run `python -m tests.frozen`, and read the difference line by line"


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("writer", ["tensordict_lite", "reference"])
def test_recorded_folders_open_with_the_recorded_rows(writer, kind, tmp_path):
    folder = FOLDERS / writer / kind
    assert rows_of(load_memmap(folder)) == rows_of(KINDS[kind](tmp_path)[:ROWS])
