"""What a script defines reaches workers by value, and comes back as what it was."""

import pickle
import sys
import textwrap
import types

import cloudpickle
import pytest
import torch

import tdmap
from tdmap.runtime.wire import byvalue
from tests.engine.test_scripts import fork, run

CASES = """
# functions of every form
import contextlib, functools
K = 5
count = 0
def helper(x): return x * 2
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
def times(k): return lambda x: x * k
def local():
    def fact(n): return 1 if n < 2 else n * fact(n - 1)
    return fact
def circle():
    def down(n): return 0 if n == 0 else up(n - 1) + 1
    def up(n, *, step=1):
        up.calls = getattr(up, "calls", 0) + 1
        return 0 if n == 0 else down(n - step) + 1
    return down
def shared():
    number = 0
    def bump():
        nonlocal number
        number += 1
    def read(x):
        bump()
        return x + number
    return read
def numbers(n): yield from range(n)
def more(f): return functools.wraps(f)(lambda *a, **k: f(*a, **k) + 1)
@more
def decorated(x, *, k=[1, 2]): return x + len(k)
@contextlib.contextmanager
def within(x): yield x + 1
def counted(x):
    global count
    count += x
    return count
thrice, fact, down, read = times(3), local(), circle(), shared()
less = functools.partial(lambda a, b: a - b, b=2)
def fn(x):
    with within(x) as y:
        found = y, x + K, helper(x), even(10), thrice(x), fact(5), down(5), read(x), less(5), decorated(x), counted(3)
    return found, list(numbers(3))
args = (1,)
check = lambda o: o == ((2, 6, 2, True, 3, 120, 5, 2, 3, 4, 3), [0, 1, 2])

# globals that are no data
import logging, threading
file = open('/dev/null', 'w')
log = logging.getLogger('x')
unused = (value for value in ())
lock, events, again = threading.Lock(), threading.Event(), threading.RLock()
def fn(x):
    log.info('x')
    with lock, again: return events.is_set() or x
args = (3,)
check = lambda o: o == 3

# modules and what they made
import localmod, re
import numpy as np, torch
from localmod import f
pattern, big, SIZE = re.compile('a+'), torch.zeros(1000), 3
def fn(x):
    class Local:
        size = SIZE
        def get(self): return self.size + x
    return pattern.match('aab').end(), int(np.add(x, 1)), localmod.f(x), f(x), float(big.sum()), Local().get()
args = (1,)
check = lambda o: o == (2, 2, 11, 11, 0.0, 4)

# enumerations of many kinds
import datetime, enum
from dataclasses import dataclass
class Mode(enum.Enum):
    DOUBLE = 2
    TWICE = 2
    HALF = 0.5
    def of(self, x): return x * self.value
class Name(str, enum.Enum): X = "x"
class Bits(enum.IntFlag):
    A = 1
    B = 2
class Day(datetime.date, enum.Enum): A = (2020, 1, 2)
@dataclass(frozen=True)
class Width: w: int
class Sized(Width, enum.Enum):
    A = 1
    B = 2
class Planet(enum.Enum):
    EARTH = (5, 6)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius
class Numbered(enum.Enum):
    def __new__(cls):
        member = object.__new__(cls)
        member._value_ = len(cls.__members__) + 10
        return member
    A = ()
    B = ()
held = Mode.HALF
def fn(mode, day):
    assert list(Mode) == [Mode.DOUBLE, Mode.HALF] and Mode.TWICE is Mode.DOUBLE and Mode(0.5) is Mode["HALF"] is held
    assert mode is Mode.DOUBLE and day is Day.A and day.year == 2020 and Sized.A.w + Sized.B.w == 3
    assert repr(held) == "<Mode.HALF: 0.5>" and held.of(8) == 4 and Name("x") is Name.X == "x"
    assert Planet.EARTH.mass == 5 and Planet((5, 6)) is Planet.EARTH and Numbered(11) is Numbered.B
    return Mode.HALF, Name.X, Bits.A | Bits.B, Day.A, Sized.B, Planet.EARTH, Numbered.B
args = (Mode.TWICE, Day.A)
check = lambda o: all(
    a is b for a, b in zip(o, (Mode.HALF, Name.X, Bits(3), Day.A, Sized.B, Planet.EARTH, Numbered.B), strict=True)
)

# classes of every form
class A:
    class In: k = 3
    def __init__(self): self.k = 4
    def __call__(self, x): return x + self.k
    @property
    def p(self): return 1
    @classmethod
    def c(cls): return cls.__name__
    @staticmethod
    def s(x): return x
class B(A):
    def __init__(self):
        super().__init__()
        self.k += 1
class C: owner = A
A.me, A.other = A, C
def fn(a, b, inner):
    assert type(a) is A is A.me and type(b) is B and isinstance(b, A) and A.other.owner is A
    return a.p, a.c(), a.s(4), a(1), B()(1), b.k, inner.k + A.In.k
args = (A(), B(), A.In())
check = lambda o: o == (1, 'A', 4, 5, 6, 5, 6)

# slots dataclass
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class P: x: int
def fn(p): return P(p.x + 1)
args = (P(1),)
check = lambda o: o == P(2)

# namedtuple
from typing import NamedTuple
class N(NamedTuple):
    a: int
    b: str = 'z'
def fn(n): return n._replace(a=9)
args = (N(1),)
check = lambda o: o == N(9) and type(o) is N

# generic
from typing import Generic, TypeVar
T = TypeVar('T')
class G(Generic[T]):
    def __init__(self, v: T): self.v = v
def fn(g): return isinstance(g, G) and G[int](3).v + g.v
args = (G(1),)
check = lambda o: o == 4

# init subclass classes
class R:
    known = []
    def __init_subclass__(cls, **k): R.known.append(cls)
class A(R): pass
class B(R): pass
def fn(b): return (len(R.known), B in R.known)
args = (B(),)
check = lambda o: o == (2, True)

# module
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(2, 2)
    def forward(self, x): return self.l(x)
fn = Net()
x = torch.ones(1, 2)
args = (x,)
check = lambda o: torch.allclose(o, fn(x))

# tensorclass
import torch
from tensordict_lite import tensorclass
@tensorclass
class D: x: torch.Tensor
def fn(d): return D(d.x + 1, batch_size=d.batch_size)
args = (D(torch.zeros(2), batch_size=[2]),)
check = lambda o: type(o) is D and o.x.tolist() == [1, 1]

# flags of a tensorclass
import torch
from typing import Any
from tensordict_lite import TensorClass, tensorclass
class Parent(TensorClass):
    x: Any
@tensorclass
class Child(Parent, nocast=True):
    y: Any = None
    def __init__(self, n):
        self.x, self.y = n, n + 1
def fn(d): return Child(5), type(Child(5).x), d[None].batch_size, type(d) is Child
args = (Child(3),)
check = lambda o: type(o[0]) is Child and o[0].y == 6 and o[1:] == (int, (1,), True)

# protocol
from typing import Protocol, runtime_checkable
@runtime_checkable
class Pr(Protocol):
    def f(self): ...
class A:
    def f(self): return 1
def fn(a): return isinstance(a, Pr)
args = (A(),)
check = lambda o: o is True

# typing attrs
from __future__ import annotations
import typing
class A: x: typing.List[A]
def fn(a): return list(typing.get_type_hints(type(a), {'A': type(a), 'typing': typing}))
args = (A(),)
check = lambda o: o == ['x']

# metaclass that checks
class Checked(type):
    known = {}
    def __new__(meta, name, bases, body):
        if name in Checked.known or 'size' not in body: raise TypeError(name)
        Checked.known[name] = cls = super().__new__(meta, name, bases, body)
        return cls
class A(metaclass=Checked): size = 1
class B(A): size = 2
def fn(b): return (B().size, isinstance(b, A), type(A) is Checked, Checked.known == {'A': A, 'B': B})
args = (B(),)
check = lambda o: o == (2, True, True, True)

# base that refuses a second class
class Plugin:
    known = {}
    def __init_subclass__(cls, key):
        if key in Plugin.known: raise ValueError(key)
        cls.label = cls.key + Plugin.prefix
        Plugin.known[key] = cls
    prefix = '!'
class Crop(Plugin, key='crop'): key = 'crop'
def fn(c): return (Crop.label, type(c) is Plugin.known['crop'])
args = (Crop(),)
check = lambda o: o == ('crop!', True)

# library that watches its subclasses
import localmod
class Step(localmod.Base): key = 'step'
def fn(s): return type(s) is localmod.Base.known['step'] is Step
args = (Step(),)
check = lambda o: o is True

# library with a metaclass
import localmod
class Step(localmod.Model): size = 3
def fn(s): return (s.size, type(Step).__name__, isinstance(s, localmod.Model))
args = (Step(),)
check = lambda o: o == (3, 'Meta', True)

# registered with an abstract class
import abc
class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
class Square:
    def area(self): return 4
Shape.register(Square)
def fn(s):
    try: Shape()
    except TypeError: return isinstance(s, Shape) and s.area()
args = (Square(),)
check = lambda o: o == 4

# singledispatch
import functools
@functools.singledispatch
def size(x): return 0
@size.register
def _(x: str): return len(x)
def fn(x): return (size(x), size(1))
args = ('ab',)
check = lambda o: o == (2, 0)

# typed dict
from typing import TypedDict
class Row(TypedDict): a: int
def fn(r): return (Row(a=r['a'] + 1), sorted(Row.__annotations__))
args = (Row(a=1),)
check = lambda o: o == ({'a': 2}, ['a'])

# held lock
import threading
lock = threading.Lock()
lock.acquire()
def fn(x): return lock.acquire(timeout=0) or x
args = (3,)
check = lambda o: o is True

# autograd
import torch
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2
def fn(x):
    x = x.clone().requires_grad_()
    Twice.apply(x).sum().backward()
    return x.grad
args = (torch.ones(2),)
check = lambda o: o.tolist() == [2, 2]

# subclass of tensor
import torch
class Marked(torch.Tensor): mark = 1
class Weight(torch.nn.Parameter): mark = 2
def fn(x): return ((torch.ones(2).as_subclass(Marked) + 1).mark, type(Weight(x)).mark)
args = (torch.ones(2),)
check = lambda o: o == (1, 2)

# pickle in the function
import io, torch
class Kept:
    def __init__(self, x): self.x = x
def fn(x):
    file = io.BytesIO()
    torch.save(Kept(x), file)
    file.seek(0)
    return torch.load(file, weights_only=False).x
args = (3,)
check = lambda o: o == 3

# exception with a metaclass
class M(type): pass
class Mine(Exception, metaclass=M):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.b = b
def fn(x):
    try: raise Mine(x, 2)
    except Mine as e: return e
args = (3,)
check = lambda o: type(o) is Mine and (o.args, o.b) == ((3, 2), 2)

# cached property
import functools
class A:
    @functools.cached_property
    def p(self): return 7
    @functools.lru_cache
    def q(self, x): return x + 1
def fn(a): return a.p + a.q(1)
args = (A(),)
check = lambda o: o == 9

# named tuple of collections
import collections
Pair = Two = collections.namedtuple('Pair', 'a b')
del Pair
def fn(p): return Two(p.b, p.a)
args = (Two(1, 2),)
check = lambda o: o == Two(2, 1) and type(o) is Two

# weakref
import weakref
class A: pass
a = A()
r = weakref.ref(a)
s = weakref.WeakSet([a])
def fn(x): return (r() is x, x in s)
args = (a,)
check = lambda o: o == (True, True)
"""
"""Each defines a function, its arguments, and a check of its result."""

