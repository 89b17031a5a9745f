"""Violations of the plan in `docs/design.md`, read from the source.

`python -m tests.project.layers --write` records them in `known_violations.txt` beside this file. The list may only
shrink: correct a violation and record again. Only a merge of work that was begun before may add lines.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("known_violations.txt")
PACKAGES = ("tdmap", "tensordict_lite")

ALWAYS_THERE = {"numpy", "torch", *PACKAGES, *sys.stdlib_module_names} - {"bz2", "lzma"}
"""What is imported at the top of a file. Any other package may be missing, or is slow to import, and so is imported
where it is needed; Python itself may be built without two of its modules."""
LAZY_IMPORTS = re.compile(
    r"tdmap/cli/"  # the command answers --help before torch is there
    r"|tensordict_lite/api/"  # methods of a collection that call functions of higher layers
)
"""Files that import inside functions on purpose."""

SLOTS = frozenset("_batch_size _entries _leaves _names _payload _rebuild _source _stack_dim _with_leaves".split())
"""Of collections, for `tensordict_lite` alone, and for the package of `tdmap` that slices and writes rows."""
MAY_READ_SLOTS = ("tdmap/data/",)


@cache
def sources() -> dict[str, ast.Module]:
    """Every file of both packages, by its path from the root."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def module_of(path: str) -> str:
    """The dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is `if TYPE_CHECKING:`."""
    if not isinstance(node, ast.If):
        return False
    return "TYPE_CHECKING" in (getattr(node.test, "id", None), getattr(node.test, "attr", None))


def run_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement that importing a file runs."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if is_type_checking(node):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.expr)):
            waiting += ast.iter_child_nodes(node)


def imported_by(node: ast.AST, modules: set[str] | None = None) -> list[str]:
    """The modules that a statement imports; `from package import module` names the module when it is one of these."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    return sorted({full if (full := f"{base}.{alias.name}") in (modules or ()) else base for alias in node.names})


def placed() -> set[str]:
    """The modules that the contract in pyproject.toml gives a layer."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["name"] == "Layers")
    return {name for layer in layers for name in re.split(r"[\s:|]+", layer) if name}


def modules_without_a_layer() -> Iterator[str]:
    """A module that the contract in pyproject.toml does not place."""
    with_a_layer = placed()
    for path in sources():
        name = module_of(path)
        parents = {name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)}
        holds_placed = path.endswith("__init__.py") and any(other.startswith(f"{name}.") for other in with_a_layer)
        if not with_a_layer & parents and not holds_placed:
            yield name


def imports_inside_functions() -> Iterator[str]:
    """An import that runs when a function is called: it hides a wrong layer, or an import that is slow."""
    known = {module_of(path) for path in sources()}
    for path, tree in sources().items():
        if LAZY_IMPORTS.match(path):
            continue
        nodes = list(ast.walk(tree))
        elsewhere = {inner for node in nodes if is_type_checking(node) for inner in ast.walk(node)}
        elsewhere.update(run_at_import(tree))
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in elsewhere:
                for name in imported_by(node, known):
                    if name.partition(".")[0] in ALWAYS_THERE:
                        yield f"{path} imports {name}"


def private_slots() -> Iterator[str]:
    """`tdmap` reads what is private to `tensordict_lite` in a package that should not need to."""
    for path, tree in sources().items():
        if path.startswith("tdmap/") and not path.startswith(MAY_READ_SLOTS):
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and node.attr in SLOTS and not is_own(node.value):
                    yield f"{path} reads {node.attr}"


def is_own(node: ast.expr) -> bool:
    """Whether an attribute is one of the object that the method belongs to."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def patched_classes() -> Iterator[str]:
    """A file that gives an attribute to a class of another one when it is imported: its methods are in two places."""
    for path, tree in sources().items():
        imported = {
            alias.asname or alias.name.partition(".")[0]
            for node in run_at_import(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        for node in run_at_import(tree):
            for target in assigned_to(node):
                if root_of(target) in imported:
                    yield f"{path} sets {ast.unparse(target)}"


def assigned_to(node: ast.AST) -> list[ast.expr]:
    """The attributes that a statement sets, `setattr` included."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "setattr":
        return [ast.Attribute(node.value.args[0], "<any>")]
    return [target for target in targets if isinstance(target, ast.Attribute)]


def root_of(node: ast.expr) -> str:
    """The name at the left of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def circles() -> Iterator[str]:
    """Files that import each other when they are imported: which comes first decides whether it works."""
    known = {module_of(path) for path in sources()}
    arrows = {
        module_of(path): {name for node in run_at_import(tree) for name in imported_by(node, known)} & known
        for path, tree in sources().items()
    }
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = arrows[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[start] = seen
    found = {tuple(sorted({a, *(b for b in reached[a] if a in reached[b])})) for a in arrows if a in reached[a]}
    yield from (" and ".join(circle) for circle in found)


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    check.__name__.replace("_", " "): check
    for check in (modules_without_a_layer, circles, patched_classes, private_slots, imports_inside_functions)
}


def found(check: str) -> list[str]:
    """What breaks the plan now, each once, in order."""
    return sorted(set(CHECKS[check]()))


def known(check: str) -> list[str]:
    """What `known_violations.txt` lists under the name of a check."""
    sections = re.split(r"^# (.+)$", KNOWN.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(sections[::2], (body.split("\n") for body in sections[1::2]), strict=True)).get(check, [])


def write() -> None:
    """Record what breaks the plan now."""
    parts = [f"# {check}\n" + "".join(f"{line}\n" for line in found(check)) for check in CHECKS]
    KNOWN.write_text("\n".join(parts))


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write()
    for check in CHECKS:
        print(f"{check}: {len(found(check))}")
