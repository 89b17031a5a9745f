"""Mistakes in a call: options by other names, values that make no sense, and tracebacks that show the user's code."""

import bdb
import inspect
import multiprocessing
import textwrap
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap import reducers
from tdmap.events import Callback
from tensordict_lite import TensorDict, tensorclass
from tests import interpreters
from tests.cells.kinds import plain
from tests.cells.operations import OPERATIONS, registered, resumable

ROOT = Path(__file__).resolve().parents[2]
JAGGED = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)


@tensorclass
class Point:
    x: torch.Tensor


@pytest.fixture
def table():
    return TensorDict(
        {"x": torch.arange(20), "label": torch.arange(20) % 3, "path": [f"p{i}" for i in range(20)]}, [20]
    )


@pytest.mark.parametrize(
    "call, option, meant",
    [
        (lambda d: d.map_iter(len, batch_size=2), "batch_size", "chunksize"),
        (lambda d: tdmap.map_iter(d, len, shufle=True), "shufle", "shuffle"),
        (lambda d: tdmap.sort(d, "label", reverse=True), "reverse", "descending"),
        (lambda d: tdmap.filter(d, len, chunk_size=3), "chunk_size", "chunksize"),
        (lambda d: tdmap.flat_map(d, len, onerror="skip"), "onerror", "on_error"),
        (lambda d: tdmap.join(d, d, "x", sufix="_r"), "sufix", "suffix"),
        (lambda d: tdmap.map_reduce(d, None, reducers.Count(), time_out=2), "time_out", "timeout"),
        (lambda d: tdmap.group_by(d, "label").reduce(reducers.Count(), output="x"), "output", "out"),
        (lambda d: tdmap.group_by(d, "label").map_groups(len, retry=1), "retry", "retries"),
        (lambda d: d.pipeline().write("x", resum=True), "resum", "resume"),
        (lambda d: d.pipeline().collect(chunk=2), "chunk", "chunksize"),
        (lambda d: Point(d["x"], batch_size=d.batch_size).map(len, chunk_size=2), "chunk_size", "chunksize"),
        (lambda d: tdmap.options(workers=2).__enter__(), "workers", "num_workers"),
    ],
)
def test_an_option_by_another_name_is_refused_with_the_right_one(call, option, meant, table):
    with pytest.raises(TypeError, match=rf"has no option '{option}'\. Did you mean '{meant}'\? It takes .*{meant}"):
        call(table)


