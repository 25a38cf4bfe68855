/** @file small.h  A small profile.json as text, for tests of its reader. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_PROFILE_SMALL_H
#define TESTS_PROFILE_SMALL_H

/** A profile.json with only the members that ts_profile_read() requires: one row for a call, and
 *  one for the time outside of calls. */
static const char small_profile[] =
    "{\"schema_version\": 1, \"measured\": true, \"threads\": 1, \"machine\": {\"name\": \"m\", "
    "\"threads\": 1, \"gemm_flops\": 1e11, \"vector_flops\": 1e10, \"call_ns\": 20, "
    "\"entry_ns\": 10, \"stamp_ns\": 9, \"record_ns\": 20, \"measured_at\": 1, \"bandwidth\": "
    "[[1, 9e9], [2, 9e9], [3, 9e9], [4, 9e9], [5, 9e9], [6, 9e9], [7, 9e9], [8, 9e9]]}, "
    "\"wall_ns\": 100, \"profiler_ns\": 10, \"integrity\": {\"missing_share\": 0, "
    "\"lost_steps\": 0, \"shared_calls\": 0}, \"first_step\": 1, "
    "\"steps\": [[100, 60, 0, 30, 10]], "
    "\"rows\": [{\"op\": \"add\", \"layer\": \"CPU\", \"scope\": \"data\", \"call\": \"add(a)\", "
    "\"dtype\": \"f32\", \"kernel\": true, \"product\": false, \"update\": false, \"calls\": 1, "
    "\"unknown\": 0, \"self_ns\": 60, \"flops\": 15, \"bytes\": 180}, {\"op\": "
    "\"(unattributed)\", \"layer\": \"-\", \"scope\": \"\", \"call\": \"(unattributed)\", "
    "\"dtype\": \"-\", \"kernel\": false, \"product\": false, \"update\": false, \"calls\": 0, "
    "\"unknown\": 0, \"self_ns\": 30, \"flops\": 0, \"bytes\": 0}]}";

#endif
