"""The small model that ships with the package: its files, and how they were made.

`python -m llenvs_fast.embedded.train` makes it from nothing, `python -m llenvs_fast.embedded.measure` says how good it
is. The model card is README.md.
"""
