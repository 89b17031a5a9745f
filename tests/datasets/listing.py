"""The columns of a dataset as plain lists."""

from typing import Any

from tensordict_lite import is_non_tensor, is_tensor_collection


def listed(data: Any) -> dict[str, list[Any]]:
    """Each column by its name, in their order; the names of nested ones are joined by dots."""
    found: dict[str, list[Any]] = {}
    for key in data.keys():
        value = data.get(key)
        if is_tensor_collection(value) and not is_non_tensor(value):
            found |= {f"{key}.{name}": values for name, values in listed(value).items()}
        else:
            found[key] = value.tolist()
    return found
