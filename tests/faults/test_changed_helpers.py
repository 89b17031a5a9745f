"""A changed helper is a changed function, wherever it lies; and a message names it."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tdmap
from tdmap.identity import sources, walk
from tdmap.run.fingerprint import function_parts
from tensordict_lite import TensorDict

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(tmp_path):
    """Writes modules and imports `job`, as a program of its own would; gives its `fn`."""
    loaded = []

    def load(**files):
        folder = tmp_path / f"program{len(loaded)}"
        for name, text in files.items():
            path = folder / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            for package in path.relative_to(folder).parents:
                (folder / package / "__init__.py").touch()
            path.write_text(textwrap.dedent(text))
        forget(folder.parent)
        sys.path.insert(0, str(folder))
        loaded.append(str(folder))
        importlib.invalidate_caches()
        job = importlib.import_module("job")
        return job.fn

    def forget(parent):
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(parent))]
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "") or "").startswith(str(parent)):
                del sys.modules[name]

    yield load
    forget(tmp_path)


def differing(a, b):
    return sorted(part for part in {**a, **b} if a.get(part) != b.get(part))


# job; a module; that module once more; the parts that differ
CASES = {
    "module.attribute": (
        "import helper\ndef fn(c): return helper.scale()",
        {"helper": ("def scale(): return 1", "def scale(): return 2")},
        ["helper helper.scale"],
    ),
    "a chain of attributes": (
        "import pkg.deep.tools\ndef fn(c): return pkg.deep.tools.scale()",
        {"pkg__deep__tools": ("def scale(): return 1", "def scale(): return 2")},
        ["helper pkg.deep.tools.scale"],
    ),
    "something else of the module": (
        "import helper\ndef fn(c): return helper.scale(c.other)",
        {"helper": ("def scale(x): return 1\ndef other(): return 1", "def scale(x): return 1\ndef other(): return 2")},
        [],
    ),
    "layout and comments": (
        "import helper\ndef fn(c):\n    import late\n    return helper.scale(late.f())",
        {
            "helper": ("def scale(x): return x", "\n\n# moved\ndef scale( x ):\n    # said\n    return x"),
            "late": ("def f(): return [1, 2]", '"""Said."""\n\n\ndef f():\n    return [1,\n      2]'),
        },
        [],
    ),
    "a value of the module": (
        "import helper\ndef fn(c): return c * helper.SIZE",
        {"helper": ("SIZE = 1", "SIZE = 2")},
        ["global helper"],
    ),
    "the whole module": (
        "import helper\ndef fn(c): return getattr(helper, c.name)()",
        {"helper": ("def a(): return 1\ndef b(): return 1", "def a(): return 1\ndef b(): return 2")},
        ["helper helper.b"],
    ),
    "behind lru_cache": (
        "from helper import table\ndef fn(c): return table()",
        {"helper": [f"import functools\n@functools.lru_cache\ndef table(): return {n}" for n in (1, 2)]},
        ["helper helper.table"],
    ),
    "behind functools.wraps": (
        "from helper import scale\ndef fn(c): return scale()",
        {
            "helper": [
                f"""
                import functools
                def twice(f):
                    @functools.wraps(f)
                    def wrapper(): return {n} * f()
                    return wrapper
                @twice
                def scale(): return 1
                """
                for n in (2, 3)
            ]
        },
        ["helper helper.scale"],
    ),
    "what functools.wraps wraps": (
        "from helper import scale\ndef fn(c): return scale()",
        {
            "helper": [
                f"""
                import functools
                def twice(f):
                    @functools.wraps(f)
                    def wrapper(): return 2 * f()
                    return wrapper
                @twice
                def scale(): return {n}
                """
                for n in (2, 3)
            ]
        },
        ["helper helper.scale (2)"],
    ),
    "behind a decorator of a package": (
        "from helper import scale\nimport torch\n@torch.no_grad()\ndef fn(c): return scale()",
        {"helper": [f"import torch\n@torch.no_grad()\ndef scale(): return {n}" for n in (1, 2)]},
        ["helper helper.scale"],
    ),
    "in a partial": (
        "import functools, helper\nhalf = functools.partial(helper.scale, 2)\ndef fn(c): return half(c)",
        {"helper": ("def scale(k, c): return k * c", "def scale(k, c): return k + c")},
        ["helper helper.scale"],
    ),
    "a bound method": (
        "from helper import Model\nrun = Model().run\ndef fn(c): return run(c)",
        {"helper": [f"class Model:\n    def run(self, c): return {n}" for n in (1, 2)]},
        ["helper helper.Model.run"],
    ),
    "static methods, class methods, properties": (
        "from helper import Model\nmodel = Model()\ndef fn(c): return model.p",
        {
            "helper": [
                f"""
                class Model:
                    @staticmethod
                    def s(): return {n}
                    @classmethod
                    def c(cls): return {n}
                    @property
                    def p(self): return self.s() + self.c() + {n}
                """
                for n in (1, 2)
            ]
        },
        ["helper helper.Model.c", "helper helper.Model.p", "helper helper.Model.s"],
    ),
    "an object that is called": (
        "from helper import Model\nmodel = Model()\ndef fn(c): return model(c)",
        {"helper": [f"class Model:\n    def __call__(self, c): return {n}" for n in (1, 2)]},
        ["helper helper.Model.__call__"],
    ),
    "a class of which objects are made": (
        "from helper import Model\ndef fn(c): return Model().run(c)",
        {"helper": [f"class Base:\n    def run(self, c): return {n}\nclass Model(Base): pass" for n in (1, 2)]},
        ["helper helper.Base.run"],
    ),
    "an object that is an attribute of a class": (
        "from helper import Model\ndef fn(c): return Model.part.k",
        {
            "helper": [
                f"class Part:\n    def __init__(self, k): self.k = k\nclass Model:\n    part = Part({n})"
                for n in (1, 2)
            ]
        },
        ["class helper.Model"],
    ),
    "an object with slots": (
        "from helper import part\ndef fn(c): return part.k",
        {
            "helper": [
                f"""
                class Part:
                    __slots__ = ("k",)
                    def __init__(self, k): self.k = k
                part = Part({n})
                """
                for n in (1, 2)
            ]
        },
        ["global part"],
    ),
    "in a comprehension": (
        "import helper\ndef fn(c): return [helper.scale(x) for x in c if (lambda y: helper.keep(y))(x)]",
        {
            "helper": (
                "def scale(x): return 1\ndef keep(x): return 1",
                "def scale(x): return 2\ndef keep(x): return 2",
            )
        },
        ["helper helper.keep", "helper helper.scale"],
    ),
    "in a closure, and a default": (
        """
        import helper
        def make(f):
            import helper as inner
            def fn(c, g=helper.g): return f(c) + g(c) + inner.h(c)
            return fn
        fn = make(helper.f)
        """,
        {"helper": ["\n".join(f"def {name}(x): return {n}" for name in "fgh") for n in (1, 2)]},
        ["helper helper.f", "helper helper.g", "helper helper.h"],
    ),
    "functions in a circle": (
        "import helper\ndef fn(c): return helper.even(c) or fn(c - 1)",
        {
            "helper": [
                f"def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n != {n} and even(n - 1)" for n in (0, 1)
            ]
        },
        ["helper helper.odd"],
    ),
    "far away": (
        "import helper\ndef fn(c): return helper.a(c)",
        {
            "helper": ("import util\ndef a(c): return util.b(c)",) * 2,
            "util": ("def b(c): return 1", "def b(c): return 2"),
        },
        ["helper util.b"],
    ),
    "in a table of functions": (
        "from helper import TABLE\ndef fn(c): return TABLE[c.kind](c)",
        {"helper": [f"def a(c): return {n}\nTABLE = {{'a': a, 'b': len}}" for n in (1, 2)]},
        ["helper helper.a"],
    ),
    "one that is registered": (
        "from helper import scale\ndef fn(c): return scale(c)",
        {
            "helper": [
                f"""
                import functools
                @functools.singledispatch
                def scale(c): return 0
                @scale.register
                def of_int(c: int): return {n}
                """
                for n in (1, 2)
            ]
        },
        ["helper helper.of_int"],
    ),
    "after a star": (
        "from helper import *\ndef fn(c): return scale(c)",
        {"helper": ("def scale(c): return 1", "def scale(c): return 2")},
        ["helper helper.scale"],
    ),
    "of torch.jit": (
        "from helper import scale\ndef fn(c): return scale(c)",
        {
            "helper": [
                f"import torch\ndef inner(x: torch.Tensor):\n    return x + {n}\n"
                "@torch.jit.script\ndef scale(x: torch.Tensor):\n    return inner(x) * 2"
                for n in (1, 2)
            ]
        },
        ["global scale"],
    ),
    "of a module of torch": (
        "from helper import Net\nfn = Net()",
        {
            "helper": [
                f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x * {n}" for n in (1, 2)
            ]
        },
        ["helper helper.Net.forward"],
    ),
    "rebound to another function": (
        "from helper import scale\ndef fn(c): return scale(c)",
        {"helper": [f"def a(c): return 1\ndef b(c): return 1\nscale = {name}" for name in "ab"]},
        ["global scale", "helper helper.a", "helper helper.b"],
    ),
    # -- imported while it runs: their sources count --
    "import within": (
        "def fn(c):\n    import helper\n    return helper.scale()",
        {"helper": ("def scale(): return 1", "def scale(): return 2")},
        ["imported helper.scale"],
    ),
    "from, as, and a name that is not used": (
        "def fn(c):\n    from helper import scale as s\n    return s()",
        {
            "helper": (
                "def scale(): return SIZE * 1\nSIZE = 1\ndef other(): return 1",
                "def scale(): return SIZE * 1\nSIZE = 2\ndef other(): return 2",
            )
        },
        ["imported helper.SIZE"],
    ),
    "of a package, dotted": (
        "def fn(c):\n    import pkg.deep.tools as t, pkg.more\n    return t.scale() + pkg.more.f()",
        {
            "pkg__deep__tools": ("def scale(): return 1", "def scale(): return 2"),
            "pkg__more": ("def f(): return 1", "def f(): return 2"),
        },
        ["imported pkg.deep.tools.scale", "imported pkg.more.f"],
    ),
    "relative": (
        "from pkg.main import fn",
        {
            "pkg__main": ("def fn(c):\n    from . import tools\n    from .more import f\n    return tools.g() + f()",)
            * 2,
            "pkg__tools": ("def g(): return 1", "def g(): return 2"),
            "pkg__more": ("from .tools import g as f",) * 2,
        },
        ["imported pkg.tools.g"],
    ),
    "what an import leads to": (
        "def fn(c):\n    import helper\n    return helper.a(c)",
        {
            "helper": ("import numpy as np, util\ndef a(c): return util.b(np.sum(c))",) * 2,
            "util": ("import helper\ndef b(c): return helper and 1", "import helper\ndef b(c): return helper and 2"),
        },
        ["imported util.b"],
    ),
    "in a function of a function": (
        "def fn(c):\n    import helper\n    return [helper.scale(x) for x in c]",
        {"helper": ("def scale(x): return 1", "def scale(x): return 2")},
        ["imported helper.scale"],
    ),
    "a class with a base": (
        "def fn(c):\n    from helper import Model\n    return Model().run()",
        {"helper": [f"class Base:\n    def run(self): return {n}\nclass Model(Base): pass" for n in (1, 2)]},
        ["imported helper.Base"],
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_helper_that_changed_is_named(load, name):
    job, modules, wanted = CASES[name]
    before, after = ({module: texts[at] for module, texts in modules.items()} for at in (0, 1))
    first = function_parts(load(job=job, **before))
    assert function_parts(load(job=job, **before)) == first
    assert differing(first, function_parts(load(job=job, **after))) == wanted


def test_a_resumed_run_with_a_changed_helper_is_refused_by_name(load, tmp_path):
    data = TensorDict({"x": torch.arange(40)}, [40]).memmap(tmp_path / "in")
    job = """
        import os, helper
        from tensordict_lite import TensorDict
        def fn(c):
            import late
            if os.path.exists(r"{mark}") and int(c["x"][0]) >= 20:
                raise RuntimeError("half-way")
            return TensorDict({{"y": c["x"] * 0 + helper.scale() + late.more()}}, c.batch_size)
    """.format(mark=tmp_path / "mark")
    same = {"job": job, "late": "def more(): return 0"}
    (tmp_path / "mark").touch()
    with pytest.raises(RuntimeError, match="half-way"):
        data.map(load(helper="def scale(): return 1", **same), out=tmp_path / "out", resume=True, num_workers=0)
    with pytest.raises(tdmap.errors.ResumeMismatch, match=r"helper helper\.scale"):
        data.map(load(helper="def scale(): return 2", **same), out=tmp_path / "out", resume=True, num_workers=0)
    (tmp_path / "mark").unlink()
    fn = load(helper="def scale(): return 1", **{**same, "late": "def more(): return 1"})
    with pytest.raises(tdmap.errors.ResumeMismatch, match=r"imported late\.more"):
        data.map(fn, out=tmp_path / "out", resume=True, num_workers=0)
    fn = load(helper="def scale(): return 1", **same)
    assert data.map(fn, out=tmp_path / "out", resume=True, num_workers=0)["y"].unique().tolist() == [1]


# -- the same everywhere ------------------------------------------------------------------------------

STABLE = """
    import sys
    order = sys.argv[1].split(",")
    for name in order:
        __import__(name)
    import functools, enum, dataclasses, collections
    import numpy as np, torch
    import one, two
    from tensordict_lite import tensorclass, TensorDict
    from tdmap.run.fingerprint import function_parts

    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    @dataclasses.dataclass
    class Config:
        sizes: tuple = (1, 2)
        color: Color = Color.BLUE
        names: frozenset = frozenset({"a", "b", "c", "d"})

    @tensorclass
    class Rows:
        x: torch.Tensor

    Point = collections.namedtuple("Point", "x y")
    SET = {one.f, two.g, len, Color.RED}
    config, lock = Config(), __import__("threading").Lock()
    log = __import__("logging").getLogger("job")

    class Holder:
        part = one.Part(3)
        resize = functools.partial(two.g, k={"z", "y", "x"})
        lock = lock

    @functools.lru_cache(None)
    def table():
        return SET, log

    def fn(c, holder=Holder()):
        import late, pkg.tools
        from late import other as o
        return one.f(two.g(c)) + config.sizes[0] + late.other() + o() + pkg.tools.h() + table() + Point(1, 2), Rows

    text = "def cell(x): return one.f(x) * len(config.sizes)"
    exec(compile(text, "<cell 1>", "exec"))
    first = function_parts(cell)
    exec(compile("# again" + chr(10) + text, "<cell 2>", "exec"))
    assert function_parts(cell) == first
    for part in sorted({**function_parts(fn), **first}.items()):
        print(part)
