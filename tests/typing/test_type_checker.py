"""A strict type checker sees the fields, the constructor and the results of tensorclasses."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("tensorclass_cases.py")
ROOT = CASES.parents[2]
EXPECTED = re.compile(r"  # (?P<kind>[ER]): (?P<text>.+)$")
REPORTED = re.compile(
    r"tensorclass_cases\.py:(?P<line>\d+): (?:"
    r'note: Revealed type is "(?P<revealed>.+)"|error: .*\[(?P<code>[a-z-]+)\])$'
)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
@pytest.mark.timeout(300)
def test_type_checker_says_what_the_cases_expect(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "--no-error-summary"]
    command += ["--hide-error-context", "--explicit-package-bases", str(CASES.relative_to(ROOT))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stdout + result.stderr
    found, odd = set(), []
    for line in result.stdout.splitlines():
        match = REPORTED.search(line)
        if match:
            found.add((int(match["line"]), match["revealed"] or match["code"]))
        else:
            odd.append(line)
    expected = {
        (number, match["text"])
        for number, line in enumerate(CASES.read_text().splitlines(), 1)
        if (match := EXPECTED.search(line))
    }
    assert len(expected) > 30, "the file of cases lost its marks"
    assert not odd, "unexpected output:\n" + "\n".join(odd)
    assert sorted(found - expected) == [] and sorted(expected - found) == []
