"""The case tables, one file a family; ``ALL_CASES`` is every row of every table."""

from tests.differential.cases import (
    apply,
    casting,
    consolidated,
    construct,
    conversion,
    indexing,
    joining,
    lazystack,
    locking,
    mapping,
    modules,
    names,
    nontensor,
    parameters,
    pointwise,
    printing,
    reductions,
    selection,
    shape,
    tensorclass,
    torch_functions,
    unusual,
)
from tests.differential.harness import Case

TABLES = (
    construct, mapping, selection, shape, joining, names, indexing, apply, pointwise, reductions, casting,
    conversion, locking, torch_functions, printing, nontensor, lazystack, tensorclass, consolidated,
    modules, parameters, unusual,
)  # fmt: skip

# A row that two tables share runs once.
ALL_CASES: list[Case] = list(dict.fromkeys(case for table in TABLES for case in table.CASES))
