"""`python -m tests.frozen`: record results, public names and folders anew."""

import argparse
import json
import shutil
import tempfile
import warnings
from pathlib import Path

import tensordict

from tests.cells.kinds import KINDS
from tests.frozen.frozen import DIGESTS, FOLDERS, PUBLIC, ROWS, WRITTEN, digest, frozen_operations, public_names


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    warnings.simplefilter("ignore")
    digests = {}
    for name, operation in frozen_operations().items():
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as folder:
                digests[f"{name}/{kind}"] = digest(operation, kind, 1, Path(folder))
    DIGESTS.write_text(json.dumps(digests, indent=0, sort_keys=True) + "\n")
    PUBLIC.write_text(public_names())
    shutil.rmtree(FOLDERS, ignore_errors=True)
    for kind in WRITTEN:
        with tempfile.TemporaryDirectory() as folder:
            data = KINDS[kind](Path(folder))[:ROWS]
            data.memmap(FOLDERS / "tensordict_lite" / kind)
            as_dict = data.to_tensordict().to_dict()
            tensordict.TensorDict(as_dict, data.batch_size).memmap(FOLDERS / "reference" / kind)


if __name__ == "__main__":
    main()
