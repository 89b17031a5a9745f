"""The examples run, and check themselves."""

import os
import socket
from pathlib import Path

import pytest

from tests import interpreters

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("script", "options", "proof"),
    [
        ("dataset_statistics.py", ["--rows", "600"], "checked: numpy gives the same numbers"),
        ("pipeline.py", ["--rows", "400", "--batch", "16"], "checked: numpy and Pillow make the same batches"),
        (
            "picture_folders.py",
            ["--files", "500", "--workers", "2"],
            "checked: every picture has its own name and class",
        ),
        ("train_images.py", ["--files", "300", "--epochs", "2"], "checked: the run that was killed in mid-epoch"),
        ("language_data.py", ["--megabytes", "4"], "checked: plain Python gives the same rows, tokens and statistics"),
        (
            "reward_pairs.py",
            ["--pairs", "400", "--workers", "0"],
            "checked: the preferred answer gets the higher score",
        ),
        ("tensorclass_images.py", ["--images", "50"], "MyData("),
        ("word_count.py", ["--megabytes", "0.3"], "checked: a plain Counter gives the same numbers"),
    ],
)
def test_example_runs_and_checks_itself(script: str, options: list[str], proof: str) -> None:
    if script in ("dataset_statistics.py", "picture_folders.py", "pipeline.py", "train_images.py"):
        pytest.importorskip("skimage")
    if script == "language_data.py":
        pytest.importorskip("pyarrow")
    if script == "reward_pairs.py":
        pytest.importorskip("datasets")
        pytest.importorskip("transformers")
    done = interpreters.run([ROOT / "examples" / script, *options])
    assert done.returncode == 0, done.stderr
    assert proof in done.stdout


@pytest.mark.slow
def test_many_ranks_train_and_go_on_as_another_number_of_ranks(tmp_path: Path) -> None:
    for ranks, options, proof in ((2, ["--rows", "2400"], "640 a rank"), (3, ["--go-on"], "352 a rank")):
        with socket.create_server(("localhost", 0)) as server:
            port = server.getsockname()[1]
        torchrun = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
        script = [ROOT / "examples" / "many_ranks.py", "--folder", tmp_path, *options]
        programs = [
            interpreters.Program(script, env={**os.environ, **torchrun, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
        said = [program.communicate(360) for program in programs]
        assert [program.wait() for program in programs] == [0] * ranks, said
        assert "checked:" in said[0][0] and proof in said[0][0]
