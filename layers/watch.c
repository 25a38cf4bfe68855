/** @file watch.c  Watching layers: registration, the callback for reports, TS_LAYERS. */
// SPDX-License-Identifier: MIT
#include "layers/watch.h"
#include "core/process.h"
#include "dispatch/registry.h"
#include "init.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    ts_layer_report_fn callback;
    void *payload;
    FILE *file;
} sink;

void ts_layers_report_to(ts_layer_report_fn callback, void *payload, FILE *file)
{
    sink.callback = callback;
    sink.payload = payload;
    sink.file = file;
}

void ts_watchers_install(void) { TS_FORK_GUARD(&lock); }

/** Registers the layer's key and its fallback for all ops, once. */
static ts_status register_key(ts_watcher *w)
{
    pthread_mutex_lock(&lock);
    ts_status status = TS_OK;
    if (!w->registered) {
        ts_registry_begin();
        status = ts_register_layer(w->layer, "backends", &w->key);
        if (status == TS_OK)
            status = ts_register_fallback(w->key, w->kernel, NULL);
        status = ts_registry_end(status);
        w->registered = status == TS_OK;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

ts_status ts_watcher_switch(ts_watcher *w, ts_layer_scope scope, bool on)
{
    if (scope != TS_THIS_THREAD && scope != TS_ALL_THREADS)
        return ts_error_set(
            TS_ERR_VALUE, "%s: argument 'scope': expected TS_THIS_THREAD or TS_ALL_THREADS, got %d",
            w->name, (int)scope);
    TS_TRY(register_key(w));
    return scope == TS_ALL_THREADS ? ts_layer_enable_all(w->key, on) : ts_layer_enable(w->key, on);
}

static int put_tensor(char *buffer, size_t size, const ts_tensor *t)
{
    char sizes[192];
    return snprintf(buffer, size, "%s %s", ts_format_sizes(sizes, sizeof sizes, t->sizes, t->ndim),
                    ts_dtype_name((ts_dtype)t->dtype));
}

const char *ts_watcher_describe(const ts_frame *f, const char *what, char *buffer, size_t size)
{
    char site[200];
    size_t used = (size_t)ts_frame_describe(f, buffer, size);
    for (int i = 0; i < f->nrets && used < size; i++) {
        used += (size_t)snprintf(buffer + used, size - used, i ? ", " : " -> ");
        if (used < size && f->rets[i].tag == TS_TAG_TENSOR)
            used += (size_t)put_tensor(buffer + used, size - used, f->rets[i].t);
        else if (used < size)
            used += (size_t)snprintf(buffer + used, size - used, "none");
    }
    if (what && used < size)
        used += (size_t)snprintf(buffer + used, size - used, ": %s", what);
    if (f->site && used < size)
        snprintf(buffer + used, size - used, " [%s]", ts_format_site(site, sizeof site, f->site));
    return buffer;
}

void ts_watcher_report(const ts_watcher *w, const ts_frame *f, const char *what)
{
    char text[1000];
    ts_watcher_describe(f, what, text, sizeof text);
    if (sink.callback) {
        ts_layer_report report = {w->name, f, text, f->site};
        TS_KEEP_MODES;
        ts_mask_push(0, TS_KEYSET(w->key));
        sink.callback(sink.payload, &report);
    } else if (sink.file) {
        fprintf(sink.file, "%s: %s\n", w->name, text);
    } else {
        ts_log_write("layers", "%s: %s", w->name, text);
    }
}

void ts_layers_from_environment(void)
{
    const char *names = getenv("TS_LAYERS");
    ts_watcher *const all[] = {&ts_watch_nans, &ts_watch_shapes, &ts_watch_determinism};
    if (!names || !names[0])
        return;
    sink.file = stderr;
    for (const char *p = names; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t length = strcspn(p, ",");
        bool known = false;
        for (int i = 0; i < TS_COUNTOF(all); i++)
            if (strlen(all[i]->name) == length && strncmp(all[i]->name, p, length) == 0)
                known = ts_watcher_switch(all[i], TS_ALL_THREADS, true) == TS_OK;
        if (!known)
            ts_log_write("warning",
                         "TS_LAYERS: expected nan, shapes or determinism, got '%.*s'; the word "
                         "is ignored",
                         (int)length, p);
    }
}
