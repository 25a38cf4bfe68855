# Writes headers as one C string literal, without their #include lines.
# SPDX-License-Identifier: MIT
/^#include/d
s/[\\"]/\\&/g
s/.*/"&\\n"/
