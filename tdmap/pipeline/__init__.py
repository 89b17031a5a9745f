"""Lazy chains of stages over a dataset.

pipeline.py   the class that users see
chain.py      what it is before it runs: a dataset, stages, and their plan
stages.py     what they wrote, one frozen object a stage
planning.py   which stages are arithmetic, which run in workers, which in the calling process
rows.py       rows at random access, several datasets included
work.py       what a worker does with a chunk
epochs.py     chunks of all epochs, and the jobs that compute them
iterators.py  a plan as it runs: rows and batches, with a position that can be saved
loader.py     iteration
terminals.py  writing, folding, collecting, counting
caching.py    `.cache(path)`
explain.py    the plan for people
"""

from __future__ import annotations

from tdmap.pipeline.loader import PipelineIterator
from tdmap.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineIterator"]
