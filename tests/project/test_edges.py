"""Each edge can be deleted (docs/design.md, "The line"). `python -m tests.project.edges` collects and runs the rest."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tdmap.edges import PLACES
from tests.project.edges import EDGES, OTHERS, PACKAGES, ROOT, WHOLE_TREE, code_of, copy_without

CORE = """
import os, sys, traceback, torch

def works(tree):
    os.chdir(tree)
    sys.path.insert(0, tree)
    import tdmap, tensordict_lite
    from tensordict_lite import TensorDict, lazy_stack, tensorclass
    assert tdmap.__file__.startswith(tree) and tensordict_lite.__file__.startswith(tree)
    for one in tdmap, tensordict_lite:
        [getattr(one, name) for name in one.__all__]

    @tensorclass
    class Row:
        x: torch.Tensor
        word: str

    TensorDict({"x": torch.arange(9), "in": {"y": torch.ones(9, 2)}, "word": list("abcabcabc")}, [9]).memmap("rows")
    rows = TensorDict.load_memmap("rows")
    here = tdmap.map(rows, lambda part: part.select("x") + 1, num_workers=0, chunksize=4)
    there = tdmap.map(rows, lambda part: part, out="mapped", num_workers=0, rows_per_shard=4)
    assert here["x"].tolist() == [*range(1, 10)] and len(tdmap.open("mapped")) == len(there) == 9
    assert tdmap.sort(there, "x", descending=True, out="sorted", num_workers=0)["x"].tolist() == [*range(8, -1, -1)]
    assert tdmap.map_reduce(rows, lambda part: part["x"], tdmap.reducers.Sum(), num_workers=0) == 36
    row = Row(x=torch.zeros(3), word="a", batch_size=[3])
    assert lazy_stack([row, row.to(torch.float64).clone()])[1].x.dtype == torch.float64
    row.memmap("class")
    assert Row.load_memmap("class").word == "a"

for tree in sys.argv[1:]:
    child = os.fork()
    if not child:
        try:
            works(tree)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"fails in {tree}")
"""


@pytest.mark.slow
def test_the_core_works_without_an_edge(tmp_path: Path) -> None:
    trees = [str(tmp_path / f"without-{name}") for name in EDGES]
    for name, tree in zip(EDGES, trees, strict=True):
        deleted, lines = copy_without(name, Path(tree), *PACKAGES)
        assert deleted and (lines or name not in ("nn", "persistent", "consolidated", "archive", "ray"))
    done = subprocess.run([sys.executable, "-c", CORE, *trees], cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("name", EDGES)
def test_what_is_deleted_exists(name: str) -> None:
    edge = EDGES[name]
    paths = [*edge.code.split(), *(test.partition("::")[0] for test in [*edge.tests.split(), *WHOLE_TREE])]
    assert [path for path in paths if not any(ROOT.glob(path))] == []
    assert all(path.startswith(PACKAGES) for path in edge.code.split())
    assert all(test.startswith(OTHERS) for test in edge.tests.split())
    assert EDGES.keys() >= set(edge.takes.split())


def test_the_page_lists_the_same_edges() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (`t.*?) \| ", page[: page.index("## Promises")], re.MULTILINE)
    assert {name: re.findall(r"`(.*?)`", what) for name, what in rows} == {n: e.code.split() for n, e in EDGES.items()}
    assert {name: re.findall(r"\*(.*?)\*", what) for name, what in rows} == {
        n: e.takes.split() for n, e in EDGES.items()
    }


def test_the_core_asks_for_modules_of_edges_alone() -> None:
    code = [path.removesuffix(".py").replace("/", ".") for name in EDGES for path in code_of(name)]
    assert [place for place in PLACES.values() if not place.startswith(tuple(code))] == []
