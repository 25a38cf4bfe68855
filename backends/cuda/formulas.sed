# Headers as one C string literal, without the lines that include others.
# SPDX-License-Identifier: MIT
/^#include/d
s/[\\"]/\\&/g
s/.*/"&\\n"/
