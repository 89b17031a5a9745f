"""Operations and pipelines over tables: columns of tensors beside jagged ones."""
