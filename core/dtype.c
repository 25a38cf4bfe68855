/** @file dtype.c  Element types, devices by name. */
// SPDX-License-Identifier: MIT
#include "core/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const uint8_t ts_dtype_sizes[TS_DTYPE_COUNT] = {
    [TS_F64] = 8, [TS_F32] = 4, [TS_BF16] = 2, [TS_F16] = 2,
    [TS_I64] = 8, [TS_I32] = 4, [TS_U8] = 1,   [TS_BOOL] = 1,
};
static const char *const names[TS_DTYPE_COUNT] = {
    [TS_F64] = "f64", [TS_F32] = "f32", [TS_BF16] = "bf16", [TS_F16] = "f16",
    [TS_I64] = "i64", [TS_I32] = "i32", [TS_U8] = "u8",     [TS_BOOL] = "bool",
};
static bool valid(ts_dtype d) { return (unsigned)d < TS_DTYPE_COUNT; }

size_t ts_dtype_size(ts_dtype dtype) { return valid(dtype) ? ts_dtype_sizes[dtype] : 0; }
const char *ts_dtype_name(ts_dtype dtype) { return valid(dtype) ? names[dtype] : "?"; }
bool ts_dtype_is_float(ts_dtype dtype) { return dtype <= TS_F16; }

ts_dtype ts_dtype_promote(ts_dtype a, ts_dtype b)
{
    if (a == b || !valid(a) || !valid(b))
        return a;
    if ((a == TS_BF16 && b == TS_F16) || (a == TS_F16 && b == TS_BF16))
        return TS_F32;
    /* the enum runs from strongest to weakest, except for the pair above */
    return a < b ? a : b;
}

const char *ts_device_name(ts_device device)
{
    static _Thread_local char ring[8][32];
    static _Thread_local unsigned next;
    char *out = ring[next++ & 7];
    const char *key = ts_key_name(device.backend);
    size_t n = 0;
    for (; key[n] && n < 24; n++)
        out[n] = (char)(key[n] >= 'A' && key[n] <= 'Z' ? key[n] + 32 : key[n]);
    out[n] = 0;
    if (device.backend != TS_KEY_CPU && device.backend != TS_KEY_META)
        snprintf(out + n, sizeof ring[0] - n, ":%d", device.index);
    return out;
}

ts_status ts_device_from_name(const char *name, ts_device *device)
{
    if (!name || !device)
        return ts_error_set(TS_ERR_NULL,
                            "device_from_name: expected a name and a place for the device");
    char key[32];
    size_t n = 0;
    for (; name[n] && name[n] != ':' && n < sizeof key - 1; n++)
        key[n] = name[n];
    key[n] = 0;
    long index = 0;
    char *end = NULL;
    if (name[n] == ':') {
        index = strtol(name + n + 1, &end, 10);
        if (end == name + n + 1 || *end)
            index = -1;
    } else if (name[n]) {
        index = -1;
    }
    for (ts_key k = 0; index >= 0 && index < 256 && k < 16; k++) {
        if (strcmp(ts_key_name(k), "?") != 0 && strcasecmp(ts_key_name(k), key) == 0) {
            *device = (ts_device){k, (uint8_t)index};
            return TS_OK;
        }
    }
    return ts_error_set(TS_ERR_VALUE,
                        "device_from_name: expected a device such as cpu, cuda:0 or meta, got '%s'",
                        name);
}

ts_device ts_default_device(void) { return ts_thread_self()->device; }

ts_status ts_set_default_device(ts_device device)
{
    if (device.backend > 15 || strcmp(ts_key_name(device.backend), "?") == 0)
        return ts_error_set(TS_ERR_DEVICE,
                            "set_default_device: expected a known backend, got key %d",
                            device.backend);
    ts_thread_self()->device = device;
    return TS_OK;
}

const char *ts_version_string(void) { return TS_VERSION; }
