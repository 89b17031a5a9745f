"""A stack of objects is a list until its members are read; no operation tells the two apart."""

import copy
import gc
import pickle
import sys
import threading
import weakref

import pytest
import torch

from tensordict_lite import NonTensorData, NonTensorStack, Ragged, TensorDict, lazy_stack

WORDS = ["a", "bb", "", "dd", "é"]


def fresh() -> NonTensorStack:
    """One whose members were never read."""
    return TensorDict({"w": list(WORDS)}, [5]).get("w")


def with_members() -> NonTensorStack:
    return NonTensorStack(*[NonTensorData(word) for word in WORDS])


def with_some() -> NonTensorStack:
    stack = fresh()
    stack[1], stack[-1]
    return stack


def a_slice() -> NonTensorStack:
    return TensorDict({"w": ["x", *WORDS, "y"]}, [7])[1:6].get("w")


def chosen() -> NonTensorStack:
    return TensorDict({"w": ["x", *reversed(WORDS)]}, [6])[torch.tensor([5, 4, 3, -4, 1])].get("w")


def text(words: list[str] = WORDS) -> NonTensorStack:
    return Ragged.from_list(words)


def some_text() -> NonTensorStack:
    stack = text()
    stack[1], stack[-1]
    return stack


def slice_of_text() -> NonTensorStack:
    return text(["x", *WORDS, "y"])[1:6]


def chosen_text() -> NonTensorStack:
    stack = text(["x", *reversed(WORDS)])
    stack[2]
    return stack[torch.tensor([5, 4, 3, -4, 1])]


KINDS = {"fresh": fresh, "some members": with_some, "slice": a_slice, "chosen": chosen}
KINDS |= {"text": text, "some text": some_text, "slice of text": slice_of_text, "chosen text": chosen_text}

OPERATIONS = {
    "tolist": lambda s: s.tolist(),
    "repr": repr,
    "len": len,
    "row": lambda s: s[2].data,
    "last row": lambda s: s[-1].data,
    "slice": lambda s: s[1:4],
    "step": lambda s: s[::2],
    "back": lambda s: s[torch.tensor([4, 3, 2, 1, 0])],
    "nothing": lambda s: s[3:3],
    "mask": lambda s: s[torch.tensor([True, False, True, False, True])],
    "no row of a mask": lambda s: s[torch.zeros(5, dtype=torch.bool)],
    "negative rows": lambda s: s[torch.tensor([-1, -5])],
    "list": lambda s: s[[0, 3]],
    "range": lambda s: s[range(1, 3)],
    "ellipsis": lambda s: s[...],
    "new axis": lambda s: s[None],
    "two tensors of rows": lambda s: s[torch.tensor([[0, 1], [2, 3]])],
    "slice of slice": lambda s: s[1:][torch.tensor([2, 0])][::1][1:],
    "true": lambda s: s[True],
    "iterate": lambda s: [row.data for row in s],
    "unbind": lambda s: [row.data for row in s.unbind(0)],
    "split": lambda s: list(s.split(2)),
    "chunk": lambda s: list(s.chunk(3)),
    "clone": lambda s: s.clone(),
    "copy": lambda s: s.clone(recurse=False),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "pickle of a slice": lambda s: pickle.loads(pickle.dumps(s[2:])),
    "locked pickle": lambda s: pickle.loads(pickle.dumps(s.lock_())),
    "cat": lambda s: torch.cat([s, s[:2]]),
    "stack": lambda s: torch.stack([s, s], 1),
    "reshape": lambda s: s[:4].reshape(2, 2),
    "unsqueeze": lambda s: s.unsqueeze(0),
    "expand": lambda s: s.expand(3, 5),
    "flip": lambda s: s.flip(0),
    "roll": lambda s: s.roll(2, 0),
    "gather": lambda s: s.gather(0, torch.tensor([3, 0])),
    "pad": lambda s: s.pad([1, 2]),
    "equal": lambda s: (s == s.clone()).tolist(),
    "unequal": lambda s: (s != s[[1, 0, 2, 4, 3]]).tolist(),
    "keys": lambda s: list(s.keys()),
    "no key": lambda s: "a" in s,
    "to": lambda s: s.to("cpu"),
    "names": lambda s: s.refine_names("rows"),
    "locked": lambda s: (s.is_locked, s.lock_().is_locked, s[1].is_locked, s[1:].is_locked, s.unlock_()[1].is_locked),
    "is empty": lambda s: s.is_empty(),
    "append": lambda s: s.append(NonTensorData("more")) or s,
    "insert": lambda s: s.insert(1, NonTensorData("more")) or s,
    "set rows": lambda s: s.__setitem__(slice(1, 3), NonTensorStack("x", "y")) or s,
    "set a row": lambda s: s.__setitem__(2, NonTensorData("x")) or s,
    "update_": lambda s: s.update_(NonTensorStack(*"vwxyz")),
    "masked_select": lambda s: TensorDict({"w": s}, [5]).masked_select(torch.tensor([True, True, False, False, True])),
    "where": lambda s: TensorDict({"w": s}, [5]).where(
        torch.ones(5, dtype=torch.bool), TensorDict({"w": s.clone()}, [5])
    ),
    "members": lambda s: [type(member) for member in s.tensordicts],
    "lazy": lambda s: lazy_stack([TensorDict({"w": row}) for row in s]).get("w"),
}


