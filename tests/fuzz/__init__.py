"""Mutated files, settings and requests for every parser: each must give a value or one of our errors, quickly and modestly.

python -m tests.fuzz                       # the targets
python -m tests.fuzz safetensors 0 2000    # cases 0 to 1,999 of one; a case is made again by its number
"""
