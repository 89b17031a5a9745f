"""The same work done with other libraries, each the way its own documentation recommends.

Every module has ``add_cases(bench, work)``; it raises ImportError where the library is not installed
(extra ``bench``).
"""
