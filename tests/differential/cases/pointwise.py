"""Arithmetic, comparisons, and their reflected, in-place and method forms."""

from tests.differential.harness import parse_cases

ARITHMETIC = parse_cases(
    "arithmetic",
    r"""
f = td.select("a", "n")
(td + 1)["b"], (td + 1.5)["b"]
(1 - td)["b"]
(2 / TD({"a": torch.ones(2)}, [2]))["a"]
(2 ** TD({"a": torch.ones(2)}, [2]))["a"]  #! may work
(td - td)["b"], (td * 2)["b"], (td / 2)["b"]
(td // 2)["b"]  #! may work
(td % 2)["b"], (td ** 2)["b"]
(-td)["b"]
abs(-td)["b"]
+td  #! may work
~td  #! any error
~(td > 1)
td @ td
td + TD({"a": torch.ones(3, 4)}, [3])
td + TD({"zz": torch.ones(3, 4)}, [3])
td.add(TD({"a": torch.ones(3, 4)}, [3]), default="intersection")
td.add(TD({"a": torch.ones(3, 4)}, [3]), default=0)  #! may work
td.add(TD({"a": torch.ones(3, 4)}, [3]), default=0)["b"]  #! may work
td.add(TD({"a": torch.ones(3, 4), "zz": torch.ones(3)}, [3]), default=0.0)  #! may work
td.add(TD({"a": torch.ones(3, 4), "zz": torch.ones(3)}, [3]), default=torch.zeros(())), td.add(td, alpha=2)["b"]
td.sub(td, alpha=2)["b"]
td.add(1)["b"], td.add(torch.tensor(1))["b"]
td + torch.ones(3), td + torch.ones(3, 1), td + torch.tensor(1)
td + torch.ones(4)
nm + torch.ones(2, 3), nm + torch.ones(3), nm + torch.ones(2, 1), nm * torch.ones(2, 3)
td + np.float32(1)
td + np.ones(3)  #! may work
td + "x"
td + None
td + {"a": torch.ones(3, 4)}
(td + True)["b"]
torch.ones(3) + td
torch.tensor(1) + td
td += 1; td["b"]
td -= 1; td["b"]
td *= 2; td["b"]
td /= 2; td["b"]
td //= 2  #! may work
td **= 2; td["b"]
td %= 2; td["b"]
f = td.select("a"); g = f; f += 1; f is g
f = td.select("a"); f /= 2; f["a"][0]
td.add_(1) is td
td.select("a").div_(2)["a"][0]
td.pow_(2)["b"]
td.sub_(1)["b"]
td.sub_(td, alpha=3)["b"]
td.mul_(td)["b"]
td.lock_().add_(1)["b"]
td.add_(td.select("a"))
td.mod(2)["b"]
td.rsub(1)["b"], td.rsub(td, alpha=2)["b"]
td.neg_() is td
td.abs_() is td
td.sqrt()["b"]
td.exp()["b"]
td.sign()["b"]
td.round()["b"]
td.trunc()["b"]
td.select("a").frac()["a"][0]
td.sigmoid()["b"]
td.erf()["b"]
td.softmax(0)["b"]
td.select("a").softmax(0)["a"][:, 0]
td.softmax(-1)
td.clamp(1, 2)["b"], td.clamp(min=1)["b"], td.clamp(max=1)["b"]
td.clamp()  #! any error
td.clamp(td * 0, td * 0 + 1)["b"], td.clamp(min=torch.tensor(1))["b"]
td.clamp(1, td)  #! may work
td.clamp_max(1)["b"], td.clamp_max(td * 0)["b"]
td.clamp_min(1)["b"]
td.clamp_max_(td * 0) is td
td.maximum(td * 2)["b"], td.maximum(1), td.maximum(torch.tensor(1))["b"]
td.minimum(td * 2)["b"]
td.maximum_(td * 2) is td
td.lerp(td * 2, 0.5)["b"]
td.select("a").lerp(td.select("a") * 2, 0.5)["a"][0]
td.select("a").lerp(td.select("a") * 2, torch.tensor(0.5))["a"][0]
td.select("a").lerp(td.select("a") * 2, td.select("a") * 0)["a"][0]
td.select("a").lerp_(td.select("a") * 2, 0.5)["a"][0]
td.addcmul(td, td, value=2)["b"]
td.select("a").addcdiv(td.select("a"), td.select("a") + 1, value=2)["a"][0]
td.addcdiv(td, td, value=2)["b"]
td.addcmul_(td, td) is td
td.bitwise_and(td)
td.select("b").bitwise_and(td.select("b"))["b"], td.select("b").bitwise_and(1)["b"], td.select("b") & 1
td.select("b") | 1, td.select("b") ^ 1
(td > 1) & (td < 2), (td > 1) | (td < 2), ((td > 1) ^ (td < 2))["b"]
td.logical_and(td)["b"]
True & (td > 1)
td & td
td.select("b") << 1  #! may work
nt * nt, nt + TD({"a": torch.ones(3)}, [3])
nt == nt, nt == "hello"
(nt == nt).get("s")
nt != nt, nt > 0
nt.select("a") == nt
fl.lock_(); [(x.is_locked, x["n"].is_locked) for x in (fl + 1, fl.abs(), fl + fl, fl.isnan(), fl.lerp(fl, 0.5),
    fl.maximum(fl))]
x = TD({"n": {}}, [2]); [y.to_dict() for y in (x + 1, x + x, x.exp(), x.clamp_min(0), x.isnan(), x.zero_())]
td + torch.ones(5, 3)
nm + torch.ones(5, 2, 3)
td.expand(2, 3) + td, td + td.expand(2, 3)
td + TD({"a": 1.0, "b": 2.0, "n": {"c": 3.0}}, [])
td.add_(torch.ones(5, 3))
td - TD({"n": td["n"], "b": td["b"], "a": td["a"]}, [3])
x = TD({"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2]);
    y = TD({"a": torch.ones(2), "n": {"z": torch.ones(2)}}, [2]); (x.add(y, default="intersection"), x, y)
td.add(td.select("a"), default="union")
td.sub(1, alpha=3)["b"], td.rsub(1, alpha=3)["b"]
fl.add_(torch.ones(3), alpha=3)
v = td["n", "c"]; td.lock_(); td *= 2; td["n", "c"] is v
td.select("b") & 1, td.select("b") | 8, td.select("b") ^ td.select("b"), ~td.select("b")
fl.clamp(torch.tensor([0.0, 0.4, 0.1]), torch.tensor([0.2, 0.5, 0.3]))
fl.clamp(0, fl)
x = fl.clone(); fl.clamp(0.3, 0.6, out=x) is x, x
fl.lerp(fl * 2, torch.tensor([0.1, 0.9, 0.5]))
fl.addcmul(2.0, fl)
fl.softmax(0, dtype=torch.float64)
td.copy_at_(TD({"zz": torch.ones(())}), 0)
ds + ds.contiguous(), ds.contiguous() + ds, 2 - ds, ds * torch.arange(6.0).view(3, 2)
torch.vmap(lambda row: ((TD({"a": row}, []) * 2 + TD({"a": row}, [])).exp().clone() + 1)["a"])(torch.ones(4, 3))
x = td.bool().lock_(); y = ~x; y.is_locked, y["n"].is_locked
""",
)

