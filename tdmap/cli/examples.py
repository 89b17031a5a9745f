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
    "filter": [
        "tdmap filter 'label == 3' photos threes",
        "tdmap filter mymodule:is_bright photos bright --num-workers 2",
    ],
    "join": ["tdmap join photos threes both --on time", "tdmap join photos threes others --on time --how anti"],
    "sort": ["tdmap sort photos sorted --by label", "tdmap sort photos newest --by label --by time --descending"],
    "shuffle": ["tdmap shuffle photos shuffled --seed 0"],
    "sample": ["tdmap sample photos some -n 10 --seed 0", "tdmap sample photos tenth --frac 0.1 --weights time"],
    "top-k": ["tdmap top-k photos --by time -k 3", "tdmap top-k photos oldest --by time -k 10 --no-largest"],
    "unique": ["tdmap unique photos --by label"],
    "drop-duplicates": ["tdmap drop-duplicates photos once --by label"],
    "value-counts": [
        "tdmap value-counts photos --by label",
        "tdmap value-counts photos counts --by label --by meta/name",
    ],
    "train-test-split": ["tdmap train-test-split photos parts --test-size 0.25 --stratify label --seed 0"],
    "flat-map": ["tdmap flat-map mymodule:tiles photos tiles"],
    "reduce": [
        "tdmap reduce photos count mean:image:dim=all std:image:dim=0,2,3",
        "tdmap reduce photos max:label --json | jq '.results[\"max:label\"]'",
    ],
    "group": [
        "tdmap group photos --by label count mean:image:dim=all",
        "tdmap group photos --by label median:time --out groups",
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
    "resume": ["tdmap resume large --yes"],
    "doctor": ["tdmap doctor"],
    "profile": [
        "tdmap profile mymodule:normalise photos",
        "tdmap profile mymodule:normalise photos --num-workers 2 --plot profile.png --trace trace.json",
    ],
    "bench": ["tdmap bench --quick", "tdmap bench mymodule:normalise photos --quick"],
}
"""By the words that choose the command."""
