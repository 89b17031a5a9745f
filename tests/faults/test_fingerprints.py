"""What changes a function, for a call that is resumed, and what does not; and a message that names it.

The function is `fn` of the module `job`. In a case, `$` stands for 1 before a change and for 2 after it, and a pair for
two texts. What is expected are the parts that differ; none where the function stays the same.
"""

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
from tdmap.run import code, digests
from tdmap.run.fingerprint import function_parts
from tensordict_lite import TensorDict
from tests import interpreters

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
        return importlib.import_module("job").fn

    def forget(parent):
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(parent))]
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "") or "").startswith(str(parent)):
                del sys.modules[name]

    yield load
    forget(tmp_path)


def differing(a, b):
    """The parts that differ, beside the version, which differs with them."""
    changed = {part.replace("its ", "") for part in {**a, **b} if a.get(part) != b.get(part)}
    derived = {part for part in changed if part.endswith("version")}
    assert bool(derived) == bool([p for p in changed - derived if not p.startswith(("package", "argument"))])
    return sorted(changed - derived)


MODEL = """
import functools, logging, threading, uuid
class Base:
    def helper(self, c): return c * self.rate
class Model(Base):
    kind = "a"
    def __init__(self, rate, **more):
        self.id, self.lock, self.log, self.rate = uuid.uuid4(), threading.Lock(), logging.getLogger("m"), rate
        self.name = str(self.id)
        self.__dict__.update(more)
    def __repr__(self): return f"Model {self.id}"
    def __call__(self, c):
        with self.lock: return self.helper(c)
    def describe(self): return self.id, 1
    @functools.cached_property
    def table(self): return 1
"""

