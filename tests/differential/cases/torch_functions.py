"""torch functions called on a TensorDict."""

from tests.differential.harness import parse_cases

CASES = parse_cases(
    "torch",
    r"""
torch.zeros_like(td)["a"].sum()
torch.ones_like(td)["a"].sum()
torch.full_like(td, 7)["b"]
torch.rand_like(td.float())
torch.randn_like(td.float())
torch.zeros_like(td, dtype=torch.float64)
torch.zeros_like(td, device="meta")
torch.zeros_like(td.lock_()).is_locked
torch.clone(td)
torch.unbind(td, 0)[0]
torch.unbind(td)[0]  #! may work
torch.split(td, 2), torch.split(td, 2, 0)
torch.chunk(td, 2)
torch.gather(td, 0, torch.tensor([0]))
torch.squeeze(td.unsqueeze(0)), torch.squeeze(td.unsqueeze(0), 0)
torch.unsqueeze(td, 0)
torch.permute(nm, (1, 0))
torch.transpose(nm, 0, 1)
torch.reshape(nm, (6,))
torch.flatten(nm), torch.flatten(nm, 0, 1)
torch.unflatten(td, 0, (3, 1))
torch.masked_select(td, torch.tensor([True, False, True]))
torch.masked_fill(td, torch.tensor([True, False, True]), 0)  #! may work
torch.sum(td), torch.sum(td, 0)
torch.mean(nm), torch.mean(nm, 0)
torch.var(nm, 0)
torch.std(nm, 0)
torch.prod(nm, 0)  #! may work
(torch.all(td), torch.any(td))  #! may work
torch.all(td, 0)  #! may work
torch.amax(nm, 0)  #! may work
torch.max(nm, 0)  #! may work
torch.max(nm)  #! may work
torch.min(nm)  #! may work
torch.isnan(td)
torch.isfinite(td).all()
torch.abs(td)["b"]
torch.exp(td)["b"]
torch.neg(td)["b"]
torch.add(td, 1)["b"], torch.add(td, td)["b"], torch.add(td, td, alpha=2)["b"]
torch.sub(td, 1)["b"]
torch.mul(td, 2)["b"]
torch.div(td, 2)["b"]
torch.pow(td, 2)["b"]
torch.eq(td, td)["b"]  #! may work
torch.ne(td, td)["b"]  #! may work
torch.gt(td, 1)["b"]  #! may work
torch.clamp(td, 1, 2)["b"]
torch.maximum(td, td)["b"]
torch.where(torch.tensor([True, False, True]), td, td)
torch.lerp(td.float(), td.float(), 0.5)["b"]
torch.addcmul(td, td, td)["b"]
torch.addcdiv(td.float(), td.float(), td.float() + 1)["b"]
torch.sqrt(td)["b"]
torch.sigmoid(td)["b"]
torch.softmax(nm, 0)["n"]  #! may work
torch.round(td)["b"]
torch.logical_and(td, td)["b"]
torch.bitwise_and(td > 0, td > 0)["b"]
torch.floor(td)["b"]
torch.sign(td)["b"]
torch.nansum(td)  #! may work
torch.quantile(nm, 0.5)  #! may work
torch.logsumexp(nm, 0)  #! may work
torch.cummax(nm, 0)  #! may work
torch.norm(nm)  #! may work
torch.flip(td, (0,))["b"]
torch.fliplr(nm)
torch.flipud(td)["b"]
torch.roll(td, 1)["b"], torch.roll(td, 1, 0)["b"]
torch.rot90(nm)
torch.tile(td, (2,))
torch.repeat_interleave(td, 2)
torch.tensor_split(td, 2)[0]
torch.narrow(td, 0, 0, 1)
torch.movedim(nm, 0, 1)
torch.moveaxis(nm, 0, 1)
torch.swapaxes(nm, 0, 1)
torch.swapdims(nm, 0, 1)
torch.atleast_1d(td) is td
torch.atleast_2d(td)
torch.broadcast_to(td, (2, 3))
torch.expand_copy(td, (2, 3))  #! may work
torch.numel(td)  #! may work
torch.is_tensor(td)
torch.is_floating_point(td)  #! may work
torch.nn.functional.mse_loss(td.float(), td.float() * 2)
torch.nn.functional.mse_loss(td.float(), td.float() * 2, reduction="none")["b"]
torch.nn.functional.mse_loss(td.float(), td.float() * 2, reduction="sum")
torch.nn.functional.l1_loss(td.float(), td.float() * 2)
torch.nn.functional.smooth_l1_loss(td.float(), td.float() * 2)
torch.nn.functional.relu(td)["b"]  #! may work
torch.nn.functional.pad(td, (1, 1))  #! may work
torch.nn.functional.one_hot(td)  #! may work
torch.nn.functional.softmax(nm, 0)  #! may work
torch.cos(td)["b"]
torch.matmul(td, td)  #! may work
torch.outer(td, td)  #! may work
torch.sort(td)  #! may work
torch.argmax(td)  #! may work
torch.cumsum(td, 0)  #! may work
torch.topk(td, 1)  #! may work
torch.hstack([td, td])  #! may work
torch.vstack([td, td])  #! may work
torch.concat([td, td])  #! may work
torch.concatenate([td, td])  #! may work
torch.index_select(td, 0, torch.tensor([0]))  #! may work
torch.take_along_dim(td, torch.tensor([0]), 0)  #! may work
torch.autograd.grad(td.float().clone().requires_grad_().sum(reduce=True), td)  #! may work
x = td.float().clone().requires_grad_(); torch.autograd.grad(x.sum(reduce=True), x)  #! may work
torch.utils._pytree.tree_map(lambda x: x + 1, td)["b"], torch.utils._pytree.tree_leaves(td)
torch.utils._pytree.tree_flatten(td)[1].num_leaves
torch.vmap(lambda x: x + 1)(td)["b"], torch.vmap(lambda x: x["a"].sum())(td)
torch.vmap(lambda x: x.apply(lambda y: y + 1), (0,))(td), torch.vmap(lambda x, y: x + y, (0, None))(td, 1)["b"]
torch.vmap(lambda x: x, in_dims=1, out_dims=1)(nm)
""",
)
