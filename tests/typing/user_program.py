"""What a program of a user does with both packages, checked from outside: `R` is a revealed type, `E` an error."""

import torch

import tdmap
from tdmap.reducers import Count, Mean
from tensordict_lite import TensorClass, TensorDict
from tensordict_lite.nn import TensorDictModule, TensorDictSequential

data = TensorDict({"x": torch.arange(10.0)}, [10])


def double(chunk: TensorDict) -> TensorDict:
    return TensorDict({"y": chunk["x"] * 2}, chunk.batch_size)


class Photo(TensorClass):
    image: torch.Tensor


def is_dark(rows: Photo) -> torch.Tensor:
    return rows.image.mean(-1) < 0.1


class Log(tdmap.events.Callback):
    def on_job_ended(self, event: tdmap.events.JobEnded) -> None:
        reveal_type(event.done_rows)  # R: int


class Pipe:  # which is not callable
    def send(self, rows: TensorDict) -> None: ...

    def both(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Longest(tdmap.reducers.Reducer[int]):
    def init(self) -> int:
        return 0

    def update(self, state: int, chunk: TensorDict, start: int = 0) -> int:
        return max(state, len(chunk))

    def merge(self, a: int, b: int) -> int:
        return max(a, b)


if __name__ == "__main__":
    result = tdmap.map(data, double, num_workers=2, callbacks=[Log()], out="ready", resume=True)
    stats = tdmap.reduce(data, {"mean": Mean("x"), "n": Count(), "longest": Longest()}, num_workers=0)
    with tdmap.Profiler() as prof:
        for chunk in tdmap.map_iter(data, double, num_workers=2):
            pass
    errors = tdmap.RowErrors()
reveal_type(data.batch_size)  # R: torch._C.Size
reveal_type(data.pipeline().batch(4))  # R: tdmap.pipeline.pipeline.Pipeline
reveal_type(tdmap.WorkerPool(2).num_workers)  # R: int
reveal_type(tdmap.types.ChunkPlan(10, 2).num_chunks)  # R: int
tdmap.map(data, double, num_workers="two")  # E: call-overload
TensorDictModule(Pipe(), ["x"], ["y"], method="both")
TensorDictSequential({"first": torch.nn.Linear(2, 2)}, inplace=True)
data.send(Pipe())
data.recieve(Pipe())  # E: attr-defined
photos = Photo(torch.rand(3, 4), batch_size=[3])
long = tdmap.filter(data, lambda rows: rows["x"] > 2, num_workers=0)
reveal_type(long)  # R: tensordict_lite.dense.tensordict.TensorDict
reveal_type(tdmap.filter(photos, is_dark, out="dark"))  # R: user_program.Photo
reveal_type(tdmap.shuffle(torch.arange(3), seed=0))  # R: torch._tensor.Tensor
reveal_type(tdmap.train_test_split(photos)[0])  # R: user_program.Photo
reveal_type(tdmap.concat([data, data])[:3])  # R: Any
reveal_type(data.map_iter(double))  # R: tdmap.ops.iteration.iterator.MapIterator[tensordict_lite.dense.tensordict.TensorDict]
reveal_type(data.map(double, out="doubled"))  # R: tensordict_lite.dense.tensordict.TensorDict
reveal_type(photos.map(is_dark, num_workers=2))  # R: torch._tensor.Tensor
reveal_type(photos.map(is_dark, out=data))  # R: tensordict_lite.dense.tensordict.TensorDict
reveal_type(photos.map(torch.sigmoid, in_keys="image"))  # R: user_program.Photo
reveal_type(tdmap.map(photos, is_dark, 0))  # R: torch._tensor.Tensor
tdmap.filter([3, 1, 2], lambda rows: rows > 2)  # E: arg-type
tdmap.sort("folder", "x")  # E: arg-type
tdmap.map(3, double)  # E: call-overload
tdmap.reduce(3, Mean("x"))  # E: call-overload
reveal_type(tdmap.reduce(data, Mean("x"), num_workers=2))  # R: torch._tensor.Tensor
means = {"mean": Mean("x")}
reveal_type(tdmap.reduce(data, means))  # R: tensordict_lite.dense.tensordict.TensorDict
reveal_type(tdmap.map_reduce(data, double, Count()))  # R: torch._tensor.Tensor
reveal_type(tdmap.map_reduce(data, len, int.__add__))  # R: int
reveal_type(photos.map_reduce(is_dark, Mean()))  # R: torch._tensor.Tensor
reveal_type(data.pipeline().map(double).reduce(Mean("y")))  # R: torch._tensor.Tensor
reveal_type(data.pipeline().reduce(means))  # R: tensordict_lite.dense.tensordict.TensorDict
tdmap.concat([data, 3])  # E: list-item
tdmap.Pipeline(3)  # E: arg-type
data.pipeline().zip(3)  # E: arg-type
