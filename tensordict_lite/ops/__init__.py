"""Families of operations, a mixin each, over the primitives of ``kernel.py``. Where to find a method:

==================  =====================================================================================
``keys.py``         keys, items, pop, select, exclude, rename_key_, split_keys, flatten_keys, cat_tensors
``update.py``       update, update_, update_at_, replace
``shape.py``        view, reshape, permute, expand, flip, roll, names, auto_batch_size_
``rows.py``         split, unbind, gather, masked_select, where, pad
``values.py``       arithmetic, comparisons, clamp, fill_, apply, named_apply
``reduce.py``       sum, mean, all, any, min, max, cummin
``cast.py``         clone, to, float, contiguous, share_memory_, pin_memory, detach, grad, backward
``../api/``         convert (from_dict, to_dict, numpy, new_zeros), tables (from_pandas, to_csv, from_arrow),
                    storage (memmap, consolidate), modules (from_module, to_module, state_dict),
                    distributed (send, all_gather), engine (map)
==================  =====================================================================================

The other files hold functions: ``generated.py`` the tables of pointwise methods, ``comparison.py``, ``operands.py``
the other side of a binary operation, ``put.py`` writes into rows, ``arrow_types.py`` dates and times.
"""
