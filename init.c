/** @file init.c  Brings the library up room by room when it is loaded, and down at its end. */
// SPDX-License-Identifier: MIT
#include "init.h"
#include "core/process.h"
#include "dispatch/registry.h"

/** The rooms (folders) that register ops, kernels or layers, the lowest room first. */
static const struct {
    const char *name;
    ts_status (*install)(void);
} rooms[] = {
    {"ops", ts_ops_install},
    {"autograd", ts_autograd_install},
    {"tracing", ts_tracing_install},
    {"compile", ts_compile_install},
    {"layers", ts_layers_install},
    {"backends/cpu", ts_cpu_install},
};

static void from_environment(void)
{
    ts_layers_from_environment();
    ts_profile_from_environment();
}

__attribute__((constructor(110))) static void init(void)
{
    const char *room = "";
    ts_status status = TS_OK;
    ts_core_install();
    ts_dispatch_install();
    ts_registry_begin(); /* all registrations become visible together, or none */
    for (int i = 0; i < TS_COUNTOF(rooms) && status == TS_OK; i++) {
        room = rooms[i].name;
        status = rooms[i].install();
    }
    if (ts_registry_end(status) == TS_OK)
        from_environment();
    else
        ts_log_write("init", "installing %s failed: %s", room, ts_error_message());
}

/* This destructor has no priority: at dlclose() it then runs before the handlers of atexit(). */
__attribute__((destructor)) static void end(void)
{
    ts_profile_report(); /* does nothing if the handler of exit() has printed the report */
    if (ts_process_ends())
        return;
    ts_io_remove();
    ts_layers_remove();
    ts_core_remove(); /* before ts_dispatch_remove(): it calls the hook thread_ended of dispatch/ */
    ts_autograd_remove();
    ts_dispatch_remove();
    ts_alloc_remove();
}
