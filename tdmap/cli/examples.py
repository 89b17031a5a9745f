"""The examples in the help of each command. The tests run every one of them."""

from __future__ import annotations

EXAMPLES = {
    "info": ["tdmap info photos", "tdmap info photos --json | jq .bytes"],
    "head": ["tdmap head photos -n 3", "tdmap head photos -n 24 --sheet photos.png"],
    "stats": ["tdmap stats photos", "tdmap stats photos image label --plot photos.png"],
    "verify": ["tdmap verify --store photos", "tdmap verify photos"],
    "map": [
        "tdmap map mymodule:normalise photos small --num-workers 2",
        "tdmap map mymodule.py:invert photos --in-place",
        "tdmap map mymodule:normalise photos large --resume",
        "tdmap map mymodule:normalise photos shared --shard 0/2",
    ],
    "convert": [
        "tdmap convert photos labels.csv --columns label,time",
        "tdmap convert photos - --to jsonl --columns label | head",
        "cat labels.csv | tdmap convert - labels --from csv",
    ],
    "ingest images": [
        "tdmap ingest images folder ingested --size 32",
        "tdmap ingest images folder all --on-error skip",
    ],
    "status": ["tdmap status large", "tdmap status large --json | jq .fraction"],
    "doctor": ["tdmap doctor"],
    "profile": [
        "tdmap profile mymodule:normalise photos",
        "tdmap profile mymodule:normalise photos --num-workers 2 --plot profile.png --trace trace.json",
    ],
    "bench": ["tdmap bench mymodule:normalise photos --rounds 2"],
}
"""By the words that choose the command."""
