"""What benchmarks record: whether the machine was quiet, what changed since, and the tables of the README."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _tables
from benchmarks._compare import changes, compare
from benchmarks._harness import RESULTS, Benchmark
from benchmarks._quiet import ALLOWED, cores_of_others, own_seconds, quietness

ROOT = Path(__file__).parents[2]


def scripted(seconds: list[float]):
    """A case that reports these seconds, after one for the warm-up."""
    left = [1.0, *seconds]
    return lambda: left.pop(0)


def recorded(floor: list[float], ours: list[float], busy: bool = False, folder: Path | None = None) -> dict:
    bench = Benchmark("b")
    bench.add("floor", scripted(floor), units=10, kind="floor")
    bench.add("ours", scripted(ours), units=10, against="floor")
    bench.run(rounds=len(floor), quiet=True)
    bench.quiet = quietness(0.0, 100.0 if busy else 0.0)
    if folder is not None:
        bench.save(folder, chart=False)
    return bench.to_dict()


def test_the_ratio_of_each_round_is_kept_and_its_range_shown():
    told = recorded([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert told["cases"][1]["ratios"] == [0.5, 1.0, 2.0] and told["cases"][1]["ratio"] == 1.0
    bench = Benchmark("b")
    bench.add("floor", scripted([1.0, 2.0]), units=1)
    bench.add("ours", scripted([2.0, 2.0]), units=1, against="floor")
    bench.run(rounds=2, quiet=True)
    assert "0.5 to 1 " in bench.table()


@pytest.mark.parametrize(
    "new, verdict",
    [
        ([2.0, 2.1, 1.9, 2.0, 2.05], "slower"),
        ([0.5, 0.55, 0.45, 0.5, 0.52], "faster"),
        ([1.0, 1.1, 0.9, 1.05, 1.02], ""),
        ([0.5, 2.0, 1.5, 0.8, 1.2], ""),  # slower in the median, and within the spread
    ],
)
def test_a_change_is_one_beyond_the_spread(new, verdict):
    floor = [1.0, 1.0, 1.0, 1.0, 1.0]
    old = recorded(floor, [1.0, 1.05, 0.95, 1.0, 1.02])
    (change,) = [one for one in changes(old, recorded(floor, new)) if one.name == "ours"]
    assert change.measure == "ratio" and change.verdict == verdict


def test_a_slower_machine_is_no_slower_case():
    old, new = recorded([1.0, 1.1, 0.9], [2.0, 2.2, 1.8]), recorded([3.0, 3.3, 2.7], [6.0, 6.6, 5.4])
    (change,) = [one for one in changes(old, new) if one.name == "ours"]
    assert change.verdict == "" and change.factor == pytest.approx(1.0)


def test_files_without_ratios_of_rounds_are_compared_by_their_seconds():
    old, new = recorded([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]), recorded([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    for case in old["cases"]:
        del case["ratios"]
    (change,) = [one for one in changes(old, new) if one.name == "ours"]
    assert change.verdict == "slower" and change.factor == pytest.approx(2.0)


def test_compare_says_what_changed_and_ends_with_1_if_for_the_worse(tmp_path, capsys):
    recorded([1.0] * 3, [1.0] * 3, folder=tmp_path / "old")
    recorded([1.0] * 3, [2.0] * 3, folder=tmp_path / "new")
    assert compare(tmp_path / "old", tmp_path / "new") == 1
    assert "slower   2.00 ×  ours" in capsys.readouterr().out
    assert compare(tmp_path / "new" / "b.json", tmp_path / "old" / "b.json") == 0
    assert compare(tmp_path / "old", tmp_path / "old") == 0


def test_recorded_results_do_not_differ_from_themselves():
    if not RESULTS.is_dir():
        pytest.skip("an sdist has no results")
    assert compare(RESULTS, RESULTS) == 0


def test_what_cannot_be_compared_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[1]")
    (tmp_path / "empty").mkdir()
    for old in (tmp_path / "other.json", tmp_path / "empty"):
        with pytest.raises(SystemExit, match="recorded"):
            compare(old, old)


def test_a_busy_machine_does_not_record(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(ALLOWED)
    recorded([1.0], [1.0], folder=tmp_path)
    before = (tmp_path / "b.json").read_text()
    recorded([1.0], [9.0], busy=True, folder=tmp_path)
    assert (tmp_path / "b.json").read_text() == before
    assert json.loads((tmp_path / "b.busy.json").read_text())["machine"]["busy"] is True
    assert "was busy with something else" in capsys.readouterr().err
    monkeypatch.setenv(ALLOWED, "1")
    recorded([1.0], [9.0], busy=True, folder=tmp_path)
    assert json.loads((tmp_path / "b.json").read_text())["machine"]["busy"] is True


def test_work_of_this_process_is_not_that_of_others():
    before = own_seconds()
    child = subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert child.returncode == 0 and own_seconds() > before
    assert cores_of_others(0.05) >= 0.0


@pytest.mark.parametrize("page", _tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_recorded_files(page):
    if not RESULTS.is_dir():
        pytest.skip("an sdist has no results")
    _, tables, _ = _tables.section(page.read_text())
    assert tables == _tables.PAGES[page](), "run: python -m benchmarks tables"


def test_tables_are_written_between_the_marks(tmp_path):
    if not RESULTS.is_dir():
        pytest.skip("an sdist has no results")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{_tables.BEGIN}\nold\n{_tables.END}\nbehind\n")
    assert _tables.update(True, readme) == 1 and "old" in readme.read_text()
    assert _tables.update(False, readme) == 0 and _tables.update(True, readme) == 0
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nbehind\n") and "\nold\n" not in text


def test_the_program_names_what_it_does_not_know():
    for words, said in ((["run", "nothing"], "no benchmark 'nothing'"), (["compare", "a", "b"], "does not exist")):
        done = subprocess.run([sys.executable, "-m", "benchmarks", *words], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2 and said in done.stderr
