"""How fast the collectives and the store are, beside what else could do the same work.

``make bench`` runs all of it on hosts and ``make bench-gpu`` on GPUs; ``python -m bench --help``
lists the parts.  Every time stands beside a check of the numbers that were moved; a speed that was
not reached is said, and a wrong number fails the run.
"""