LIBRARY = """
    class Base:
        known = {}

        def __init_subclass__(cls, **options):
            Base.known[cls.key] = cls

    class Meta(type):
        def __new__(meta, name, bases, body):
            if name != "Model" and "size" not in body:
                raise TypeError("no size")
            return super().__new__(meta, name, bases, body)

    class Model(metaclass=Meta):
        pass

    def f(x):
        return x + 10
"""

SCRIPT = """
import re, sys, traceback, torch, tdmap

options = {"executor" if sys.argv[1] in ("thread", "serial") else "mp_start_method": sys.argv[1], "num_workers": 1}
cases = re.findall(r"^# (.+)$\\s((?:.+\\s)+)", open(sys.argv[2]).read(), re.MULTILINE)
for name, source in cases:
    if name == "held lock" and "executor" in options:
        continue  # the lock of the caller, which holds it
    for _ in range(2):  # a name that is defined again, and the same worker
        exec(source, globals())
        try:
            (found,) = tdmap.map_iter(torch.arange(2), lambda chunk: fn(*args), chunksize=2, **options)
            assert check(found), found
        except Exception:
            print(name, traceback.format_exc())
print(len(cases))
"""


@pytest.mark.parametrize("executor", ["fork", "forkserver", "thread", "serial"])
def test_what_a_script_defines_arrives_and_comes_back(tmp_path, executor):
    (tmp_path / "localmod.py").write_text(textwrap.dedent(LIBRARY))
    (tmp_path / "cases").write_text(CASES)
    found = run(tmp_path, SCRIPT, executor, str(tmp_path / "cases"), start=fork)
    assert found == (0, "29\n", "")