COMPARISON = parse_cases(
    "comparison",
    r"""
(td > 1)["b"], (td >= 1)["b"], (td < 1)["b"], (td <= 1)["b"]
(td == 1)["b"], (td != 1)["b"]
(1 < td)["b"]
(1 == td)["b"]
td > td.select("a")
(td == torch.tensor(1))["b"], (td == torch.tensor([0, 1, 2]))["b"], (td == torch.tensor([0, 1, 2]))["a"]
torch.tensor([0, 1, 2]) == td
td > "x"
td == {"a": torch.ones(3, 4)}
td == {"a": torch.ones(3, 4), "b": 1, "n": {"c": 1}}
(td == td).all()
td == td.select("a")
td == td[:2]  #! may work
td.select("a") in [td.select("a")]
(td == np.int64(1))["b"]
td.lock_(); [(x.is_locked, x["n"].is_locked) for x in (td == td, td > 0, td != 1, td.bool() | True,
    td.bool() ^ td.bool())]
[x.names for x in (nm == nm, nm > 0, nm != 1, nm.bool() | True, nm == torch.zeros(2, 3))]
td == [1, 2], td != [1, 2], td == object(), td == np.ones(2)
td == td.expand(2, 3), td == torch.ones(3, 1), td == TD({"a": 1, "b": 1, "n": {"c": 1}}, [])
td == torch.ones(5)
td > {"a": 1, "b": 1, "n": {"c": 1, "d": 2}}
(ds == ds.contiguous()).all(), (ds.contiguous() == ds).all(), (ds != ds.contiguous()).any(), (ds > 1)["a"]
ds == torch.tensor([[0, 1], [0, 1], [2, 2]])
hash(td)
bool(td == td)
(nt == nt.clone().set("s", "other")).get("s"), (nt != nt.clone().set("s", "other")).get("s")
(nt > nt)["s"]
""",
)

UNARY_NAMES = """
abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal
round sigmoid sign sin sinh sqrt tan tanh trunc isnan isfinite isreal isposinf isneginf
""".split()
BINARY_NAMES = "add sub mul div pow maximum minimum clamp_max clamp_min".split()
OPERATORS = ("+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">=")
OPERANDS = ("2", "2.5", "True", "torch.tensor(2)", "torch.tensor(2.5)", "torch.tensor([1, 2, 3])", "fl", "fl + 1")

UNARY = parse_cases(
    "unary",
    "\n".join(
        template.format(name)
        for name in UNARY_NAMES
        for template in ("fl.{}()", "td.{}()", "nm.{}().names", "nt.{}()", "torch.{}(fl)")
    )
    + "\n"
    + "\n".join(
        template.format(name)
        for name in UNARY_NAMES
        if not name.startswith("is")
        for template in ("fl.{}_()", "fl.{}_() is fl", "td.lock_().{}_()")
    ),
)

BINARY = parse_cases(
    "binary",
    "\n".join(
        [f"fl {op} {operand}" for op in OPERATORS for operand in OPERANDS]
        + [f"{operand} {op} fl" for op in OPERATORS for operand in OPERANDS[:-2] if op not in ("%", "**", "/")]
        + [f"{operand} / fl  #! close" for operand in OPERANDS[:-2]]
        + [f"fl.{name}({operand})" for name in BINARY_NAMES for operand in OPERANDS]
        + [f"fl.{name}_({operand})" for name in BINARY_NAMES for operand in OPERANDS]
        + [f"td.select('b').{name}({operand})" for name in BINARY_NAMES for operand in OPERANDS[:6]]
    ),
)

CASES = [*ARITHMETIC, *COMPARISON, *UNARY, *BINARY]
