/** @file init.h  The functions by which init.c brings each room up and down. */
// SPDX-License-Identifier: MIT
#ifndef TS_INIT_H
#define TS_INIT_H

#include "include/tessera/core.h"

/** Each registers what its room has and sets its members of ts_above; rooms below are up. */
void ts_core_install(void);
void ts_dispatch_install(void);
ts_status ts_ops_install(void);
ts_status ts_autograd_install(void);
ts_status ts_tracing_install(void);
ts_status ts_compile_install(void);
ts_status ts_layers_install(void);
ts_status ts_cpu_install(void);
/** Switches on the layers that TS_LAYERS names. */
void ts_layers_from_environment(void);
/** Begins the profile that TS_PROF asks for. */
void ts_profile_from_environment(void);
/** Prints that profile, once. */
void ts_profile_report(void);

/** Give back what the room has taken from the system. */
void ts_io_remove(void);
void ts_layers_remove(void);
void ts_autograd_remove(void);
void ts_dispatch_remove(void);
void ts_core_remove(void);

#endif
