/* Nothing in place of the special functions that libstdc++'s <cmath> includes. */
// SPDX-License-Identifier: MIT
