"""Non-tensor entries of mapped collections: in-place writes reach the file, and other processes where they share."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensordict as reference
import torch

from tensordict_lite import DatasetError, NonTensorData, NonTensorStack, TensorDict
from tests import interpreters
from tests.descriptors import descriptors


def one(value: Any = "old") -> TensorDict:
    return TensorDict({"a": torch.zeros(3), "note": NonTensorData(value, batch_size=[3])}, [3])


def stack() -> TensorDict:
    return TensorDict({"a": torch.zeros(3), "note": NonTensorStack("x", "y", "z")}, [3])


def row(note: str) -> TensorDict:
    return TensorDict({"a": torch.ones(()), "note": note})


WRITES: dict[str, tuple[Callable[[], TensorDict], Callable[[TensorDict], Any], list[str]]] = {
    "set_": (one, lambda td: td.set_("note", "new"), ["new"] * 3),
    "update_": (one, lambda td: td.update_({"note": "new"}), ["new"] * 3),
    "set inplace": (one, lambda td: td.set("note", "new", inplace=True), ["new"] * 3),
    "update inplace": (one, lambda td: td.update({"note": "new"}, inplace=True), ["new"] * 3),
    "entry": (one, lambda td: td.get("note").update_(NonTensorData("new")), ["new"] * 3),
    "row of one": (one, lambda td: td.update_at_(row("new"), 1), ["old", "new", "old"]),
    "stack": (stack, lambda td: td.update_({"note": NonTensorStack("p", "q", "r")}), ["p", "q", "r"]),
    "stack to one": (stack, lambda td: td.set_("note", "new"), ["new"] * 3),
    "row": (stack, lambda td: td.set_at_("note", "new", 1), ["x", "new", "z"]),
    "rows": (stack, lambda td: td.__setitem__(slice(2), row("new").expand(2)), ["new", "new", "z"]),
}


@pytest.mark.parametrize("save", ["memmap", "memmap_"])
@pytest.mark.parametrize("name", WRITES)
def test_in_place_write_reaches_the_file(tmp_path: Path, name: str, save: str) -> None:
    make, write, expected = WRITES[name]
    data = getattr(make(), save)(tmp_path)
    write(data)
    assert data.get("note").tolist() == expected
    assert data.is_memmap() and data.is_locked
    assert TensorDict.load_memmap(tmp_path).get("note").tolist() == expected
    assert reference.TensorDict.load_memmap(tmp_path).get("note").tolist() == expected
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]


def test_entry_at_two_keys_has_two_files(tmp_path: Path) -> None:
    note = NonTensorData("old")
    data = TensorDict({"a": note, "b": {"c": note}}).memmap(tmp_path)
    data.set_("a", "new a")
    data.set_(("b", "c"), "new c")
    loaded = TensorDict.load_memmap(tmp_path)
    assert (loaded["a"], loaded["b", "c"]) == ("new a", "new c")


def test_what_json_cannot_hold_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    data = one().memmap(tmp_path)
    with pytest.raises(RuntimeError, match=r"JSON cannot represent the new object.*note.*allow_pickle=True"):
        data.set_("note", {1, 2})
    assert data["note"] == TensorDict.load_memmap(tmp_path)["note"] == "old"


def test_pickled_entry_takes_another_pickle_and_then_json(tmp_path: Path) -> None:
    data = one({1, 2}).memmap(tmp_path, allow_pickle=True)
    data.set_("note", {3})
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True)["note"] == {3}
    with pytest.raises(DatasetError, match="allow_pickle"):
        TensorDict.load_memmap(tmp_path)
    data.set_("note", "text")
    assert TensorDict.load_memmap(tmp_path)["note"] == "text"
    assert os.listdir(tmp_path / "note") == ["meta.json"]


def test_unlocked_collection_and_removed_folder_keep_the_change_to_themselves(tmp_path: Path) -> None:
    data = one().memmap(tmp_path / "d").unlock_()
    data.set_("note", "mine")
    assert TensorDict.load_memmap(tmp_path / "d")["note"] == "old"
    other = one().memmap(tmp_path / "gone")
    subprocess.run(["rm", "-r", str(tmp_path / "gone")], check=True)
    assert other.set_("note", "new")["note"] == "new"
    assert os.listdir(tmp_path) == ["d"]


# -- shared between processes ------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("name", [name for name in WRITES if name != "row of one"])
def test_write_in_another_process_is_seen_when_shared(tmp_path: Path, name: str, folder: bool) -> None:
    make, write, expected = WRITES[name]
    data = make().memmap_(tmp_path if folder else None, share_non_tensor=True)
    apart = make().memmap_()
    in_child(lambda: (write(data), write(apart)))
    assert data.get("note").tolist() == expected
    assert apart.get("note").tolist() == make().get("note").tolist()
    if folder:
        assert TensorDict.load_memmap(tmp_path).get("note").tolist() == expected


def test_objects_of_any_size_and_kind_are_shared() -> None:
    data = one().memmap_(share_non_tensor=True)
    for value in ("x" * 1_000_000, {"a": {1, 2}}, None, "short"):
        in_child(lambda value=value: data.get("note").update_(NonTensorData(value)))
        assert data["note"] == value
    with pytest.raises(TypeError, match="cannot be shared between processes"):
        data.get("note").update_(NonTensorData(lambda: None))
    assert data["note"] == "short"


def test_shared_objects_travel_by_pickle_to_a_new_process(tmp_path: Path) -> None:
    data = one().memmap_(share_non_tensor=True)
    script = (
        "import pickle, sys\n"
        "data = pickle.loads(sys.stdin.buffer.read())\n"
        "assert data['note'] == 'old' and data[:2]['note'] == 'old'\n"
        "data.set_('note', 'from afar')\n"
    )
    with open(tmp_path / "sent", "w+b") as sent:
        sent.write(pickle.dumps(data))
        sent.seek(0)
        interpreters.run(["-c", script], stdin=sent, check=True)
    assert data["note"] == "from afar"


def test_slices_see_the_shared_object_and_copies_do_not() -> None:
    data = one().memmap_(share_non_tensor=True)
    part, copy = data[:2], data.clone()
    data.set_("note", "new")
    assert part.get("note").tolist() == ["new", "new"]
    assert copy["note"] == "old" and type(copy.get("note")) is NonTensorData
    data.unlock_()
    data.set_("note", "alone")
    assert part["note"] == "new"


def test_row_of_an_object_shared_by_all_rows_is_refused() -> None:
    data = one().memmap_(share_non_tensor=True)
    with pytest.raises(RuntimeError, match="NonTensorStack"):
        data.set_at_("note", "new", 1)
    assert data["note"] == "old"


def test_writers_at_one_time_leave_one_whole_object() -> None:
    data = one(("", 0)).memmap_(share_non_tensor=True)

    def write(letter: str) -> None:
        for length in range(300):
            data.set_("note", NonTensorData((letter * (length * 37 % 5000), length), batch_size=[3]))
            text, _ = data["note"]
            assert len(set(text)) <= 1

    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(letter,)) for letter in "abcd"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        text, number = data["note"]
        assert len(text) == number * 37 % 5000 and len(set(text)) <= 1
    assert [writer.exitcode for writer in writers] == [0] * 4


def test_killed_writer_blocks_nobody() -> None:
    data = one(("", 0)).memmap_(share_non_tensor=True)

    def write(length: int = 0) -> None:
        while True:
            length = (length + 37) % 9000
            data.set_("note", NonTensorData(("w" * length, length), batch_size=[3]))

    for _ in range(20):
        writer = multiprocessing.get_context("fork").Process(target=write)
        writer.start()
        before = data["note"]
        while data["note"] == before:
            pass
        os.kill(writer.pid or 0, signal.SIGKILL)
        writer.join()
        text, length = data["note"]
        assert len(text) == length
        data.set_("note", NonTensorData(("", 0), batch_size=[3]))


def test_arena_is_released_with_its_last_user() -> None:
    before = descriptors()
    data = one().memmap_(share_non_tensor=True)
    own = descriptors() - before
    assert own
    blob = pickle.dumps(data)
    assert pickle.loads(blob)["note"] == "old"
    del data
    gc.collect()
    assert not own & descriptors()
    with pytest.raises(DatasetError, match="released|ended"):
        pickle.loads(blob)


def test_sharing_does_not_change_the_files(tmp_path: Path) -> None:
    for name, share in (("a", True), ("b", False)):
        stack().memmap(tmp_path / name, share_non_tensor=share)
    for file in ("meta.json", "note/meta.json"):
        assert json.loads((tmp_path / "a" / file).read_text()) == json.loads((tmp_path / "b" / file).read_text())
