"""Classes that a script defines: enumerations, generic ones, and those whose base watches its subclasses."""

from __future__ import annotations

from itertools import product

import pytest

from tests.engine.test_scripts import fork, run

ENUMERATIONS = """
    import dataclasses, enum, sys, torch, tdmap

    class Mode(enum.Enum):
        DOUBLE = 2
        TWICE = 2
        HALF = 0.5

        def of(self, x):
            return x * self.value

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 5

    class Bits(enum.Flag):
        A = enum.auto()
        B = enum.auto()

    class Name(str, enum.Enum):
        X = "x"

    class Planet(enum.Enum):
        EARTH = (5, 6)

        def __init__(self, mass, radius):
            self.mass, self.radius = mass, radius

    @dataclasses.dataclass
    class Size:
        rows: int
        columns: int = 2

    class Sized(Size, enum.Enum):
        SMALL = 1
        LARGE = 3, 4

    class Numbered(enum.Enum):
        def __new__(cls):
            member = object.__new__(cls)
            member._value_ = len(cls.__members__) + 10
            return member

        A = ()
        B = ()

    held, large, size = Mode.HALF, Sized.LARGE, Size(3, 4)

    def check(x, largest=Sized.LARGE):
        assert isinstance(largest, Size) and largest is large is Sized.LARGE is Sized(size) and large.columns == 4
        assert list(Mode) == [Mode.DOUBLE, Mode.HALF] and Mode.TWICE is Mode.DOUBLE
        assert Mode(0.5) is Mode["HALF"] is Mode.HALF is held and isinstance(held, Mode)
        assert repr(held) == "<Mode.HALF: 0.5>" and held.of(8) == 4
        assert Level.HIGH > Level.LOW and Level.HIGH + 1 == 6 and isinstance(Level.LOW, int)
        assert Bits.A | Bits.B == Bits(3) and Bits.A in Bits(3) and Bits.B not in Bits.A
        assert Name.X == "x" and Name("x") is Name.X
        assert Planet.EARTH.mass == 5 and Planet((5, 6)) is Planet.EARTH
        assert [member.value for member in Numbered] == [10, 11] and Numbered(11) is Numbered.B
        return x * Mode.DOUBLE.value

    def give(x):
        return Mode.HALF, Level.HIGH, Bits(3), Name.X, Planet.EARTH, Numbered.B, Sized.SMALL

    members = (Mode.HALF, Level.HIGH, Bits.A | Bits.B, Name.X, Planet.EARTH, Numbered.B, Sized.SMALL)
    x, options = torch.arange(12), {"num_workers": 2, "chunksize": 3, "mp_start_method": sys.argv[1]}
    for _ in range(2):
        assert torch.equal(tdmap.map(x, check, **options), x * 2)
        for found in tdmap.map_iter(x, give, **options):
            assert all(mine is theirs for mine, theirs in zip(members, found)), found
"""

GENERIC = """
    import sys, typing, torch, tdmap

    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, value: T) -> None:
            self.value = value

    class Small(Box[int]):
        pass

    P = typing.ParamSpec("P")

    class Call(typing.Generic[P, T]):
        def __init__(self, fn: typing.Callable[P, T]) -> None:
            self.fn = fn

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
            return self.fn(*args, **kwargs)

    double = Call(lambda chunk: chunk * 2)
    box = Small(3)
    options = {"num_workers": 2, "mp_start_method": sys.argv[1]}
    x = torch.arange(12)
    assert torch.equal(tdmap.map(x, lambda chunk: chunk * box.value * Box[int](2).value, **options), x * 6)
    assert type(next(iter(tdmap.map_iter(x, lambda chunk: Small(1), **options)))) is Small
    assert torch.equal(tdmap.map(x, lambda chunk: double(chunk) + Call(len)(chunk) * 0, **options), x * 2)
"""

WATCHING = """
    import abc, sys, torch, tdmap

    class Base:
        found = []

        def __init_subclass__(cls, **options):
            super().__init_subclass__(**options)
            Base.found.append(cls)

        def size(self):
            return 1

    class Child(Base):
        def size(self):
            return super().size() + 1

    class Counted(abc.ABC):
        times = 0

        def __init_subclass__(cls):
            cls.times += 1

        @abc.abstractmethod
        def answer(self): ...

    class Real(Counted):
        def answer(self):
            return self.times

    child = Child()

    def check(x):
        assert Base.found == [Child] and isinstance(child, Base) and type(child) is Child and child.size() == 2
        assert Real().answer() == 1 and issubclass(Real, Counted)
        try:
            Counted()
        except TypeError:
            return x * len(Base.found)

    options = {"num_workers": 2, "chunksize": 3, "mp_start_method": sys.argv[1]}
    x = torch.arange(12)
    for _ in range(2):
        assert torch.equal(tdmap.map(x, check, **options), x)
        assert all(type(one) is Child for one in tdmap.map_iter(x, lambda chunk: Child(), **options))
    class Later(Base):
        pass
    assert torch.equal(tdmap.map(x, lambda chunk: chunk * len(Base.found), **options), x * 2)
    assert Base.found == [Child, Later]
"""


BASES = """
    import sys, torch, tdmap

    class Base:
        pass

    class Child(Base):
        pass

    held = Child()

    def check(x):
        assert issubclass(Child, Base) and isinstance(held, Base) and isinstance(Child(), Base)
        return x

    x = torch.arange(12)
    assert torch.equal(tdmap.map(x, check, num_workers=2, mp_start_method=sys.argv[1]), x)
"""

CODES = {"enumerations": ENUMERATIONS, "generic": GENERIC, "watching": WATCHING, "bases": BASES}


CASES = [*product(CODES, ["fork", "forkserver"]), ("enumerations", "spawn")]
"""Workers that do not inherit the script are all alike to its classes."""


@pytest.mark.parametrize(("code", "method"), CASES)
def test_classes_of_a_script_are_the_same_in_workers(tmp_path, code, method):
    assert run(tmp_path, CODES[code], method, start=fork) == (0, "", "")
