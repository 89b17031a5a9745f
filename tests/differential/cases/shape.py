"""Views, reshapes and rearrangements along batch dimensions."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "shape",
    r"""
td.view(3, 1), td.view(1, -1), td.view((3, 1)), td.view(size=(3, 1))
td.view(2)
td.view(batch_size=[3, 1])  #! may work
td.view(3) is td
nm.view(6), nm.view(6).names, nm.view(2, 3).names, nm.view(2, 3, 1).names
nm.view(-1)["n"].batch_size, nm.view(3, 2).names
td.view(torch.int32)  #! may work
td.reshape(3, 1), td.reshape((1, 3))
td.reshape(2)
td.reshape(3) is td
nm.reshape(3, 2)
nm.flatten(0, -1)
nm.flatten(1, 0)
nm.flatten(0, 5)
nm.flatten(0)
td.flatten() is td, td.flatten(0, 0) is td
TD({"a": 1}, []).flatten()
nm.flatten().unflatten(0, (2, 3))
td.unflatten(0, (1, 3)), td.unflatten(0, [3, 1]), td.unflatten(-1, (3, 1)), td.unflatten(0, (-1, 1))
td.unflatten(0, (2, 2))
nm.unflatten(1, (3, 1)).names
td.expand(2, 3), td.expand(-1), td.expand(2, -1), td.expand((2, 3))
td.expand(torch.Size([2, 3]))
td.expand(4)
td.expand()
nm.expand(4, 2, 3).names
td.expand_as(torch.zeros(2, 3)), td.expand_as(td.expand(2, 3))
td.broadcast_to((2, 3))
td.unsqueeze(0).expand(5, 3)["n"].batch_size
nm.permute(1, 0), nm.permute((1, 0)), nm.permute(dims=(1, 0)), nm.permute(-1, 0)
nm.permute(0)
nm.permute(0, 0)
nm.permute(0, 2)
nm.permute(0, 1) is nm
TD({"a": 1}, []).permute()
nm.transpose(0, 1), nm.transpose(0, 0) is nm
nm.transpose(0, 2)
nm.swapdims(0, 1)
nm.movedim(0, 1), nm.movedim((0, 1), (1, 0))
nm.movedim(0, 3)
nm.squeeze(0) is nm, nm.squeeze() is nm
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1], names=["x", "y", "z"]).squeeze()
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1], names=["x", "y", "z"]).squeeze(0)
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1], names=["x", "y", "z"]).squeeze(-1)
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1], names=["x", "y", "z"]).squeeze(1)
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1], names=["x", "y", "z"]).squeeze(dim=0)
TD({"a": torch.ones(1, 3, 1)}, [1, 3, 1]).squeeze((0, 2))  #! may work
TD({"a": torch.ones(1, 3, 1)}, [1, 3]).squeeze()
TD({"a": torch.ones(3)}, [3]).squeeze(1)
nm.squeeze(5)
nm.unsqueeze(2)
nm.unsqueeze(3)
nm.unsqueeze(-4)
nm.unsqueeze(dim=1)
nm.unsqueeze()  #! any error
td.unsqueeze(0)["n"].batch_size
TD({"a": 1}, []).atleast_1d()
TD({"a": 1}, []).atleast_2d()
td.atleast_1d() is td
td.narrow(0, 1, 2)
td.narrow(0, 1, 5)
td.narrow(1, 0, 1)
td.narrow(0, torch.tensor(1), 2)
td.split(2)
td.split([1, 1])
td.split(2, dim=-1)
td.split(2, 1)
td.split(0)
td.split(-1)
td.split(5), td.split((1, 2))
nm.split(1, 1)
type(td.split(2))
td.split(torch.tensor(2))
td.chunk(5)
td.chunk(0)
nm.chunk(2, dim=1)
td.tensor_split([1, 2]), td.tensor_split(torch.tensor([1, 2])), td.tensor_split((1,)), td.tensor_split(5)
nm.tensor_split(2, dim=1)
nm.unbind(1)[0].names
nm.unbind(2)
nm.unbind()  #! may work
TD({"a": 1}, []).unbind(0)
type(nm.unbind(0))
td.repeat(2)
td.repeat(2, 2)
td.repeat((2,))
nm.repeat(2, 1)
nm.repeat(2)
td.repeat()
td.repeat_interleave(2), td.repeat_interleave(torch.tensor([1, 2, 0]))
nm.repeat_interleave(2), nm.repeat_interleave(2, dim=1), nm.repeat_interleave(2, dim=-1)
td.tile((2, 2)), td.tile(2)
td.roll(1)["b"], td.roll(1, 0)["b"]
nm.roll(1)["a"].flatten()[:4], nm.roll((1, 1), (0, 1))
nm.roll(1, 2)
nm.roll((1, 1))
td.roll(1, inplace=True) is td
nm.rot90(2), nm.rot90(1, (1, 0))
td.flip(0)["b"], td.flip((0,))["b"]
td.flip(1)
nm.flip((0, 1)).names
nm.flip(0, 1)  #! may work
td.flipud()["b"]
td.gather(0, torch.tensor([0, 2]))
td.gather(0, torch.tensor([[0, 2]]))
nm.gather(1, torch.tensor([[0], [1]])), nm.gather(-1, torch.tensor([[0], [1]]))
td.gather(1, torch.tensor([0, 2]))
td.gather(dim=0, index=torch.tensor([0, 2]))
td.masked_select(torch.tensor([True, False, True]))
td.masked_select(torch.tensor([True, False, True]), inplace=True) is td
n = td["b"]; td.masked_select(torch.tensor([True, False, True]), inplace=True)["b"] is n
nm.masked_select(torch.ones(2, 3, dtype=torch.bool), inplace=True)
td.lock_().masked_select(torch.tensor([True, False, True]), inplace=True)
c.masked_select(torch.tensor([True, False, True]), inplace=True)
lz.masked_select(torch.tensor([True, False, True]), inplace=True)
td.clear_refs_for_compile_() is td
ds.clear_refs_for_compile_() is ds
nm.masked_select(torch.ones(2, 3, dtype=torch.bool)), nm.masked_select(torch.ones(2, dtype=torch.bool))
nm.masked_select(torch.ones(2, 1, dtype=torch.bool))
td.masked_fill(torch.tensor([True, False, True]), 0)["a"].sum()
td.masked_fill(torch.tensor([True, False, True]), 0.5)["b"]
td.masked_fill_(torch.tensor([True, False, True]), 0) is td
nm.masked_fill(torch.ones(2, dtype=torch.bool), 0)["a"].sum()
td.where(torch.tensor([True, False, True]), 0)["a"], td.where(torch.tensor([True, False, True]), td * 0)["b"]
td.where(torch.tensor([True, False, True]), td.select("a"))
td.where(torch.tensor([True, False, True]), td.select("a"), pad=0)
td.where(torch.tensor([True, False, True]), torch.zeros(3))
td.where(torch.tensor([True, False, True]), torch.tensor(0.0))["b"]
torch.where(torch.tensor([True, False, True]), td, td * 0)["b"]
torch.where(torch.tensor([True, False, True]), td, 0)["b"], torch.where(torch.tensor([True, False, True]), 0, td)
td.where(torch.ones(3, 1, dtype=torch.bool), 0)
td.where(torch.ones(3, 1, dtype=torch.bool), td, update_batch_size=True)
td.where(torch.tensor([True, False, True]), 0, out=td.clone())
td.movedim((0,), (1, 2))
td.movedim(0, (1, 2))
nm.movedim((0, 1), 1)
td[0].repeat_interleave(2, dim=0), td[0].repeat_interleave(torch.tensor(3), dim=-1)
td[0].repeat_interleave(2, dim=1)
TD({"a": torch.tensor(1.0)}).repeat_interleave(2, 0)
nm.lock_().reshape(2, 3, inplace=True) is nm
nm.reshape(3, 2, inplace=True) is nm, nm
nm.flatten(0, 1, inplace=True) is nm, nm
nm.unflatten(1, (3, 1), inplace=True) is nm, nm
nm.repeat(2, 1, inplace=True) is nm, nm
nm.repeat_interleave(2, dim=0, inplace=True) is nm, nm
nm.repeat_interleave(2, inplace=True)
nm.gather(0, torch.tensor([[1, 0, 1]]), inplace=True) is nm, nm
nm.roll((1, -1), (0, 1), inplace=True) is nm, nm
nm.pad([0, 1, 2, 0], 5.0, inplace=True) is nm, nm
nm.pad([-1, 0, 0, -1], inplace=True) is nm, nm
nm.lock_().flatten(0, 1, inplace=True)
nm.lock_().roll(1, 0, inplace=True)
nm.lock_().pad([1, 0, 0, 0], inplace=True)
ds.lock_().roll(1, 0, inplace=True)
n = nm["n"]; nm.reshape(-1, inplace=True).repeat(2, inplace=True).roll(1, 0, inplace=True).pad([1, 1],
    inplace=True).unflatten(0, (2, 7), inplace=True).flatten(0, 1, inplace=True).repeat_interleave(2, dim=0,
    inplace=True).gather(0, torch.tensor([1, 0]), inplace=True); nm["n"] is n, n.batch_size
