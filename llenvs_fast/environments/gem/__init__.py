"""Environments from the package gem-llm: multi-turn text games that need no data, 24 of them."""
