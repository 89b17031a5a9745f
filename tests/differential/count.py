"""How much of the public interface is drawn over how many kinds, and how many answers depart from the reference.

    python -m tests.differential.count

Draws every line of ``interface/expressions.py`` over every kind, which takes half a minute of a processor, and prints
what it finds; the exit status says whether every difference has a reason.
"""

import collections
import sys

from tests.differential.cases import ALL_CASES
from tests.differential.departures import DEPARTURES
from tests.differential.harness.namespace import PROJECT, REFERENCE
from tests.differential.interface.departures import OPEN, RULES, explained
from tests.differential.interface.drawing import parts
from tests.differential.interface.expressions import EXPRESSIONS
from tests.differential.interface.kinds import KINDS
from tests.differential.interface.methods import absent, drawn, elsewhere, public, undrawn


def main() -> int:
    """Draw, count, print."""
    names = public(REFERENCE) | public(PROJECT)
    print(
        f"{len(names)} public methods and properties: {len(drawn() & names)} drawn here, {len(elsewhere() & names)} in "
        f"other tests, {len(absent() & names)} left out, {len(undrawn())} drawn by nobody {sorted(undrawn()) or ''}"
    )
    print(f"{len(EXPRESSIONS)} lines x {len(KINDS)} kinds = {len(EXPRESSIONS) * len(KINDS)} answers compared")
    seen: collections.Counter[str] = collections.Counter()
    odd = []
    for expression in EXPRESSIONS:
        for kind in KINDS:
            found = parts(expression, kind)
            if found:
                rule = explained(expression.source, kind, found)
                if rule is None:
                    odd.append(f"{expression.source} | {kind} | {found[0]}")
                else:
                    seen[rule.reason] += 1
    departing = sum(seen[rule.reason] for rule in RULES)
    known = sum(seen[rule.reason] for rule in OPEN)
    print(f"{departing} depart on purpose, {known} are open, {len(odd)} have no reason")
    for reason, count in seen.most_common():
        print(f"  {count:5} {reason}")
    idle = [rule.reason for rule in [*RULES, *OPEN] if rule.reason not in seen]
    for line in [*(f"no reason: {line}" for line in odd), *(f"explains nothing: {reason}" for reason in idle)]:
        print(line)
    print(f"{len(ALL_CASES)} rows of case tables, {len(DEPARTURES)} departures on the page")
    return 1 if odd or idle or undrawn() else 0


if __name__ == "__main__":
    sys.exit(main())