x = lazy_stack([nm, nm.clone()], 2); m = x.tensordicts; x.roll(1, 0, inplace=True).pad([1, 0], inplace=True);
    [y is z for y, z in zip(m, x.tensordicts)], x.batch_size
x = TD({"a": torch.arange(24.0).view(4, 3, 2).permute(2, 1, 0), "n": {}}, [2, 3]); x.reshape(-1, inplace=True) is x, x
x = TD({"a": torch.arange(24.0).view(4, 3, 2).permute(2, 1, 0), "n": {}}, [2, 3]);
    x.unflatten(1, (3, 1), inplace=True)
nm.squeeze(0, inplace=True)
x = TD({"a": torch.ones(2)}, [2]); lazy_stack([x, x]).pad([0, 0, 0, 1], inplace=True).batch_size
nm.gather(0, torch.tensor([[1, 0, 1]]), out=nm.clone(), inplace=True)
nm.gather(0, torch.tensor([0]), inplace=True)
nm.gather(0, torch.tensor([1])), nm.gather(1, torch.tensor([2, 0]))
x = TD({"a": torch.ones(2, 3, requires_grad=True)}, [2]);
    x.gather(0, torch.tensor([1]), out=TD({"a": torch.zeros(1, 3)}, [1]))
TD({"a": torch.ones(3, 1), "n": TD({"b": torch.ones(3, 1)}, [3])}, [3]).expand_as(
    TD({"a": torch.ones(2, 3, 4), "n": TD({"b": torch.ones(2, 3, 5)}, [2, 3, 5])}, [2, 3]))["n", "b"]
TD({"a": torch.ones(3, 1)}, [3]).expand_as(TD({"a": torch.ones(2, 3, 4)}, [2, 3]))
TD({"a": torch.arange(3)}, []).expand_as(TD({"a": torch.ones(2, 3)}, [2, 3]))
TD({"a": torch.ones(3, 5)}, [3]).expand_as(TD({"a": torch.ones(2, 3, 4)}, [2, 3]))
TD({"a": torch.ones(3, 1), "s": "x"}, [3]).expand_as(TD({"a": torch.ones(2, 3, 4), "s": "y"}, [2, 3]))
ds.expand_as(TD({"a": torch.ones(4, 3, 2), "n": TD({"c": torch.ones(4, 3, 2, 4)}, [4, 3, 2])}, [4, 3, 2]))
lazy_stack([TD({"a": torch.ones(1)})] * 3).expand_as(TD({"a": torch.ones(2, 3, 4)}, [2, 3]))
c.expand_as(C(torch.ones(2, 3, 4), batch_size=[2, 3]))
""",
)