STALE = """
import sys, torch, tdmap

options = {"mp_start_method": sys.argv[1], "num_workers": 1}

class Settings:
    size = 1
    seen = []

def read(chunk):
    Settings.seen.append(1)
    Settings.size += 10
    return Settings.size, Settings(), Settings

for size in (1, 2, 3):
    Settings.size = size
    for value, instance, cls in tdmap.map_iter(torch.arange(1), read, **options):
        assert value == size + 10 and type(instance) is cls is Settings, (value, size)
    assert Settings.size == size and not Settings.seen

First = Settings

class Base:
    found = []
    def __init_subclass__(cls):
        Base.found.append(cls)

for number in range(3):
    type("Child", (Base,), {})
    for found in tdmap.map_iter(torch.arange(1), lambda chunk: Base.found, **options):
        assert len(found) == number + 1 and all(a is b for a, b in zip(found, Base.found)), found

class Settings:
    size = 5

for old, new in tdmap.map_iter(torch.arange(2), lambda chunk: (First(), Settings()), chunksize=1, **options):
    assert type(old) is First and type(new) is Settings
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_classes_in_workers_follow_those_of_the_caller(tmp_path, method):
    assert run(tmp_path, STALE, method, start=fork) == (0, "", "")


def test_a_registered_module_goes_by_value(tmp_path, monkeypatch):
    module = types.ModuleType("only_of_the_caller")
    exec("class Mine(Exception): ...\ndef fails(x): raise Mine(len(x))\ndef gives(x): return Mine(2)", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(module)
    try:
        with pytest.raises(module.Mine, match="4"):
            tdmap.map(torch.arange(4), module.fails, chunksize=4, num_workers=1, mp_start_method="forkserver")
        (found,) = tdmap.map_iter(torch.arange(1), lambda x: module.gives(x), num_workers=1)
        assert type(found) is module.Mine
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.parametrize("real", [False, True])
def test_annotations_that_cannot_be_evaluated_are_left_out(real, monkeypatch):
    """Python 3.14 evaluates them when they are read, and a name may be imported for type checkers alone."""
    if real and sys.version_info < (3, 14):
        pytest.skip("annotations were evaluated by `def`")
    space = {"__name__": "__main__"}
    text = f"def fn(x: {'Missing' if real else int.__name__}, by=2, *, more=3):\n    return x * by + more"
    exec(compile(text, "<text>", "exec", dont_inherit=True), space)
    fn = space["fn"]
    fn.note = "kept"
    if not real:
        monkeypatch.setattr(byvalue, "_can_be_annotated", lambda fn: False)
    found = pickle.loads(byvalue.dumps(fn))
    assert (found(5), found.note, found.__qualname__, found.__annotations__) == (13, "kept", "fn", {})
    assert tdmap.map(torch.arange(3), fn, num_workers=1).tolist() == [3, 5, 7]


CACHED = """
import functools, os, torch, tdmap

log, scale = "loads", 2

@functools.cache
def model():
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\\n")
    return scale

@functools.lru_cache(maxsize=None)
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)

def scaled(rows):
    return rows * model() * fact(3)

def results(fn=scaled, calls=3):
    found = {tuple(tdmap.map(torch.arange(4), fn, num_workers=2, chunksize=1).tolist()) for _ in range(calls)}
    loads = open(log).read().split()
    os.unlink(log)
    assert len(loads) == len(set(loads)) <= 2, loads
    return found

assert results() == {(0, 12, 24, 36)}
scale = 3  # what the function refers to has changed
assert results() == {(0, 18, 36, 54)}

def make(offset):
    @functools.cache
    def model():
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\\n")
        return offset
    return lambda rows: rows + model()

for offset in (1, 2):
    assert results(make(offset), calls=1) == {tuple(range(offset, offset + 4))}
exec(compile('''
@functools.cache
def model():
    open(log, "a").write(f"{os.getpid()}\\\\n")
    return 5
''', "cell", "exec"))
assert results() == {(0, 30, 60, 90)}
print("ok")
"""


def test_a_worker_keeps_the_cache_of_a_function_that_has_not_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, CACHED, start=fork) == (0, "ok\n", "")
