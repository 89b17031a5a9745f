"""`file://` URLs name local files and folders, for every command and every function that takes a path."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tdmap
from tdmap import reducers
from tdmap.cli.app import app
from tdmap.datasets import convert, images, read, write
from tensordict_lite import DatasetWriter, TensorDict

COMMANDS = [
    "info {}/ds",
    "head {}/ds",
    "head {}/ds,{}/ds2",
    "stats {}/ds",
    "verify {}/ds",
    "map torch:clone {}/ds {}/out --num-workers 0",
    "filter 'x > 3' {}/ds {}/out",
    "sort {}/ds {}/out --by x",
    "sort {}/ds {}/out --by x --rows-per-shard 4",
    "shuffle {}/ds {}/out --seed 1",
    "join {}/ds {}/ds2 {}/out --on x",
    "group {}/ds count --by g --out={}/out",
    "reduce {}/ds max:x",
    "convert {}/ds {}/out.csv",
    "convert {}/f.csv {}/out",
    "status {}/ds",
]


def table(rows: int = 10) -> TensorDict:
    return TensorDict({"x": torch.arange(rows), "g": torch.arange(rows) % 2}, [rows])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with datasets; below the working directory, others where relative paths would lead."""
    root = tmp_path / "root"
    for folder, rows in ((root, 10), (Path(f"{tmp_path}/cwd{root}"), 99)):
        table(rows).memmap(folder / "ds")
        TensorDict({"x": torch.arange(rows), "y": torch.zeros(rows)}, [rows]).memmap(folder / "ds2")
        table(rows).memmap(folder / "ds3")
        write(table(rows), folder / "f.csv")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("TDMAP_STATUS_DIR", str(tmp_path / "status"))
    return root


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("scheme", ["file://", "file://localhost"])
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_do_the_same_as_with_paths(command: str, scheme: str, place: Path) -> None:
    def run(where: str) -> tuple[int, str, set[str]]:
        found = CliRunner().invoke(app, shlex.split(command.replace("{}", where)))
        made = {name for name in tree(place) if name.startswith("out")}
        for name in sorted(made, reverse=True):
            path = place / name
            path.rmdir() if path.is_dir() else path.unlink()
        return found.exit_code, found.output.replace(where, "PLACE").replace(str(place), "PLACE"), made

    before = tree(Path.cwd())
    code, text, made = run(str(place))
    again = run(f"{scheme}{place}")
    strip = {name.partition("/")[0] for name in made}
    assert (again[0], again[1], {name.partition("/")[0] for name in again[2]}) == (code, text, strip)
    assert tree(Path.cwd()) == before, "nothing is written below the working directory"


def _pictures(url: Callable[[str], str], place: Path) -> int:
    image = pytest.importorskip("PIL.Image")
    (place / "cats").mkdir(exist_ok=True)
    image.new("RGB", (8, 8)).save(place / "cats" / "a.png")
    images.ingest(url("cats"), url("out"), size=4, num_workers=0)
    return len(images.Pictures.open(url("out")))


USES: dict[str, Callable[[Callable[[str], str], Path], Any]] = {
    "open": lambda url, place: len(tdmap.open(url("ds"))),
    "open a list": lambda url, place: len(tdmap.open([url("ds"), f"{place}/ds3"])),
    "map": lambda url, place: len(tdmap.map(table(), lambda c: c, out=url("out"), num_workers=0)),
    "map in shards": lambda url, place: len(
        tdmap.map(table(), lambda c: c, out=url("out"), num_workers=0, rows_per_shard=3)
    ),
    "sort": lambda url, place: len(tdmap.sort(table(), "x", out=url("out"), num_workers=0)),
    "sort in shards": lambda url, place: len(tdmap.sort(table(), "x", out=url("out"), num_workers=0, rows_per_shard=3)),
    "Pipeline.write": lambda url, place: len(table().pipeline().write(url("out"), num_workers=0)),
    "Pipeline.cache": lambda url, place: len(table().pipeline().cache(url("out")).collect(num_workers=0)),
    "reduce": lambda url, place: tdmap.reduce(table(), reducers.Count(), num_workers=0, resume=url("out")),
    "write": lambda url, place: write(table(), url("out.csv")),
    "read": lambda url, place: len(read(url("f.csv"))),
    "read several": lambda url, place: len(read([url("f.csv"), url("f.csv")])),
    "read into": lambda url, place: len(read(url("f.csv"), url("out"))),
    "convert": lambda url, place: convert(url("f.csv"), url("out.parquet")),
    "convert a dataset": lambda url, place: convert(url("ds"), url("out.npz")),
    "pictures": _pictures,
    "train_test_split": lambda url, place: len(tdmap.train_test_split(table(), 4, out=url("out"), num_workers=0)[1]),
    "memmap": lambda url, place: len((table().memmap(url("out")), TensorDict.load_memmap(url("out")))[1]),
    "memmap_like": lambda url, place: len(table().memmap_like(url("out"))),
    "archive": lambda url, place: len((table().memmap(url("out.tdz")), TensorDict.load_memmap(url("out.tdz")))[1]),
    "consolidate": lambda url, place: len(
        (table().consolidate(url("out")), TensorDict.from_consolidated(url("out")))[1]
    ),
    "DatasetWriter": lambda url, place: DatasetWriter(url("out"), table()[0]).append(table()),
}

WRITERS_OF_FOLDERS = "Pipeline.cache reduce memmap memmap_like archive consolidate DatasetWriter".split()


@pytest.mark.parametrize("use", USES)
def test_functions_do_the_same_as_with_paths(use: str, place: Path) -> None:
    before = tree(Path.cwd())
    found = USES[use](lambda name: f"file://{place}/{name}", place)
    assert found != 99 and tree(Path.cwd()) == before
    assert not os.path.exists("file:")


@pytest.mark.parametrize("use", WRITERS_OF_FOLDERS)
def test_the_url_of_a_store_is_not_a_folder_below_the_working_directory(use: str, place: Path) -> None:
    with pytest.raises(ValueError, match="store"):
        USES[use](lambda name: f"memory://place/{name}", place)
    assert list(Path.cwd().glob("memory*")) == []


def test_a_relative_file_url_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute path"):
        tdmap.map(table(), lambda c: c, out="file://data/set", num_workers=0)
