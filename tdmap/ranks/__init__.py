"""Many ranks, one dataset: programs that torchrun has started share the rows of one operation.

    rank.py      a rank, and which chunks are its own
    shard.py     which rank this program is
    folder.py    the folder that all ranks write: who is at work there, and what they have done
    running.py   `map(shard=...)`: into a folder, into a dataset, in place, and in memory
    merging.py   `merge_shards`: the result, once every rank has done its part

Ranks never talk to each other. What they have in common is a folder: a journal each, and a lock that is held for
moments. So a rank may run before, after or beside the others, on any machine that sees the folder.
"""
