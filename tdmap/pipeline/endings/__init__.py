"""What ends a pipeline other than iterating it.

running.py    folding, collecting, counting
writing.py    a folder, or rows that exist already
caching.py    a folder in the middle of a chain, and how it is known whose rows it holds
"""
