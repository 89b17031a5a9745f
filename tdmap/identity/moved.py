"""Names under which runs know the modules of this library: those that they had when the first runs were begun.

A digest of a function names what it uses of this library by module and name. Where a module moves, it keeps its old
name there, so that a run that was begun before goes on.
"""

from __future__ import annotations

from tensordict_lite.moved import old_name

_KNOWN_AS = {
    "tdmap.data.columns": "tdmap.bykey.rows",
    "tdmap.data.join": "tdmap._data",
    "tdmap.data.kinds": "tdmap._data",
    "tdmap.data.objectlog": "tdmap.objectlog",
    "tdmap.data.reader": "tdmap._data",
    "tdmap.data.schema": "tdmap.schema",
    "tdmap.data.store": "tdmap.store",
    "tdmap.datasets.tables.groups": "tdmap.datasets.tables.ops",
    "tdmap.memory.rowfiles": "tdmap.placing",
    "tdmap.operations.append": "tdmap.append",
    "tdmap.operations.filter": "tdmap.filtering",
    "tdmap.operations.iteration.iterator": "tdmap.iterator",
    "tdmap.operations.iteration.map_iter": "tdmap.api",
    "tdmap.operations.iteration.samplers": "tdmap.operations.samplers",
    "tdmap.operations.keeping": "tdmap.keeping",
    "tdmap.operations.map": "tdmap.api",
    "tdmap.operations.output": "tdmap.placing",
    "tdmap.operations.permute": "tdmap.permute",
    "tdmap.operations.iteration.prefetch": "tdmap.prefetch",
    "tdmap.operations.reduce": "tdmap.reduction",
    "tdmap.operations.scatter": "tdmap.scatter",
    "tdmap.operations.shuffle": "tdmap.shuffling",
}


def known_as(module: str | None) -> str | None:
    """The name of a module in digests.

    Example:
        >>> known_as("tdmap.operations.reduce"), known_as("json")
        ('tdmap.reduction', 'json')
    """
    return _KNOWN_AS.get(module) or old_name(module) if module is not None else None
