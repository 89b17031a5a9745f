"""Functions and classes of notebook cells, in a real kernel: in workers of every start method, and with `resume=`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
Run = Callable[[str], str]


def client_of(notebook: Any, folder: Path) -> Any:
    """What executes a notebook, in a kernel whose working directory is `folder`."""
    return nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})


@pytest.fixture(scope="module", autouse=True)
def _kernels_find_the_packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))  # no settings of whoever runs this
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Executes a cell in the kernel of this module; what it printed."""
    notebook = nbformat.v4.new_notebook()
    client = client_of(notebook, tmp_path_factory.mktemp("kernel"))

    def run(source: str) -> str:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        done = client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1)
        return "".join(output.get("text", "") for output in done.outputs if output.get("name") == "stdout")

    with client.setup_kernel():
        run(
            "import torch, tdmap\n"
            "from tensordict_lite import TensorDict\n"
            "data = TensorDict({'x': torch.arange(40.0)}, [40])\n"
            "factor = 3"
        )
        yield run


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_functions_and_classes_of_cells_work_with_every_start_method(run: Run, method: str) -> None:
    printed = run(
        "class Times:\n"
        "    def __init__(self, by):\n"
        "        self.by = by\n"
        "    def __call__(self, chunk):\n"
        "        return helper(chunk, self.by)\n"
        "def helper(chunk, by):\n"
        "    return {'y': chunk['x'] * by * factor}\n"
        f"done = tdmap.map(data, Times(2), num_workers=1, mp_start_method={method!r})\n"
        f"also = tdmap.map(data, lambda chunk: helper(chunk, 2), num_workers=1, mp_start_method={method!r})\n"
        "print(done['y'][7].item(), torch.equal(done['y'], also['y']))"
    )
    assert printed.split() == ["42.0", "True"]


STOPPED = """
ran = []

def work(chunk):
    if os.path.exists("stop") and (chunk["x"] == 25).any():
        raise RuntimeError("stopped")
    ran.append(len(chunk))
    return {"y": chunk["x"] + 1}

try:
    result = tdmap.map(data, work, out="again", resume=True, chunksize=10, num_workers=0)
except RuntimeError:
    print("stopped")
print(sum(ran))
"""


def test_a_cell_that_is_run_again_goes_on(run: Run) -> None:
    run("import os\nopen('stop', 'w').close()")
    assert run(STOPPED).split() == ["stopped", "20"]
    run("os.remove('stop')")
    assert run(STOPPED).split() == ["20"], "the two chunks that were left"


def test_a_cell_that_was_changed_is_another_function(run: Run) -> None:
    cell = "done = tdmap.map(data, {0}, out='changed', resume=True, num_workers=0)\nprint(done['y'][3].item())"
    assert run("def shift(chunk):\n    return {'y': chunk['x'] + 1}\n" + cell.format("shift")) == "4.0\n"
    printed = run(
        "def shift(chunk):\n    return {'y': chunk['x'] + 2}\n"
        "try:\n    tdmap.map(data, shift, out='changed', resume=True, num_workers=0)\n"
        "except tdmap.errors.ResumeMismatch as error:\n    print('shift' in str(error))"
    )
    assert printed == "True\n"


def test_a_class_of_a_cell_that_is_run_again_goes_on(run: Run) -> None:
    cell = (
        "class Add:\n"
        "    def __init__(self, by):\n        self.by = by\n"
        "    def __call__(self, chunk):\n        return {'y': chunk['x'] + self.by}\n"
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    tdmap.map(data, Add(1), out='classes', resume=True, num_workers=2)\n"
        "print(*[type(one.message).__name__ for one in told])"
    )
    assert run(cell) == "\n"
    assert run(cell) == "AlreadyComplete\n"


def test_a_tensorclass_of_a_cell_is_mapped(run: Run) -> None:
    printed = run(
        "from tensordict_lite import tensorclass\n"
        "@tensorclass\nclass Point:\n    x: torch.Tensor\n"
        "points = Point(torch.arange(6.0), batch_size=[6])\n"
        "move = lambda p: Point(p.x + 1, batch_size=p.batch_size)\n"
        "moved = tdmap.map(points, move, num_workers=1, mp_start_method='spawn')\n"
        "print(type(moved) is Point, moved.x.tolist())"
    )
    assert printed == "True [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]\n"


def test_the_notebook_of_the_examples_runs_and_shows_what_it_made(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    done = client_of(notebook, tmp_path).execute()
    outputs = [output.get("data", {}) for cell in done.cells for output in cell.get("outputs", [])]
    shown = [data["text/html"] for data in outputs if "text/html" in data]
    assert "data:image/png" in shown[0] and "ready" in shown[1] and "<svg" in shown[2] and "bound by" in shown[3]
