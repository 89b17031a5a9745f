"""`append_memmap`, beside the reference's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensordict
import torch

import tensordict_lite

ROWS = {
    "rows": "data",
    "no rows": "data[:0]",
    "one row": "data[0]",
    "a tensorclass": "C(torch.arange(2), batch_size=[2])",
    "a missing entry": "data.select('a')",
    "an entry more": "data.clone().set('z', torch.zeros(2))",
    "another dtype": "data.double()",
    "another shape": "data.clone().set('a', torch.zeros(2, 2))",
    "another object": "data.clone().set('o', 'y')",
    "no collection": "{'a': torch.arange(2)}",
}


def answer(library: Any, rows: str, folder: Path) -> Any:
    data = library.TensorDict({"a": torch.arange(2), "n": {"b": torch.zeros(2)}, "o": "x"}, [2])
    if rows.startswith("C("):
        data = library.tensorclass(type("C", (), {"__annotations__": {"x": torch.Tensor}}))(
            torch.arange(2), batch_size=[2]
        )
        rows = "data"
    data.memmap(folder)
    try:
        assert library.append_memmap(folder, eval(rows, {"data": data, "torch": torch})) is None
    except Exception as error:
        return type(error)
    found = library.load_memmap(folder)
    return found.batch_size, [row.to_dict() for row in found.unbind(0)]


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_appended_as_by_the_reference(rows: str, tmp_path: Path) -> None:
    found, expected = (answer(lib, ROWS[rows], tmp_path / lib.__name__) for lib in (tensordict_lite, tensordict))
    assert found == expected


def test_rows_are_appended_to_datasets_alone(tmp_path: Path) -> None:
    rows = tensordict_lite.TensorDict({"a": torch.arange(2)}, [2])
    with pytest.raises(ValueError, match=r"append_memmap\('.*missing'\) takes the folder of a dataset"):
        tensordict_lite.append_memmap(tmp_path / "missing", rows)
    with pytest.raises(FileNotFoundError, match="no dataset to append rows to"):
        tensordict_lite.append_memmap(tmp_path, rows)
