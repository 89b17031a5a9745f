"""`tdmap info` of plain folders reads metadata alone: it says what it says of the opened dataset, and is quick."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tdmap
from tdmap.cli import app, outline
from tdmap.cli.commands import info
from tdmap.memory.hidden import HIDDEN
from tensordict_lite import NonTensorData, TensorDict, lazy_stack
from tensordict_lite.memmap.disk.format import ITEMSIZE, RUNS
from tensordict_lite.memmap.tuning import use
from tensordict_lite.show.options import bytes_text
from tests.cells.kinds import KINDS, plain
from tests.memmap import trees


def _times() -> TensorDict:
    data = plain().update({"n": {"at": plain()["x"]}, "half": plain()["f"]})
    data.arrow_types = {"x": "timestamp[us]", ("n", "at"): "duration[ms]", "k": "no such type"}
    return data


def _objects() -> TensorDict:
    entries = {
        "one": NonTensorData({"k": [1]}, batch_size=[4]),
        "text": "all",
        "list": NonTensorData([1, 2], batch_size=[4]),
        "flags": [True, False, True, False],
        "mixed": [1, "a", None, 2.0],
        "lists": [[1], [2], [3], [4]],
        "b": [b"a", b"", b"c", b"d"],
        "shape": torch.zeros(4, dtype=torch.bfloat16),
        "a key/of: all": torch.zeros(4),
        "a.b": torch.zeros(4, 0),
    }
    return TensorDict({key: entries[key] for key in entries}, [4])


MORE: dict[str, Callable[[], Any]] = {
    "times": _times,
    "objects": _objects,
    "every entry": lambda: trees.entries("ours"),
    "stacked": lambda: lazy_stack([TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.ones(2, 1)}}, [2])] * 3, 1),
    "lazy entry": lambda: TensorDict({"z": lazy_stack([plain(3)[i] for i in range(3)]), "k": torch.ones(3)}, [3]),
    "named": lambda: TensorDict({"x": torch.zeros(2)}, [2], names=["time"]),
    "no batch": lambda: TensorDict({"x": torch.zeros(2), "n": {}, "word": "a"}, []),
}
QUICK = {
    "memory",
    "mapped",
    "text",
    "ragged",
    "nested",
    "lazy",
    "one row",
    "times",
    "stacked",
    "lazy entry",
    "no batch",
}
"""Kinds that must not need torch. Others may."""

ALL = [*(kind for kind in KINDS if kind != "mapped"), *MORE]


def save(kind: str, folder: Path) -> Path:
    data = KINDS[kind](folder / "made") if kind in KINDS else MORE[kind]()
    if isinstance(data, tdmap.types.ShardedDataset):
        return folder / "made" / "part0"
    data.memmap(folder / "data")
    return folder / "data"


def said(path: Path, *options: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["info", str(path), *options])
    return answer.exit_code, answer.output


@pytest.mark.parametrize("text_rows", [0, 1000])
@pytest.mark.parametrize("kind", ALL)
def test_the_metadata_say_the_same_as_the_dataset(
    kind: str, text_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with use(text_rows=text_rows):
        path = save(kind, tmp_path)
    assert outline.read_outline(path) is not None or kind not in QUICK
    quick = [said(path), said(path, "--json")]
    monkeypatch.setattr(info, "read_outline", lambda path: None)
    assert quick == [said(path), said(path, "--json")]
    assert [code for code, _ in quick] == [0, 0]


BAD = (None, True, -1, 0, 3, 1 << 70, "x", "torch.int16", [], [1], {}, {"type": "x"})


@pytest.mark.parametrize("kind", ["ragged", "objects", "lazy entry", "times"])
def test_metadata_that_were_edited_are_left_to_the_loader(kind: str, tmp_path: Path) -> None:
    """Unless the loader opens them as well, and finds the same."""
    with use(text_rows=0 if kind == "ragged" else 1000):
        path = save(kind, tmp_path)
    for file in sorted(path.rglob("meta.json")):
        text = file.read_text()
        for edited in _edited(json.loads(text)):
            file.write_text(json.dumps(edited))
            found = outline.read_outline(path)
            if found is not None:
                assert found == outline.outline_of(TensorDict.load_memmap(path)), edited
        file.write_text(text)
    assert kind not in QUICK or outline.read_outline(path) is not None


def _edited(value: Any) -> Any:
    """A value of JSON with one part in it replaced or gone, in many ways."""
    yield from BAD
    if isinstance(value, (dict, list)):
        for key in [*value] if isinstance(value, dict) else range(len(value)):
            for other in _edited(value[key]):
                changed = value.copy()
                changed[key] = other
                yield changed
            changed = value.copy()
            del changed[key]
            yield changed


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a short file": lambda path: os.truncate(path / "x.memmap", 8),
    "a long file": lambda path: os.truncate(path / "n/z/u.memmap", 800),
    "a missing file": lambda path: (path / "x.memmap").unlink(),
    "a missing folder": lambda path: shutil.rmtree(path / "n/z"),
    "a link to a file": lambda path: _link(path / "x.memmap"),
    "a link to metadata": lambda path: _link(path / "n/meta.json"),
    "a link to a folder": lambda path: _link(path / "n/z"),
    "no JSON": lambda path: (path / "n/meta.json").write_bytes(b"{"),
    "deep JSON": lambda path: (path / "n/meta.json").write_bytes(b"[" * 100_000),
    "huge metadata": lambda path: os.truncate(path / "n/meta.json", 1 << 40),
    "a pipe": lambda path: _fifo(path / "n/meta.json"),
    "no metadata": lambda path: (path / "meta.json").unlink(),
    "a manifest": lambda path: (path / "shards.json").write_bytes(b"{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_left_to_the_loader(damage: str, tmp_path: Path) -> None:
    path = save("nested", tmp_path)
    DAMAGES[damage](path)
    assert outline.read_outline(path) is None
    code, text = said(path)
    assert code == 2 and "Traceback" not in text, text


def test_a_link_to_the_dataset_is_followed(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(save("nested", tmp_path))
    assert outline.read_outline(tmp_path / "latest") == outline.read_outline(tmp_path / "data") is not None


def test_names_in_a_dataset_command_no_terminal(tmp_path: Path) -> None:
    data = TensorDict({"a\x1b[2J": {"b\x1b": torch.zeros(2)}, "at": torch.zeros(2, dtype=torch.int64)}, [2])
    data.arrow_types = {"at": "timestamp[us, tz=\x1b[2J]"}
    data.memmap(tmp_path / "all")
    data.select("at").memmap(tmp_path / "quick")
    assert outline.read_outline(tmp_path / "quick") is not None
    for path in (tmp_path / "all", tmp_path / "quick"):
        code, text = said(path)
        assert code == 0 and "\x1b" not in text and "timestamp[us, tz=" in text, text


def test_looking_needs_neither_torch_nor_numpy(tmp_path: Path) -> None:
    data, out = save("nested", tmp_path), tmp_path / "out"
    with use(text_rows=0):
        KINDS["ragged"](tmp_path).memmap(tmp_path / "ragged")
    KINDS["lazy"](tmp_path).memmap(tmp_path / "lazy")
    tdmap.map(TensorDict.load_memmap(data), _same, out=out, resume=True, num_workers=0)
    tdmap.map(TensorDict.load_memmap(data), _same, out=tmp_path / "s", rows_per_shard=9, resume=True, num_workers=0)
    folders = [data, tmp_path / "ragged", tmp_path / "lazy"]
    runs = [["--help"], ["info", "--help"], ["status", str(out)], ["status", str(out), "--json"]]
    runs += [["status", str(tmp_path / "s")], ["status", str(tmp_path / "none")]]
    runs += [["info", str(folder), *more] for folder in folders for more in ([], ["--json"])]
    program = (
        "import json, sys\nfrom tdmap.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    sys.argv[1:] = words\n"
        "    try: main()\n"
        "    except SystemExit: pass\n"
        "    loaded = {'torch', 'numpy', 'tensordict_lite'} & sys.modules.keys()\n"
        "    assert not loaded, (words, loaded)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, json.dumps(runs)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("24 of 24 rows done") == 2 and "ragged int64" in ran.stdout


def _same(chunk: Any) -> Any:
    return chunk.clone()


def test_what_is_written_twice_for_lack_of_torch_is_the_same() -> None:
    assert HIDDEN == RUNS
    counts = [n for power in range(60) for n in ((1 << power) - 1, 1 << power, 3 << power)]
    assert list(map(outline.bytes_text, counts)) == list(map(bytes_text, counts))
    assert {f"torch.{name}": size for name, size in outline.ITEMSIZE.items()}.items() <= ITEMSIZE.items()
