/** @file comma_locale.h  Sets a locale with a decimal comma, and compiles one if none is
 * installed. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_COMMA_LOCALE_H
#define TESSERA_TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/** Sets a locale with a decimal comma, de_DE or fr_FR. If neither is installed, compiles de_DE into
 *  `folder` with localedef. False if that fails, for example because the machine lacks the
 *  sources of locales. */
static inline bool ts_comma_locale(const char *folder)
{
    char command[512];
    if (setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "fr_FR.UTF-8"))
        return true;
    snprintf(command, sizeof command,
             "localedef --no-archive -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", folder);
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
}

#define TS_NO_COMMA_LOCALE "no locale with a decimal comma is installed, nor can one be made"

#endif