@pytest.mark.parametrize("option", ["workers", "n_jobs", "num_proc", "num_worker"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_names_the_option_that_is_meant(name, option):
    with pytest.raises(TypeError, match=rf"has no option '{option}'\. Did you mean 'num_workers'\? It takes "):
        OPERATIONS[name].read(OPERATIONS[name].call(plain(), **{option: 2}))


@pytest.mark.parametrize("name", resumable())
def test_every_operation_resumes_in_a_folder_alone(name):
    with pytest.raises(ValueError, match="resume=True keeps its log .*: pass the path of a folder"):
        OPERATIONS[name].call(plain(), resume=True)
    with pytest.raises(ValueError, match="resume must be True.*: got 'redone'"):
        OPERATIONS[name].call(plain(), resume="redone")


@pytest.mark.parametrize("target", [{}, {"out": "the data"}, {"out": "a folder", "shard": (0, 2)}])
def test_a_folder_for_intermediate_files_needs_results_that_wait_in_files(target, table, tmp_path):
    places = {"the data": table, "a folder": tmp_path / "out"}
    options = {name: places[value] if name == "out" else value for name, value in target.items()}
    with pytest.raises(ValueError, match="spill_dir= is for ragged results"):
        tdmap.map(table, len, spill_dir=tmp_path, **options)


def test_an_option_of_other_operations_has_no_meaning_here(table):
    with pytest.raises(TypeError, match=r"no option 'resume'\. Other operations take it\. It takes "):
        list(tdmap.map_iter(table, len, resume=True))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda d: d.map(len, num_workers=-1), r"num_workers must be 0 \(run in the caller\).*or None.*got -1"),
        (lambda d: d.map(len, num_workers=1.5), "num_workers must be .*got 1.5"),
        (lambda d: d.map(len, worker_threads=0), "worker_threads must be .*got 0"),
        (lambda d: d.map(len, max_tasks_per_child=0), "max_tasks_per_child must be .*got 0"),
        (lambda d: d.map(len, max_memory=0), "max_memory must be .*got 0"),
        (lambda d: d.map(len, mp_start_method="teleport"), "teleport"),
        (lambda d: d.map(len, executor="gpu"), "executor.*gpu"),
        (lambda d: d.map(len, retries=-1), "retries must be .*got -1"),
        (lambda d: d.map(len, timeout=0), "timeout must be .*got 0"),
        (lambda d: d.map(len, seed=1, generator=torch.Generator()), "seed.*not both"),
        (lambda d: d.map(len, chunksize=2, num_chunks=2), "not both: got chunksize=2 and num_chunks=2"),
        (lambda d: d.map_iter(len, chunksize=2, num_chunks=2), "not both: got chunksize=2 and num_chunks=2"),
        (lambda d: d.map(len, seed="a"), "seed must be an integer or None: got 'a'"),
        (lambda d: d.map("normalise"), "function"),
        (lambda d: d.map(len, out=[1]), "out"),
        (lambda d: d.map(len, 1), r"dim=1.*\(20,\)"),
        (lambda d: d.map(len, -2), r"dim=-2.*\(20,\)"),
        (lambda d: TensorDict({"x": torch.zeros(3)}, []).map(len), r"no rows. Pass batch_size=\[rows\]"),
        (lambda d: tdmap.map(JAGGED, len), "the data is a nested tensor"),
        (lambda d: TensorDict({"x": JAGGED}, [2]).map(len), "the entry 'x' is a nested tensor.*Ragged.from_nested"),
        (lambda d: d.map(len, callbacks=Callback()), "callbacks must be a list of .*Callback objects: got <"),
        (lambda d: d.map(len, callbacks=[Callback]), "callbacks must be .*Callback'>, a class: pass an instance"),
        (lambda d: d.map(len, callbacks=[len]), "callbacks must be .*got <built-in function len>"),
        (
            lambda d: tdmap.reduce(d, {"n": reducers.Count()}, resume=True),
            "resume= of reduce is the path.*got True",
        ),
        (lambda d: d.map(len, pbar="text"), "pbar must be True or False: got 'text'"),
        (lambda d: tdmap.reduce(d, lambda c: c), "does not take two arguments.*map_reduce"),
        (lambda d: tdmap.group_by(d, "lable"), "Entries: 'label', 'path', 'x'. Did you mean 'label'"),
        (lambda d: tdmap.filter(d, "x > 3"), r"got 'x > 3'\. A comparison .* is written tdmap\.col\('x'\) > 3"),
        (lambda d: tdmap.map(np.zeros(3), len), "a numpy array: use torch.from_numpy"),
        (lambda d: tdmap.map(torch.nn.ReLU(), d), "the function ReLU: pass the data first, and the function second"),
        (lambda d: tdmap.map({"x": 1}, len), r"a dict: use TensorDict\(mapping"),
        (lambda d: tdmap.map("folder", len), r"the path 'folder': use TensorDict.load_memmap"),
        (lambda d: tdmap.map([1, 2], len), r"a list: use torch.tensor\(values\)"),
        (lambda d: tdmap.map(torch.eye(3).to_sparse(), len), "the data is sparse.*to_dense"),
        (
            lambda d: d.pipeline().map(lambda c: {"a": 1}).collect(),
            "the function returned a dict .'a'., whose columns differ in length",
        ),
        (lambda d: d.pipeline().map(lambda c: 3).collect(), "must give rows.*the function returned a int. Return"),
        (lambda d: d.pipeline().map(lambda c: None).collect(), "the function returned None. Return"),
        (
            lambda d: d.pipeline().filter(lambda c: torch.tensor(True)).collect(),
            r"bools of shape \[\d+\].*of shape \[\]. Return a bool for each row",
        ),
        (lambda d: tdmap.map(d, lambda c: c["x"].float().mean()), r"result of shape \(\).*use tdmap.map_reduce"),
    ],
)
def test_a_value_that_makes_no_sense_says_what_to_do(call, message, table):
    with pytest.raises((TypeError, ValueError, LookupError), match=message):
        call(table)


def test_chunks_that_do_not_go_together_are_explained():
    data = TensorDict({"x": torch.arange(131)}, [131])
    with pytest.raises(RuntimeError) as caught:
        tdmap.reduce(data, lambda a, b: a + b, num_workers=0)
    assert any("tdmap.map_reduce" in note for note in caught.value.__notes__)


# -- tracebacks --------------------------------------------------------------------------------------------------------


def helper(chunk):
    return 1 // 0


def boom(chunk):
    return helper(chunk)


CALLS = {
    "map": lambda d, **options: tdmap.map(d, boom, chunksize=5, **options),
    "method": lambda d, **options: d.map(boom, chunksize=5, **options),
    "map_iter": lambda d, **options: list(tdmap.map_iter(d, boom, chunksize=5, **options)),
    "filter": lambda d, **options: tdmap.filter(d, boom, **options),
    "flat_map": lambda d, **options: tdmap.flat_map(d, boom, **options),
    "map_groups": lambda d, **options: tdmap.group_by(d, "label").map_groups(boom, **options),
    "map_reduce": lambda d, **options: tdmap.map_reduce(d, boom, reducers.Sum(), **options),
    "iter": lambda d, **options: list(d.pipeline().map(boom).iter(**options)),
    "collect": lambda d, **options: d.pipeline().map(boom).collect(**options),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "executor": "thread"}])
def test_a_traceback_shows_the_users_frames_alone(name, options, table):
    require_users_frames_alone(lambda: CALLS[name](table, **options))


