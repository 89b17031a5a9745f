"""Operations on the keys: get, set, update, rename, nest, select."""
