"""JSON Lines are read by workers as one process reads them as a stream."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tdmap
from tdmap import tuning
from tdmap.datasets import read, to_arrow
from tests.products import sampled

pytest.importorskip("pyarrow")


def lines(count: int, *odd: tuple[int, str]) -> bytes:
    """Lines with numbers, text, lists and structs; some are others."""
    rows = [
        json.dumps({"n": n, "text": "é\n" * (n % 7), "tags": ["a"] * (n % 3), "at": {"x": n / 4, "s": str(n)}})
        for n in range(count)
    ]
    for n, line in odd:
        rows[n] = line
    return "\n".join(rows).encode() + b"\n"


FILES: dict[str, list[bytes]] = {
    "lines": [lines(90)],
    "no end": [lines(90).rstrip()],
    "Windows": [lines(90).replace(b"\n", b"\r\n")],
    "a mark in front": [b"\xef\xbb\xbf" + lines(90)],
    "blank lines": [lines(60) + b"\n \n\n" * 60 + lines(60) + b"\n" * 99],
    "several": [lines(40), lines(1), b"", lines(50)],
    "one long line": [lines(90, (40, json.dumps({"n": 1, "text": "x" * 9000, "tags": [], "at": {"x": 0, "s": ""}})))],
    "a fraction later": [lines(90, (80, '{"n": 0.5, "text": "", "tags": [], "at": {"x": 1, "s": ""}}'))],
    "larger later": [lines(90, (80, '{"n": 18446744073709551615, "text": "", "tags": [], "at": {"x": 1, "s": ""}}'))],
    "another column later": [lines(90, (80, '{"n": 1, "text": "", "tags": [], "at": {"x": 1, "s": ""}, "new": 1}'))],
    "another field later": [lines(90, (80, '{"n": 1, "text": "", "tags": [], "at": {"x": 1, "s": "", "y": [1]}}'))],
    "other columns in the second file": [lines(40), b'{"n": 1, "z": "a"}\n' * 40],
    "a null": [lines(90, (80, '{"n": null, "text": null, "tags": null, "at": null}'))],
    "a missing value": [lines(90, (80, '{"n": 1}'))],
    "text for a number": [lines(90, (80, '{"n": "one", "text": "", "tags": [], "at": {"x": 1, "s": ""}}'))],
    "a torn line": [lines(90, (80, '{"n": 1, "te'))],
    "torn lines first": [lines(90, (0, "{"), (1, "}"), (70, "[1, 2]"))],
    "rounded": [lines(90, (80, '{"n": 36893488147419103232, "text": "", "tags": [], "at": {"x": 1, "s": ""}}'))],
    "too deep": [lines(90, (80, "[" * 300 + "]" * 300))],
    "not UTF-8": [lines(90, (80, '{"n": 1, "text": "\\u00e9"}')).replace(b"\\u00e9", b"\xff", 1)],
    "nothing": [b"\n" * 2000],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "mask": {"nulls": "mask"},
    "columns": {"columns": ["text", "n"]},
    "no such column": {"columns": ["m"]},
    "types": {"types": {"n": torch.float64, "at.x": torch.float32}},
    "a wrong type": {"types": {"text": torch.int32}},
    "skip": {"on_error": "skip"},
}
WORKERS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "executor": "thread"},
}


def outcome(*args: Any, **options: Any) -> Any:
    """What a call gives, and what it warns of, or its error."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            data = read(*args, **options)
        except Exception as error:
            return type(error), str(error)
    shown = [str(one.message) for one in told if not issubclass(one.category, DeprecationWarning)]
    return to_arrow(data, nulls=options.get("nulls")), [str(key) for key in data.keys(True, True)], shown


@pytest.mark.parametrize("name, option, workers", sampled(7, FILES, OPTIONS, WORKERS))
def test_workers_read_what_a_stream_reads(name: str, option: str, workers: str, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(len(FILES[name]))]
    for file, content in zip(files, FILES[name], strict=True):
        file.write_bytes(content)
    sources: Any = [str(file) for file in files]
    with tuning.use(text_bytes=400):
        wanted = outcome(sources, **OPTIONS[option])
        found = outcome(sources, tmp_path / "out", **OPTIONS[option], **WORKERS[workers])
    assert str(found) == str(wanted)
    assert isinstance(wanted[1], str) or found[0].equals(wanted[0])
    assert isinstance(wanted[1], str) is not (tmp_path / "out").exists()


def test_workers_parse_the_lines(tmp_path: Path) -> None:
    """Unless there are few; and once more where a later line has other types than the first ones."""

    class Watch(tdmap.events.Callback):
        def __init__(self) -> None:
            self.jobs: list[tuple[str, int]] = []

        def on_job_started(self, event: Any) -> None:
            self.jobs.append((event.name, event.num_workers))

    def jobs_of(name: str, text_bytes: int) -> list[str]:
        (tmp_path / "x.jsonl").write_bytes(FILES[name][0])
        watch = Watch()
        with tuning.use(text_bytes=text_bytes):
            read(tmp_path / "x.jsonl", tmp_path / "out", num_workers=2, callbacks=[watch], overwrite=True)
        return [job for job, workers in watch.jobs if workers == 2 and job in ("Infer", "ReadLines")]

    assert jobs_of("lines", 150) == ["ReadLines"]
    assert jobs_of("a fraction later", 150) == ["ReadLines", "Infer", "ReadLines"]
    assert jobs_of("lines", 4000) == []
