"""Runs jobs on machines that lack something: imports torch once, and forks a child for each job.

A line of standard input is a request, `{"without": "memfd_create", "arguments": [...], "log": path}`; the answer is the
exit status of the job. What is lacking is taken away in the child, before `tdmap` is imported there, and by
`sitecustomize.py` in workers that are started afresh.
"""

import atexit
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch  # noqa: F401  (the point of all this)

HERE = Path(__file__).parent


def run(without: str, arguments: list[str], log: str) -> None:
    """The job, in this process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    os.environ["TDMAP_TEST_WITHOUT"] = without
    sys.argv = ["job.py", *arguments]
    runpy.run_path(str(HERE / "without" / "sitecustomize.py"))
    runpy.run_path(str(HERE / "job.py"), run_name="__main__")


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 1
            try:
                run(**json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                atexit._run_exitfuncs()  # as at the end of a program
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
