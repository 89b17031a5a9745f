"""One expression, two libraries, one answer: the harness of the differential tests.

``compare_case`` evaluates a line of Python twice, once against the reference package and once against this
project, and says in words where the two outcomes part. Nothing here looks inside either library: results are
described through their public interface (``snapshot.py``), so the reference stays a black box.
"""

from tests.differential.harness.cases import Case, parse_cases
from tests.differential.harness.outcome import Outcome, compare_case, difference, evaluate

__all__ = ["Case", "Outcome", "compare_case", "difference", "evaluate", "parse_cases"]
