/* Replaces libstdc++'s <bits/specfun.h>, which <cmath> includes, by an empty file, so that nvcc
 * need not compile special functions that the backend's kernels do not use. */
// SPDX-License-Identifier: MIT
