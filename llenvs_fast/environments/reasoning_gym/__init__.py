"""Environments from the package reasoning-gym: 105 generated single-turn datasets, and mixtures of them."""
