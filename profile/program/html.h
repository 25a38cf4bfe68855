/** @file html.h  Writes a profile as one HTML page. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_PROGRAM_HTML_H
#define TS_PROFILE_PROGRAM_HTML_H

#include <tessera/tessera.h>

/** Writes a profile as one HTML file without scripts or external resources. Replaces an existing
 *  file. Errors: TS_ERR_IO, TS_ERR_MEMORY. */
ts_status write_html(const ts_profile *profile, const char *path);

#endif
