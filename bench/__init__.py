"""Benchmarks of collectives and of the store, beside other libraries that do the same work.

``make bench`` runs all parts on hosts and ``make bench-gpu`` on GPUs; ``python -m bench --help``
lists them.  Every time stands beside a check of the values that were moved.  ``--floors``
shows the goals of the developers; a missed goal is printed, and a wrong value fails the run.
"""
