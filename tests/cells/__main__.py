"""`python -m tests.cells`: ask every cell, write those that fail to `failing.txt`, and print how many and why."""

import collections
import os
import tempfile
import warnings
from pathlib import Path

from tests.cells.test_cells import CELLS, FAILING, ask


def main() -> None:
    warnings.simplefilter("ignore")
    failing: dict[str, str] = {}
    start = os.getcwd()
    for cell in CELLS:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                ask(cell, Path(folder))
            except BaseException as error:  # pytest's own failures are no Exceptions
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
                failing[cell] = f"{type(error).__name__}: {str(error)[:100]}"
            os.chdir(start)
    FAILING.write_text("".join(f"{cell}\n" for cell in failing))
    print(f"{len(CELLS)} cells, {len(failing)} fail")
    for place, name in enumerate(("operation", "kind", "option")):
        print(f"by {name}:", dict(collections.Counter(cell.split("/")[place] for cell in failing).most_common()))
    for cell, why in failing.items():
        print(f"  {cell}: {why!r}")


if __name__ == "__main__":
    main()
