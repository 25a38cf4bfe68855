/** @file init.h  The functions with which init.c initialises and releases each room of the library.
 * A room is a top-level folder. */
// SPDX-License-Identifier: MIT
#ifndef TS_INIT_H
#define TS_INIT_H

#include "include/tessera/core.h"

/** Each function installs its room: registers locks for fork() and the room's ops, kernels, rules
 *  or layers, reads environment variables, and sets the room's members of ts_above (core/hooks.h).
 *  init.c calls the functions in this order. */
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
/** Begins a profile if the environment variable TS_PROF requests one. */
void ts_profile_from_environment(void);
/** Ends the profile of TS_PROF and writes its report; later calls do nothing. */
void ts_profile_report(void);

/** Each function releases the memory and other resources of its room, when the library unloads. */
void ts_io_remove(void);
void ts_layers_remove(void);
void ts_autograd_remove(void);
void ts_dispatch_remove(void);
void ts_core_remove(void);

#endif