"""


def test_parts_are_the_same_in_every_process_and_order_of_imports(tmp_path):
    (tmp_path / "one.py").write_text(
        "import numpy as np\nWORDS = {'p', 'q', 'r'}\ndef f(x): return np.sum(x), WORDS\n"
        "class Part:\n    def __init__(self, k): self.k = {k: {1.5, 'a'}}\n"
    )
    (tmp_path / "two.py").write_text("import one\ndef g(x, k=None): return one.Part(x)\n")
    (tmp_path / "late.py").write_text("import two\ndef other(): return two.g(1)\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "tools.py").write_text("def h(): return 1\n")
    (tmp_path / "job.py").write_text(textwrap.dedent(STABLE))
    outputs = set()
    for seed, order in (("0", "one,two"), ("1", "late,two,one,pkg.tools"), ("77", "two,pkg,numpy")):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "job.py", order], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    text = outputs.pop()
    for part in (
        "helper one.f",
        "helper two.g",
        "imported late.other",
        "class Holder",
        "package numpy",
        "class one.Part",
    ):
        assert f"('{part}', " in text, part


# -- packages ------------------------------------------------------------------------------------------


def uses_numpy(c):
    return np.sum(c)


def uses_through_helper(c):
    return uses_numpy(c)


def test_installed_packages_count_by_their_version(monkeypatch):
    before = function_parts(uses_through_helper)
    assert before["package numpy"] == np.__version__
    assert not any(part.startswith(("helper numpy", "module numpy")) for part in before)

    def newer(name, old=importlib.metadata.version):
        return "99" if name == "numpy" else old(name)

    sources._version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", newer)
    try:
        assert differing(before, function_parts(uses_through_helper)) == ["package numpy"]
    finally:
        sources._version.cache_clear()


def test_a_package_whose_distribution_has_another_name():
    import PIL.Image

    parts = function_parts(lambda c: PIL.Image.open(c))
    assert parts["package PIL"].endswith(PIL.__version__)


def test_an_in_place_run_is_not_done_again_because_a_package_is_newer(tmp_path, monkeypatch):
    def add(c):
        c["x"].add_(int(np.sum(np.ones(3))))

    data = TensorDict({"x": torch.arange(10)}, [10]).memmap(tmp_path / "in")
    data.map(add, out=data, resume=True, num_workers=0)
    sources._version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    try:
        with pytest.warns(tdmap.errors.AlreadyComplete):
            data.map(add, out=data, resume=True, num_workers=0)
    finally:
        sources._version.cache_clear()
    assert torch.equal(data["x"], torch.arange(10) + 3)


# -- what it costs -------------------------------------------------------------------------------------


def test_a_long_chain_of_functions_ends(load):
    lines = [f"def f{n}(x): return f{n + 1}(x)" for n in range(3000)] + ["def f3000(x): return x"]
    parts = function_parts(load(job="from helper import f0\ndef fn(c): return f0(c)", helper="\n".join(lines)))
    assert sum(part.startswith("helper helper.f") for part in parts) == 3001


def test_large_tensors_count_by_pieces(monkeypatch):
    def digests_of(change=None, rows=1 << 17):
        table = torch.zeros(rows)
        if change is not None:
            table[change] = 1
        return [walk.Reached(whole_bytes=64 << 10).digest(value) for value in (table, table.numpy())]

    plain = digests_of()
    assert plain == digests_of()
    others = [digests_of(change) for change in (0, -1, slice(None, None, 100))] + [digests_of(rows=(1 << 17) + 1)]
    assert all(mine != plain[kind] for other in others for kind, mine in enumerate(other))
    weights = torch.zeros(1 << 17)
    digests = []
    monkeypatch.setattr(walk.Reached, "_digest_bytes", lambda self, view: digests.append(len(view)) or "digest")
    function_parts(lambda c: (weights, [weights, {"a": weights}], functools.partial(len, weights)))
    assert digests == [1 << 19]  # once


def test_no_module_is_imported_to_look_into_it(load):
    fn = load(job="def fn(c):\n    import helper\n    return helper.f()", helper="raise SystemExit('imported')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "imported helper." in " ".join(function_parts(fn))
    assert "helper" not in sys.modules
    missing = function_parts(load(job="def fn(c):\n    import no_such_module_at_all as m\n    return m.f()"))
    assert "no such module" in missing["imported no_such_module_at_all"]
