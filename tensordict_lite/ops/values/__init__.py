"""Operations on the values: element by element, comparisons, reductions."""
