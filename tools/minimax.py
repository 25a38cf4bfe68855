#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Derives the polynomial coefficients in backends/cpu/vmath.h and vmath_d.h.

    tools/minimax.py            lists the names
    tools/minimax.py exp log    prints the coefficients of these, lowest power first

Each entry is a function g on an interval, a degree, and a weight that converts an error of the
polynomial to a relative error of the function in vmath.h. Remez' exchange algorithm runs on a dense
grid in multiple precision; the coefficients are then rounded to their type. Needs mpmath
(python3-mpmath).
"""
import struct
import sys

if __name__ == "__main__" and any(name.startswith("-") for name in sys.argv[1:]):
    print(__doc__)
    sys.exit(0 if sys.argv[1:] == ["--help"] else 2)

from mpmath import mp, mpf  # noqa: E402

mp.dps = 40
GRID = 1500


def to_float(x):
    return mpf(struct.unpack("f", struct.pack("f", float(x)))[0])


def to_double(x):
    return mpf(float(x))


def solve_on(points, powers, target, weight):
    """Coefficients with an error of equal size and alternating sign at the points."""
    n = len(points)
    a = mp.matrix(n, n)
    b = mp.matrix(n, 1)
    for i, x in enumerate(points):
        for j, p in enumerate(powers):
            a[i, j] = x**p
        a[i, n - 1] = (-1) ** i / weight(x)
        b[i] = target(x)
    return list(mp.lu_solve(a, b))[:-1]


def remez(target, weight, lo, hi, powers):
    """Minimax coefficients for sum c_p x^p, and the largest weighted error."""
    n = len(powers) + 1
    grid = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (i + mpf(1) / 2) / GRID)
            for i in range(GRID)]
    values = [target(x) for x in grid]
    weights = [abs(weight(x)) for x in grid]
    table = dict(zip(grid, zip(values, weights)))
    at = [round((GRID - 1) * i / (n - 1)) for i in range(n)]  # grid points are Chebyshev nodes
    for _ in range(40):
        points = [grid[i] for i in at]
        c = solve_on(points, powers, lambda x: table[x][0], lambda x: table[x][1])
        errors = []
        for x, v, w in zip(grid, values, weights):
            p = mpf(0)
            for power, k in zip(powers, c):
                p += k * x**power
            errors.append((p - v) * w)
        # One extremum for each run of equal sign, then the n consecutive ones that are largest.
        runs = []
        for i, e in enumerate(errors):
            if runs and (errors[runs[-1]] >= 0) == (e >= 0):
                if abs(e) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n:
            runs.pop(0 if abs(errors[runs[0]]) < abs(errors[runs[-1]]) else -1)
        worst = max(abs(e) for e in errors)
        if len(runs) < n or runs == at or worst < 1.0005 * min(abs(errors[i]) for i in runs):
            return c, worst
        at = runs
    return c, worst


def fit(g, weight, lo, hi, degree, kind):
    lo, hi = mpf(lo), mpf(hi)
    c, ideal = remez(g, weight, lo, hi, list(range(degree + 1)))
    c = [kind(x) for x in c]
    grid = [lo + (hi - lo) * i / GRID for i in range(GRID + 1)]
    real = max(abs((mp.polyval(c[::-1], x) - g(x)) * weight(x)) for x in grid)
    return c, ideal, real


def away(f, limit):
    """f(x), or `limit` for x = 0, where f is not defined."""
    return lambda x: f(x) if x else limit


LN2 = mp.log(2)
third = mpf(1) / 3


def log_rest(x):  # log(1 + x) = x - x^2/2 + x^3 g(x)
    return (mp.log1p(x) - x + x * x / 2) / x**3 if abs(x) > 1e-6 else third - x / 4


def log2_rest(x):  # log2(1 + x) = x / ln 2 + x^2 g(x)
    return (mp.log1p(x) - x) / x**2 / LN2 if abs(x) > 1e-8 else (-mpf(1) / 2 + x / 3) / LN2


def tail(t):  # exp(t^2/2) * Phi(-t)
    return mp.exp(t * t / 2) * mp.erfc(t / mp.sqrt(2)) / 2


def tail_of_v(c, mid):  # v = u - mid, u = 1 / (1 + t/c) maps [0, inf) to (0, 1]
    return lambda v: tail((1 / (v + mid) - 1) * c) / (v + mid)


def tail_row(c, mid, t, degree, kind):  # t: the largest argument
    g, mid = tail_of_v(mpf(c), mpf(mid)), mpf(mid)
    return g, lambda v: 1 / g(v), c / (c + mpf(t)) - mid, 1 - mid, degree, kind


def log_of_s(z):  # log(1 + f) = 2 s + s z g(z), s = f / (2 + f), z = s^2
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / (s * z) if z > 1e-12 else mpf(2) / 3 + z * 2 / 5


def log_of_s_rest(z):  # log(1 + f) = 2 s + s z (2/3 + z g(z))
    return (log_of_s(z) - mpf(2) / 3) / z if z > 1e-10 else mpf(2) / 5 + z * 2 / 7


def sin_rest(z):  # sin(x) = x + x z g(z), z = x^2
    return (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-12 else -mpf(1) / 6 + z / 120


def cos_rest(z):  # cos(x) = 1 - z/2 + z^2 g(z)
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > 1e-8 else mpf(1) / 24 - z / 720


def asin_rest(z):  # asin(x) = x + x z g(z)
    return (mp.asin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-12 else mpf(1) / 6 + z * 3 / 40


def atan_rest(z):  # atan(x) = x + x z g(z)
    return (mp.atan(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-12 else -third + z / 5


def erf_rest(z):  # erf(x) = x + x g(z)
    return mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z > 1e-20 else 2 / mp.sqrt(mp.pi) - 1 - z / 3


ERF_SPLIT = mpf(1)
ATAN_SPLIT = mp.tan(mp.pi / 8)

POLYNOMIALS = {
    # exp(x) = 1 + x + x^2 g(x)
    "exp": (lambda x: (mp.expm1(x) - x) / x**2 if abs(x) > 1e-8 else mpf(1) / 2 + x / 6,
            lambda x: x**2 / mp.exp(x), -0.3467, 0.3467, 4, to_float),
    # expm1(x) = x + x^2 g(x), to a relative error of expm1
    "expm1": (lambda x: (mp.expm1(x) - x) / x**2 if abs(x) > 1e-8 else mpf(1) / 2 + x / 6,
              lambda x: x**2 / mp.expm1(x) if x else mpf(0), -0.3467, 0.3467, 5, to_float),
    # 2^x = 1 + x g(x)
    "exp2": (away(lambda x: mp.expm1(x * LN2) / x, LN2), lambda x: x / mp.power(2, x),
             -0.5, 0.5, 5, to_float),
    "log": (log_rest, lambda x: x**3 / mp.log1p(x) if x else mpf(0), -third, third, 7, to_float),
    "log2": (log2_rest, lambda x: x**2 * LN2 / mp.log1p(x) if x else mpf(0), -third, third, 8,
             to_float),
    "log10": (lambda x: log2_rest(x) * LN2 / mp.log(10),
              lambda x: x**2 * mp.log(10) / mp.log1p(x) if x else mpf(0), -third, third, 8,
              to_float),
    # The logarithm of pow(), in f64
    "pow_log2": (log2_rest, lambda x: x**2 * LN2 / mp.log1p(x) if x else mpf(0), -third, third, 11,
                 to_double),
    # sin(x) = x + x z g(z), cos(x) = 1 - z/2 + z^2 g(z), z = x^2
    "sin": (lambda z: (mp.sin(mp.sqrt(z)) / mp.sqrt(z) - 1) / z if z > 1e-12 else -mpf(1) / 6,
            lambda z: z, 0, 0.6169, 2, to_float),
    "cos": (lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2 if z > 1e-8 else mpf(1) / 24,
            lambda z: z**2, 0, 0.6169, 2, to_float),
    # erf(x) = x + x g(z) for |x| <= 1, z = x^2
    "erf": (lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1 if z > 1e-20 else 2 / mp.sqrt(mp.pi) - 1,
            lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)) if z else mpf(1), 0, ERF_SPLIT, 6, to_float),
    # erfc(x) = exp(-x (1 + g(x))) for x in [1, 4], absolute error of erfc
    "erfc": (lambda x: -mp.log(mp.erfc(x)) / x - 1, lambda x: x * mp.erfc(x), ERF_SPLIT, 4, 8,
             to_float),
    "asin": (asin_rest, lambda z: z, 0, 0.25, 4, to_float),
    "atan": (atan_rest, lambda z: z, 0, ATAN_SPLIT**2, 3, to_float),
    # Phi(-t) = exp(-t^2/2) u g(u - 5/8), u = 1 / (1 + t/2)
    "normal_tail": tail_row(2, 0.625, 15, 11, to_float),
    # The same for vmath_d.h
    "exp_d": (lambda x: (mp.expm1(x) - x) / x**2 if abs(x) > 1e-8 else mpf(1) / 2 + x / 6,
              lambda x: x**2 / mp.exp(x), -0.3467, 0.3467, 9, to_double),
    "expm1_d": (lambda x: (mp.expm1(x) - x) / x**2 if abs(x) > 1e-8 else mpf(1) / 2 + x / 6,
                lambda x: x**2 / mp.expm1(x) if x else mpf(0), -0.3467, 0.3467, 10, to_double),
    "exp2_d": (away(lambda x: mp.expm1(x * LN2) / x, LN2), lambda x: x / mp.power(2, x),
               -0.5, 0.5, 11, to_double),
    "log_d": (log_of_s, lambda z: z, 0, mpf("0.0295"), 6, to_double),
    "log_parts_d": (log_of_s_rest, lambda z: z * z / 2, 0, mpf("0.0295"), 6, to_double),
    "sin_d": (sin_rest, lambda z: z, 0, 0.6169, 5, to_double),
    "cos_d": (cos_rest, lambda z: z**2, 0, 0.6169, 5, to_double),
    "asin_d": (asin_rest, lambda z: z, 0, 0.25, 11, to_double),
    "atan_d": (atan_rest, lambda z: z, 0, ATAN_SPLIT**2, 9, to_double),
    "erf_d": (erf_rest, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)) if z else mpf(1), 0, ERF_SPLIT,
              12, to_double),
    # erfc(x) = exp(-x (1 + g(x - 7/2))) for x in [1, 6], absolute error of erfc
    "erfc_d": (lambda v: -mp.log(mp.erfc(v + 3.5)) / (v + 3.5) - 1,
               lambda v: (v + 3.5) * mp.erfc(v + 3.5), ERF_SPLIT - mpf(3.5), 2.5, 17, to_double),
    # Phi(-t) = exp(-t^2/2) u g(u - 9/16), u = 1 / (1 + t/5)
    "normal_tail_d": tail_row(5, 0.5625, 40, 22, to_double),
}


def main():
    names = sys.argv[1:]
    if not names:
        print("\n".join(POLYNOMIALS))
    if unknown := set(names) - set(POLYNOMIALS):
        sys.exit(f"minimax.py: unknown names: {', '.join(sorted(unknown))}")
    for name in names:
        g, weight, lo, hi, degree, kind = POLYNOMIALS[name]
        c, ideal, real = fit(g, weight, lo, hi, degree, kind)
        digits = 9 if kind is to_float else 17
        suffix = "f" if kind is to_float else ""
        print(f"{name}: error 2^{float(mp.log(ideal, 2)):.1f} ideal, "
              f"2^{float(mp.log(real, 2)):.1f} rounded")
        print(", ".join(f"{float(x):.{digits}g}" + suffix for x in c))


if __name__ == "__main__":
    main()