# what it is: job; other modules; the parts that differ
CASES = {
    # -- in the function's own module, function by function
    "the code": ("def fn(c): return c + $", {}, ["code"]),
    "the name of an attribute": (("def fn(c): return c.a", "def fn(c): return c.b"), {}, ["code"]),
    "a default": ("def fn(c, k=$, *, m=$): return c", {}, ["default 0", "default m"]),
    "a closure": ("def make(k):\n  def fn(c): return c * k\n  return fn\nfn = make($)", {}, ["closure variable k"]),
    "a global": ("SIZE = $\ndef fn(c): return c * SIZE", {}, ["global SIZE"]),
    "a helper": ("def half(c): return c / $\ndef fn(c): return half(c)", {}, ["helper job.half"]),
    "a helper of a helper": ("def a(c): return $\ndef b(c): return a(c)\ndef fn(c): return b(c)", {}, ["helper job.a"]),
    "helpers in a circle": ("def a(c): return fn(c) or $\ndef fn(c): return a(c)", {}, ["helper job.a"]),
    "in a comprehension": ("def a(c): return $\ndef fn(c): return [(lambda: a(x))() for x in c]", {}, ["helper job.a"]),
    "text in a comprehension": ("def fn(c): return ['$' for x in c]", {}, ["code"]),
    "a table": ("def a(c): return $\nTABLE = {'a': a, 'b': len}\ndef fn(c): return TABLE[c](c)", {}, ["helper job.a"]),
    "a set": ("SET = {'$', 'b', len}\ndef fn(c): return c in SET", {}, ["global SET"]),
    "a lambda": ("fn = lambda c: c * $", {}, ["code"]),
    "text in a lambda": ("fn = lambda c: '$'", {}, ["code"]),
    "a partial": ("import functools\ndef f(c, k): return c\nfn = functools.partial(f, k=$)", {}, ["argument k"]),
    "of a partial": ("import functools\ndef f(c, k): return $\nfn = functools.partial(f, k=1)", {}, ["function code"]),
    "lru_cache": (
        "import functools\n@functools.lru_cache\ndef a(): return $\ndef fn(c): return a()", {}, ["helper job.a"]
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef a(c): return 0\n@a.register\ndef b(c: int): return $\n"
        "def fn(c): return a(c)", {}, ["helper job.b"]
    ),
    "a decorator": (
        "import functools\ndef times(f):\n  @functools.wraps(f)\n  def g(c): return $ * f(c)\n  return g\n"
        "@times\ndef fn(c): return c", {}, ["code"]
    ),
    "under a decorator": (
        "import functools\ndef times(f):\n  @functools.wraps(f)\n  def g(c): return f(c)\n  return g\n"
        "@times\ndef fn(c): return c + $", {}, ["helper job.fn"]
    ),
    "a package's decorator": (
        "from torch import no_grad\n@no_grad()\ndef a(): return $\n@no_grad()\ndef fn(c): return a()",
        {}, ["helper job.a"]
    ),
    "a method": ("class M:\n  def run(self, c): return $\nfn = M().run", {}, ["code"]),
    "an inherited method": (
        "class B:\n  def run(self): return $\nclass M(B): pass\ndef fn(c): return M().run()", {}, ["helper job.B.run"]
    ),
    "__call__": ("class M:\n  def __call__(self, c): return $\nfn = M()", {}, ["helper job.M.__call__"]),
    "static, class methods, properties": (
        "class M:\n  @staticmethod\n  def s(): return $\n  @classmethod\n  def c(cls): return $\n  @property\n"
        "  def p(self): return self.s() + self.c() + $\nm = M()\ndef fn(c): return m.p",
        {},
        ["helper job.M.c", "helper job.M.p", "helper job.M.s"],
    ),
    "an attribute of a class": ("class M:\n  k = $\ndef fn(c): return M.k", {}, ["class job.M"]),
    "slots": (
        "class P:\n  __slots__ = ('k', 'o')\n  def __init__(self, k): self.k, self.o = k, object()\n"
        "p = P($)\ndef fn(c): return p.k", {}, ["global p.k"]
    ),
    "an enum": (
        "import enum\nclass E(enum.Enum):\n  A = $\ndef fn(c): return E.A", {}, ["class job.E"]
    ),
    "a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n  a: int\n"
        "  id: object = dataclasses.field(compare=False)\ndef fn(c, config=C($, object())): return config.a",
        {}, ["default 0.a"],
    ),
    "a module of torch": (
        "import torch, uuid\nclass Net(torch.nn.Module):\n  def __init__(self, k):\n    super().__init__()\n"
        "    self.id, self.k = uuid.uuid4(), k\n  def forward(self, c): return self.half(c)\n"
        "  def half(self, c): return c / self.k / $\nfn = Net($)", {}, ["callable.k", "helper job.Net.half"]
    ),
    "torch.jit": (
        "import torch\ndef inner(x: torch.Tensor):\n  return x + $\n@torch.jit.script\ndef a(x: torch.Tensor):\n"
        "  return inner(x) * 2\ndef fn(c): return a(c)", {}, ["global a"]
    ),
    "torch.compile": ("import torch\n@torch.compile\ndef fn(c): return c + $", {}, ["helper job.fn"]),
    "a tensor": ("import torch\nW = torch.full((3,), $)\ndef fn(c): return c * W", {}, ["global W"]),
    "an array": ("import numpy as np\nW = np.full(3, $)\ndef fn(c): return c * W", {}, ["global W"]),
    "a type of number": (("K = True\ndef fn(c): return K", "K = 1\ndef fn(c): return K"), {}, ["global K"]),
    "a sign": (("K = 0.0\ndef fn(c): return K", "K = -0.0\ndef fn(c): return K"), {}, ["global K"]),
    "a dtype": (
        "import torch\nW = torch.ones(3).to([0, torch.int, torch.long][$])\ndef fn(c): return W", {}, ["global W"]
    ),
    "a TensorDict": (
        "import torch\nfrom tensordict_lite import TensorDict\nW = TensorDict({'a': torch.full((2,), $)})\n"
        "def fn(c): return W", {}, ["global W"]
    ),
    "a function of a package": ("import torch\nfn = [0, torch.abs, torch.neg][$]", {}, ["callable"]),
    # -- what changes nothing there
    "an open file": ("F = open(__file__)\ndef fn(c): return F", {}, []),
    "the order of a set": (("S = {'a', 'b'}\ndef fn(c): return S", "S = {'b', 'a'}\ndef fn(c): return S"), {}, []),
    "a function that it does not use": ("def a(): return $\ndef fn(c): return c", {}, []),
    "a method that it does not use": ("class M:\n  def a(self): return $\n  def b(self): return 1\n"
                                      "m = M()\ndef fn(c): return m.b()", {}, []),
    "layout, comments, docstrings": (
        ("def fn(c): return c", '"""Said."""\n\n\ndef fn( c ):\n  """Said, too."""\n  # said\n  return c'), {}, []
    ),
    "what an object has besides": (MODEL + "fn = Model(3)", {}, []),
    "an attribute that it reads": (MODEL + "fn = Model($)", {}, ["callable.rate"]),
    "a method that it calls": (
        (MODEL + "fn = Model(3)", MODEL.replace("c * self.rate", "c + self.rate") + "fn = Model(3)"),
        {}, ["helper job.Base.helper"],
    ),
    "an attribute that something may read": (MODEL + "m = Model(3, more=$)\ndef fn(c): return getattr(m, c), type(m)",
                                             {}, ["global m.id", "global m.more", "global m.name"]),
    "an object in a closure": (
        MODEL + "def make(m):\n  def fn(c): return m(c) + m.table\n  return fn\nfn = make(Model(3))", {}, []
    ),
    "a bound method": (MODEL + "fn = Model($).helper", {}, ["object.rate"]),
    # -- other modules, each as a whole
    "another module": (
        "import helper\ndef fn(c): return helper.a()", {"helper": "def a(): return $"}, ["module helper"]
    ),
    "something else in it": (
        "from helper import a\ndef fn(c): return a()",
        {"helper": "def a(): return 1\ndef b(): return $"}, ["module helper"],
    ),
    "one that is not used": ("import helper\ndef fn(c): return 1", {"helper": "def a(): return $"}, []),
    "its layout": (
        "import helper\ndef fn(c):\n  import late\n  return helper.a(late.f())",
        {
            "helper": ("def a(x): return x", "\n\n# moved\ndef a( x ):\n    # said\n    return x"),
            "late": ("def f(): return [1, 2]", '"""Said."""\n\n\ndef f():\n    """Said."""\n    return [1,\n      2]'),
        },
        [],
    ),
    "a value of it": (
        "import helper\nhelper.SIZE = $\ndef fn(c): return c * helper.SIZE", {"helper": "SIZE = 1"}, ["global helper"]
    ),
    "the module itself": (
        "import helper\ndef fn(c): return getattr(helper, c)()", {"helper": "def b(): return $"}, ["module helper"]
    ),
    "a module of a package": (
        "import pkg.deep.tools\ndef fn(c): return pkg.deep.tools.a()",
        {"pkg__deep__tools": "def a(): return $", "pkg__other": "def b(): return $"}, ["module pkg.deep.tools"],
    ),
    "what it imports": (
        "import helper\ndef fn(c): return helper.a(c)",
        {"helper": "import numpy, util\ndef a(c): return util.b(c)", "util": "import helper\ndef b(c): return $"},
        ["module util"],
    ),
    "imported by the function": (
        "def fn(c):\n  import helper, pkg.more\n  from pkg import tools as t\n  return [helper.a(x) for x in c]",
        {"helper": "def a(x): return $", "pkg__tools": "def b(): return $", "pkg__more": "def b(): return $"},
        ["module helper", "module pkg.more", "module pkg.tools"],
    ),
    "imported by a constructor": (
        "class M:\n  def __init__(self):\n    import helper\n    self.k = helper.a()\ndef fn(c): return M().k",
        {"helper": "def a(): return $"}, ["module helper"],
    ),
    "relative imports": (
        "from pkg.main import fn",
        {
            "pkg__main": "def fn(c):\n  from . import tools\n  from .more import f\n  return tools.g() + f()",
            "pkg__tools": "def g(): return $",
            "pkg__more": "from .tools import g as f",
        },
        ["module pkg.tools"],
    ),
    "a star": ("from helper import *\ndef fn(c): return a(c)", {"helper": "def a(c): return $"}, ["module helper"]),
    "a decorator of it": (
        "from helper import times\n@times\ndef fn(c): return c",
        {"helper": "def times(f):\n  def g(c): return $ * f(c)\n  return g"}, ["code"],
    ),
    "an object of its class": (
        "from model import Model\nm = Model(3)\ndef fn(c): return m(c)", {"model": MODEL}, []
    ),
    "what is read of that": (
        "from model import Model\nm = Model($)\ndef fn(c): return m(c)", {"model": MODEL}, ["global m.rate"]
    ),
    "what a helper reads of that": (
        "from model import Model\nimport helper\nm = Model(3, more=$)\ndef fn(c): return helper.a(m)",
        {"model": MODEL, "helper": "def a(m): return m.more"}, ["global m.more"],
    ),
    "a closure that it made": (
        "from helper import make\ninner = make($)\ndef fn(c): return inner(c)",
        {"helper": "def make(k):\n  def inner(c): return c * k\n  return inner"}, ["global inner"],
    ),
    # -- a version stands for all of that
    "a version": ("import tdmap\n@tdmap.versioned('1')\ndef fn(c): return c + $", {}, []),
    "of a class": ("import tdmap\n@tdmap.versioned('1')\nclass M:\n def __call__(self, c): return $\nfn = M()", {}, []),
    "of a method": ("import tdmap\nclass M:\n  @tdmap.versioned('1')\n  def f(self, c): return $\nfn = M().f", {}, []),
    "arguments beside it": (
        "import functools, tdmap\n@tdmap.versioned('1')\ndef f(c, k): return $\nfn = functools.partial(f, k=$)",
        {}, ["argument k"],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_what_changes_a_function(load, name):
    def texts(number):
        def text(given):
            return given.replace("$", str(number)) if isinstance(given, str) else given[number - 1]

        return {"job": text(job), **{module: text(given) for module, given in modules.items()}}

    job, modules, wanted = CASES[name]
    first = function_parts(load(**texts(1)))
    assert differing(first, function_parts(load(**texts(1)))) == (
        [] if "may read" not in name else wanted[:1] + wanted[2:]
    )
    assert differing(first, function_parts(load(**texts(2)))) == wanted


HALF_WAY = """
    import os, tdmap
    from tensordict_lite import TensorDict
    def fn(c):
        import late
        if os.path.exists(r"{mark}") and int(c["x"][0]) >= 20:
            raise RuntimeError("half-way")
        return TensorDict({{"y": c["x"] * 0 + late.more()}}, c.batch_size)
    fn.tdmap_version = {version!r}
"""


def test_a_changed_module_is_refused_by_name_until_a_version_is_given(load, tmp_path):
    data = TensorDict({"x": torch.arange(40)}, [40]).memmap(tmp_path / "in")

    def run(number, version=None):
        fn = load(job=HALF_WAY.format(mark=tmp_path / "mark", version=version), late=f"def more(): return {number}")
        calls = {
            "map": lambda out: data.map(fn, out=out, resume=True, num_workers=0),
            "flat_map": lambda out: tdmap.flat_map(data, fn, out=out, resume=True, num_workers=0),
        }
        for name, call in calls.items():
            yield lambda name=name, call=call: call(tmp_path / name)

    (tmp_path / "mark").touch()
    for call in run(0):
        with pytest.raises(RuntimeError, match="half-way"):
            call()
    (tmp_path / "mark").unlink()
    versions = []
    for call in run(1):
        with pytest.raises(tdmap.errors.ResumeMismatch, match=r"differs in: .*module late") as refused:
            call()
        versions.append(str(refused.value).partition("@tdmap.versioned('")[2].partition("'")[0])
    assert len({*versions}) == 1
    for call in run(1, "other"):
        with pytest.raises(tdmap.errors.ResumeMismatch, match=r"differs in: .*version"):
            call()
    for call in run(1, versions[0]):
        assert set(call()["y"].tolist()) <= {0, 1}


def test_an_in_place_run_is_known_by_the_version_of_its_message(tmp_path):
    def double(chunk, by=2):
        chunk["x"].mul_(by)

    data = TensorDict({"x": torch.ones(4)}, [4]).memmap(tmp_path / "in")
    known = function_parts(double)["its version"]
    data.map(double, out=data, resume=True, num_workers=0)
    for version in (known, None):
        double.tdmap_version = version
        with pytest.warns(tdmap.errors.AlreadyComplete):
            data.map(double, out=data, resume=True, num_workers=0)
    assert data["x"].tolist() == [2, 2, 2, 2]


def test_versions_are_texts_of_what_can_have_them():
    with pytest.raises(TypeError, match="got 2"):
        tdmap.versioned(2)
    with pytest.raises(TypeError, match="decorate the function or class"):
        tdmap.versioned("2")({}.get)


def test_a_module_that_was_changed_after_it_was_loaded_is_another(load, tmp_path):
    """The program runs what it loaded, and the next program will run what is in the file."""
    fn = load(job="import helper\ndef fn(c): return helper.a()", helper="def a(): return 1")
    before = function_parts(fn)
    (tmp_path / "program0" / "helper.py").write_text("def a(): return 2\n")
    running = function_parts(fn)
    again = function_parts(load(job="import helper\ndef fn(c): return helper.a()", helper="def a(): return 2"))
    assert len({parts["its module helper"] for parts in (before, running, again)}) == 3


# -- the same everywhere ------------------------------------------------------------------------------

STABLE = """
    import sys
    order = sys.argv[1].split(",")
    for name in order:
        __import__(name)
    import functools, enum, dataclasses, collections, re
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
    SET, PATTERN = {one.f, two.g, len, Color.RED}, re.compile("a+")
    config, lock = Config(), __import__("threading").Lock()
    log = __import__("logging").getLogger("job")

    class Holder:
        part = one.Part(3)
        resize = functools.partial(two.g, k={"z", "y", "x"})
        lock = lock

    @functools.lru_cache(None)
    def table():
        return SET, log, PATTERN

    def fn(c, holder=Holder(), array=np.arange(3)):
        import late, pkg.tools
        from late import other as o
        with holder.lock:
            holder.resize(holder.part)
        return one.f(two.g(c)) + config.sizes[0] + late.other() + o() + pkg.tools.h() + table() + Point(1, 2), Rows

    class Model:
        def __init__(self, scale):
            self.scale = torch.full((3,), scale)
            self.me = self
        def __call__(self, x):
            return x * self.scale + self.me

    text = "def cell(x): return one.f(x) * len(config.sizes)"
    exec(compile(text, "<cell 1>", "exec"))
    first = function_parts(cell)
    exec(compile("# again" + chr(10) + text, "<cell 2>", "exec"))
    assert function_parts(cell) == first
    model = Model(2.0)
    for fn in (fn, cell, model, functools.partial(fn, holder=4), model.__call__, torch.nn.Linear, len, lambda x: x):
        for part in sorted(function_parts(fn).items()):
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
    outputs = set()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "77"}
    for number, order in enumerate(("one,two", "late,two,one,pkg.tools,numpy")):
        (tmp_path / "job.py").write_text("\n" * number + textwrap.dedent(STABLE))
        if number == 0:  # with the hash seed of another program, and all modules of the library
            done = interpreters.run(["job.py", order], cwd=tmp_path)
        else:
            command = [sys.executable, "job.py", order]
            done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs.add(done.stdout)
    assert len(outputs) == 1
    text = outputs.pop()
    modules = ["module one", "module two", "module late", "module pkg.tools"]
    for part in (*modules, "helper table", "class Holder", "class Model", "package numpy", "version"):
        assert f"('its {part}', " in text, part


@pytest.mark.parametrize("how", ["-c", "file", "-m"])
def test_functions_of_the_main_program_are_told_apart(tmp_path, how):
    seen = set()
    for number in (1, 1, 2):
        text = (
            f"from tdmap.run.fingerprint import function_parts\ndef half(c): return {number}\n"
            "def fn(c): return half(c)\nprint(function_parts(fn))\n"
        )
        text += "#" * number  # or a second edit within a second, of the same size, would run the bytecode of the first
        (tmp_path / "script.py").write_text(text)
        arguments = {"-c": ["-c", text], "file": ["script.py"], "-m": ["-m", "script"]}[how]
        seen.add(interpreters.run(arguments, cwd=tmp_path, check=True).stdout)
    assert len(seen) == 2 and all("its helper half" in parts for parts in seen)


# -- packages ------------------------------------------------------------------------------------------


def uses_numpy(c):
    return np.sum(c)


def uses_through_helper(c):
    return uses_numpy(c)


@pytest.fixture
def newer_packages(monkeypatch):
    def begin():
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
        code._version.cache_clear()

    code._version.cache_clear()
    yield begin
    code._version.cache_clear()


def test_installed_packages_count_by_their_version(newer_packages):
    before = function_parts(uses_through_helper)
    assert before["its package numpy"] == np.__version__
    assert {part for part in before if "module " in part} == set()
    newer_packages()
    assert differing(before, function_parts(uses_through_helper)) == ["package numpy"]


def test_a_package_whose_distribution_has_another_name():
    import PIL.Image

    parts = function_parts(lambda c: PIL.Image.open(c))
    assert parts["its package PIL"].endswith(PIL.__version__)


def test_a_newer_package_is_another_run_but_never_a_second_change_in_place(tmp_path, newer_packages):
    def add(c):
        c["x"].add_(int(np.sum(np.ones(3))))

    data = TensorDict({"x": torch.arange(10)}, [10]).memmap(tmp_path / "in")
    data.map(add, out=data, resume=True, num_workers=0)
    data.map(uses_numpy_too, out=tmp_path / "out", resume=True, num_workers=0)
    newer_packages()
    with pytest.warns(tdmap.errors.AlreadyComplete):
        data.map(add, out=data, resume=True, num_workers=0)
    assert torch.equal(data["x"], torch.arange(10) + 3)
    with pytest.raises(tdmap.errors.ResumeMismatch, match="differs in: package numpy"):
        data.map(uses_numpy_too, out=tmp_path / "out", resume=True, num_workers=0)


def uses_numpy_too(c):
    return {"y": torch.from_numpy(np.abs(c["x"].numpy()))}


# -- what it costs -------------------------------------------------------------------------------------


def test_a_long_chain_of_functions_ends(load):
    lines = [f"def f{n}(x): return f{n + 1}(x)" for n in range(3000)] + ["def f3000(x): return x"]
    parts = function_parts(load(job="\n".join(lines) + "\ndef fn(c): return f0(c)"))
    assert sum(part.startswith("its helper job.f") for part in parts) == 3001


def test_a_long_chain_of_modules_ends(load):
    files = {f"m{n}": f"import m{n + 1}" for n in range(600)}
    parts = function_parts(
        load(job="def fn(c):\n    import m0\n    return m0", **files, m600="def f(: this is no Python")
    )
    assert sum(part.startswith("its module m") for part in parts) == 601


def test_large_tensors_count_by_pieces_and_once(monkeypatch):
    def digests_of(change=None, rows=1 << 17):
        table = torch.zeros(rows)
        if change is not None:
            table[change] = 1
        contents = [digests.Contents(whole_bytes=64 << 10) for _ in range(2)]
        return list(map(digests.digest_alone, (table, table.numpy()), contents))

    plain = digests_of()
    assert plain == digests_of()
    others = [digests_of(change) for change in (0, -1, slice(None, None, 100))] + [digests_of(rows=(1 << 17) + 1)]
    assert all(mine != plain[kind] for other in others for kind, mine in enumerate(other))
    weights = torch.zeros(1 << 17)
    seen = []
    monkeypatch.setattr(digests.Contents, "_digest_bytes", lambda self, view: seen.append(len(view)) or "digest")
    function_parts(lambda c: (weights, [weights, {"a": weights}], functools.partial(len, weights)))
    assert seen == [1 << 19]


def test_no_module_is_imported_to_look_into_it(load):
    fn = load(job="def fn(c):\n    import helper\n    return helper.f()", helper="raise SystemExit('imported')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "its module helper" in function_parts(fn)
    assert "helper" not in sys.modules
    assert function_parts(load(job="def fn(c):\n    import no_such_module as m\n    return m.f()"))
