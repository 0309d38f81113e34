"""Executors: how the blueprint's steps are run. `protocol` says what one is; `plain` is the specification."""