def test_a_traceback_from_a_pool_of_another_library_shows_the_users_frames_alone(table):
    with multiprocessing.get_context("fork").Pool(1) as pool:
        require_users_frames_alone(lambda: tdmap.map(table, boom, pool=pool))


def require_users_frames_alone(call):
    with pytest.raises(ZeroDivisionError) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value))
    assert "in boom" in shown and "in helper" in shown and "return 1 // 0" in shown
    engine = [line for line in shown.splitlines() if line.startswith(f'  File "{ROOT / "tdmap"}')]
    assert not engine and "api/engine.py" not in shown and "contextlib.py" not in shown


class Stop(Callback):
    def on_lease_done(self, event):
        raise KeyboardInterrupt


def interrupted(chunk):
    raise KeyboardInterrupt


def test_ctrl_c_shows_the_users_frames_alone(table):
    calls = [
        lambda: tdmap.map(table, interrupted, num_workers=0),
        lambda: tdmap.flat_map(table, interrupted, num_workers=0),
        lambda: list(tdmap.map_iter(table, interrupted, num_workers=0)),
        lambda: list(table.pipeline().map(interrupted).iter(num_workers=0)),
        lambda: tdmap.map(table, lambda rows: rows, num_workers=2, callbacks=[Stop()]),
    ]
    for call in calls:
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
        assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


def quits(chunk):
    raise bdb.BdbQuit


def test_a_debugger_in_a_worker_is_told_about_terminals(table):
    for workers in (0, 2):
        with pytest.raises(bdb.BdbQuit) as caught:
            tdmap.map(table, quits, num_workers=workers)
        assert ("with num_workers=0" in "".join(caught.value.__notes__)) is bool(workers)


def test_a_refusal_of_the_engine_shows_the_call_alone(table, tmp_path):
    tdmap.map(table, lambda rows: {"y": rows["label"] + 1}, out=tmp_path / "out", num_workers=0, resume=True)
    with pytest.raises(tdmap.errors.ResumeMismatch) as caught:
        tdmap.map(table, lambda rows: {"y": rows["label"] + 2}, out=tmp_path / "out", num_workers=0, resume=True)
    assert [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)] == [__file__]


def test_all_frames_are_shown_on_request(table, monkeypatch):
    monkeypatch.setenv("TDMAP_FULL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError) as caught:
        tdmap.map(table, boom, num_workers=0)
    assert "chunkloop.py" in "".join(traceback.format_exception(caught.value))


def test_an_error_of_the_engine_itself_keeps_its_frames(table, monkeypatch):
    monkeypatch.setattr("tdmap.execution.Driver", None)
    with pytest.raises(TypeError, match="not callable") as caught:
        tdmap.map(table, boom, num_workers=0)
    assert "execution.py" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_lines_of_a_notebook_cell_are_shown(method, tmp_path):
    """Code whose text is only known to the caller, as a notebook's is: the worker cannot look it up."""
    program = textwrap.dedent(
        """
        import linecache, sys, traceback, torch, tdmap
        text = "def cell(chunk):\\n    return chunk / missing_name\\n"
        linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(True), "<cell 1>")
        if __name__ == "__main__":
            tdmap.map(torch.zeros(4), lambda x: x, num_workers=1, mp_start_method=sys.argv[1])
            exec(compile(text, "<cell 1>", "exec"))
            try:
                tdmap.map(torch.zeros(4), cell, num_workers=1, mp_start_method=sys.argv[1])
            except NameError as error:
                traceback.print_exception(error, file=sys.stdout)
        """
    )
    script = tmp_path / "script.py"
    script.write_text(program)
    done = interpreters.run([str(script), method])
    assert "return chunk / missing_name" in done.stdout, done.stdout + done.stderr


MAKES_ROWS = [name for name in registered() if name in (*dir(tdmap), "tokenise", "pack") or name.startswith("GroupBy.")]


@pytest.mark.parametrize("name", [name for name in MAKES_ROWS if name not in ("group_by", "merge_shards")])
def test_every_signature_follows_one_rule(name):
    """`verb(data, what..., *, out=None, **options)`."""
    parameters = list(inspect.signature(registered()[name]).parameters.values())
    assert parameters[0].name == ("self" if "." in name else "a" if name == "join" else "data")
    named = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert parameters[-1].name == "options" and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    assert all(one.default is not one.empty for one in named)
    if any(one.name == "out" for one in parameters):
        assert named[0].name == "out" and named[0].default is None


def test_an_argument_too_many_by_position_is_told(table, tmp_path):
    with pytest.raises(TypeError, match=r"sort\(\) takes data, key by position, and got 3 .* keyword, such as out=\."):
        tdmap.sort(table, "x", tmp_path)
    with pytest.raises(TypeError, match=r"map_groups\(\) takes fn by position, and got 2 arguments by position"):
        tdmap.group_by(table, "x").map_groups(len, tmp_path)
