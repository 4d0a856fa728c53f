"""How many standard errors wide an interval is: quantiles of the normal and of Student's t distribution.

Written out here, since loading scipy for one number takes longer than a small report may take.
"""

from __future__ import annotations

import math

from llenvs_fast.core.errors import InvalidSettingError


def normal_quantile(confidence: float) -> float:
    """z such that a standard normal variable lies within ±z with probability `confidence`, e.g. 0.95 → 1.959964.

    Raises InvalidSettingError unless 0 < confidence < 1.
    """
    from statistics import NormalDist  # loads fractions and decimals

    if not 0.0 < confidence < 1.0:
        raise InvalidSettingError(f"confidence is {confidence!r}: give a number between 0 and 1, e.g. 0.95")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def student_quantile(confidence: float, df: float) -> float:
    """t such that a Student variable with `df` degrees of freedom lies within ±t with probability `confidence`.

    Any df > 0, whole or not. Newton's method on the tail, which is convex: from the normal quantile, which lies below,
    it never steps too far. From 2000 degrees on, the expansion around the normal quantile (Abramowitz and Stegun
    26.7.5). Raises InvalidSettingError unless 0 < confidence < 1 and df > 0.
    """
    t = normal_quantile(confidence)
    if not df > 0.0:
        raise InvalidSettingError(f"df is {df!r}: give degrees of freedom above 0")
    if df >= 2000.0:
        return _expanded(t, df)
    log_norm = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    for _ in range(200):
        density = math.exp(log_norm - (df + 1) / 2 * math.log1p(t * t / df))
        step = (_student_tails(t, df) - (1.0 - confidence)) / (2.0 * density)
        t += step
        if abs(step) <= 1e-13 * t:
            break
    return t


def _expanded(z: float, df: float) -> float:
    """The t quantile from the normal one, in powers of 1 / df."""
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df ** (power + 1) for power, term in enumerate(terms))


def _student_tails(t: float, df: float) -> float:
    """P(|T| > t): the regularised incomplete beta function I_x(df / 2, 1 / 2) at x = df / (df + t²)."""
    a, b, t2 = df / 2, 0.5, t * t
    x, y = df / (df + t2), t2 / (df + t2)
    if not y:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, y) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function (NIST DLMF 8.17.22), by Lentz's method."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d)
            c = 1.0 + term / c
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value
