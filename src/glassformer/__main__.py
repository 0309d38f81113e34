"""`python -m glassformer` is the command `glass`."""

from glassformer.cli import main

main()