def outcome(operation, make) -> object:
    def plain(value):
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        if hasattr(value, "batch_size"):
            told = (
                value.tolist() if isinstance(value, NonTensorStack) else repr(value).replace("Ragged", "NonTensorStack")
            )
            kind = type(value) if type(value) is not Ragged else NonTensorStack
            return kind.__name__, told, value.batch_size, value.device, value.names, value.is_locked
        return value

    try:
        return plain(operation(make()))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_cannot_tell_a_column_from_its_members(name):
    wanted = outcome(OPERATIONS[name], with_members)
    kinds = [kind for kind in KINDS if name != "repr" or "text" not in kind]  # that of a ragged column is short
    assert {kind: outcome(OPERATIONS[name], KINDS[kind]) for kind in kinds} == dict.fromkeys(kinds, wanted)


def test_rows_share_their_members_with_the_whole():
    data = TensorDict({"w": list(WORDS)}, [5])
    rows = data[1:4]
    rows[1].get("w").data = "written through rows"
    data[3].get("w").data = "written through the whole"
    assert data["w"] == ["a", "bb", "written through rows", "written through the whole", "é"]
    assert rows["w"] == ["bb", "written through rows", "written through the whole"]
    assert rows.get("w").tensordicts[0] is data.get("w").tensordicts[1]


def test_what_was_written_travels():
    stack = fresh()
    stack[1].data = "written"
    for other in (pickle.loads(pickle.dumps(stack)), copy.deepcopy(stack), stack.clone(), stack[1:2]):
        assert "written" in other.tolist()


def test_a_lock_holds_for_members_that_are_made_later():
    data = TensorDict({"w": list(WORDS)}, [5])
    early = data[0].get("w")
    data.lock_()
    late, rows = data.get("w")[1], data.get("w").tensordicts
    for member in (early, late, *rows):
        with pytest.raises(RuntimeError, match="locked"):
            member.data = "x"
    with pytest.raises(RuntimeError, match="locked graph"):
        late.unlock_()
    data.unlock_()
    late.data = early.data = "x"
    assert data["w"] == ["x", "x", "", "dd", "é"]


def test_a_list_is_not_shared_with_its_giver():
    words = list(WORDS)
    data = TensorDict({"w": words}, [5])
    words[0] = "changed"
    assert data["w"] == WORDS


def test_the_lock_of_one_member_travels_with_it():
    stack = fresh()
    stack[1].lock_()
    there = pickle.loads(pickle.dumps(stack))
    assert [member.is_locked for member in there.tensordicts] == [False, True, False, False, False]
    assert there.tolist() == stack.tolist()


def test_objects_that_are_shared_later_are_still_objects_in_other_rows(tmp_path):
    data = TensorDict({"w": list(WORDS)}, [5])
    rows = data[1:3]
    data.memmap_(tmp_path, share_non_tensor=True)
    assert rows["w"] == ["bb", ""] and rows.clone()["w"] == ["bb", ""]
    data.get("w").tensordicts[1].update_(NonTensorData("new"))
    assert rows["w"] == ["new", ""] and rows.get("w")[0] is data.get("w").tensordicts[1]


def test_a_pickle_of_a_slice_has_its_rows_only():
    data = TensorDict({"w": [f"word {n}" for n in range(10_000)]}, [10_000])
    assert len(pickle.dumps(data[:10])) < 2_000


def test_a_column_lives_as_long_as_its_rows():
    class Thing:
        pass

    things = [Thing() for _ in range(3)]
    gone = weakref.ref(things[2])
    data = TensorDict({"w": things}, [3])
    rows = data[:1]
    del things, data
    assert gone() is not None  # as rows of a tensor keep its memory
    del rows
    assert gone() is None


def test_collections_among_the_values_stay_members():
    word = NonTensorData("own")
    data = TensorDict({"w": ["a", word]}, [2])
    assert data.get("w")[1] is word


def test_members_that_another_thread_makes_meanwhile():
    """Reading a column while it becomes members; switched so often that it hits in a few of the rounds."""
    words, wrong = [str(n) for n in range(300)], []

    def read(stack):
        try:
            for start in range(0, 300, 30):
                assert stack[start : start + 30].tolist() == words[start : start + 30]
                stack.clone(False), stack.split(50), stack[start], pickle.dumps(stack)
        except Exception as error:
            wrong.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            stack = TensorDict({"w": words}, [300]).get("w")
            works = [(read, stack), (read, stack), (lambda stack: stack.tensordicts, stack), (read, stack)]
            threads = [threading.Thread(target=work, args=(stack,)) for work, stack in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def collections_alive() -> int:
    return sum(type(each) is NonTensorData for each in gc.get_objects())


def test_a_thousand_words_are_no_thousand_collections():
    gc.collect()
    before = collections_alive()
    data = TensorDict({"w": [str(n) for n in range(1000)], "x": torch.arange(1000)}, [1000])
    data.lock_().unlock_()
    row = data[0], data.get("w")[3]
    made = [
        data["w"], data[5:50], data[data["x"] > 7], data.clone(), data.split(100), repr(data), torch.cat([data, data]),
        pickle.loads(pickle.dumps(data)), data == data, data.select("w"), data.to_tensordict(), data.to_dict(),
        data.apply(lambda x: x + 1), TensorDict({}, [1000]).update(data),
    ]  # fmt: skip
    assert collections_alive() < before + 100, (row, made)
