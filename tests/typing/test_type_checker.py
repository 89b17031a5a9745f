"""Strict type checkers, outside of the checkout, see what a user's program does with both packages.

The programs are copied elsewhere, so that nothing but ``py.typed`` tells where the types are, and no setting of this
project counts.
"""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CASES = [Path(__file__).with_name(name) for name in ("tensorclass_cases.py", "user_program.py")]
EXPECTED = re.compile(r"  # (?P<kind>[ER]): (?P<text>.+)$")
REPORTED = re.compile(
    r"(?P<file>\w+\.py):(?P<line>\d+): (?:"
    r'note: Revealed type is "(?P<revealed>.+)"|error: .*\[(?P<code>[a-z-]+)\])$'
)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_type_checker_says_what_the_cases_expect(tmp_path: Path) -> None:
    for case in CASES:
        shutil.copy(case, tmp_path)
    # What mypy knows of torch, and of the sources that have not changed, takes it half a minute to find out.
    cache = Path(__file__).parents[2] / ".mypy_cache" / "programs"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "--no-error-summary"]
    command += ["--hide-error-context", *(case.name for case in CASES)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    found, odd = set(), []
    for line in result.stdout.splitlines():
        match = REPORTED.search(line)
        if match:
            found.add((match["file"], int(match["line"]), match["revealed"] or match["code"]))
        elif "note:     def " not in line and "Possible overload variants" not in line:
            odd.append(line)
    expected = {
        (case.name, number, match["text"].replace("tests.typing.", ""))
        for case in CASES
        for number, line in enumerate(case.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line))
    }
    assert len(expected) > 30, "the file of cases lost its marks"
    assert not odd, "unexpected output:\n" + "\n".join(odd)
    assert sorted(found - expected) == [] and sorted(expected - found) == []


@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not installed")
def test_pyright_finds_the_types_and_the_mistakes(tmp_path: Path) -> None:
    program = CASES[1]
    shutil.copy(program, tmp_path)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, program.name]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if not result.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {result.stderr[:200]}")
    said = {}
    for one in json.loads(result.stdout)["generalDiagnostics"]:
        said[one["range"]["start"]["line"] + 1] = one["severity"], one["message"]
    for number, line in enumerate(program.read_text().splitlines(), 1):
        match = EXPECTED.search(line)
        assert (number in said) == (match is not None), (number, said.get(number))
        if match is not None and match["kind"] == "R":
            assert said[number] == ("information", f'Type of "{shown(line)}" is "{unqualified(match["text"])}"')
        elif match is not None:
            assert said[number][0] == "error"


def unqualified(text: str) -> str:
    """A type as pyright writes it, with the last parts of names."""
    return re.sub(r"(\w+\.)+", "", text)


def shown(line: str) -> str:
    """The expression whose type a line asks for."""
    return line.strip().removeprefix("reveal_type(").partition(")  #")[0]
