/** @file device_times.c  Recording of device work by a backend while a profile records. */
// SPDX-License-Identifier: MIT
#include "dispatch/device_times.h"
#include "core/device.h"
#include "core/error.h"
#include "core/process.h"
#include "dispatch/device_events.h"
#include "dispatch/marks.h"
#include "dispatch/timers_state.h"

#include <stdio.h>
#include <string.h>

/* Written only while a profile starts or stops, or a backend is loaded. */
static ts_device_record record;
static char note[160];  /* see ts_device_times() */
static bool wanted;     /* between ts_device_times_begin() and ts_device_times_end() */
static bool by_events;  /* the backend's work is timed by events */
static ts_device_clock device_clock;
static ts_key recorder; /* key of the backend that made the last recording; TS_KEY_CPU: none */
static atomic_bool exists; /* see ts_device_times_exist() */
static pthread_mutex_t ending = PTHREAD_MUTEX_INITIALIZER; /* held while a recording ends */

void ts_device_times_install(void) { TS_FORK_GUARD(&ending); }
bool ts_device_times_exist(void) { return atomic_load(&exists); }

static uint64_t reset_part(int64_t reset) { return (uint64_t)reset % (1 << TS_TAG_RESET); }

bool ts_tag_is_current(uint64_t tag)
{
    return (tag >> TS_TAG_STEP) % (1 << TS_TAG_RESET) == reset_part(ts_timing.reset);
}

/** Libraries of the backend register exit() handlers at their first use. The profile must be read
 *  before these handlers run. Handlers run in reverse order of registration, so this function
 *  registers the profile's handler again at tags 1, 2, 4, 8, ... */
static void watch_end(void)
{
    static _Atomic uint32_t tags;
    uint32_t n = atomic_fetch_add_explicit(&tags, 1, memory_order_relaxed) + 1;
    if (TS_UNLIKELY((n & (n - 1)) == 0) && n)
        ts_process_watch_end();
}

/** The tag of a row (by its hash) or a graph (by its id) in the current step. */
static uint64_t tag_of(uint64_t hash, int64_t reset)
{
    uint64_t step = (uint64_t)get(&ts_timing.nsteps) % (1 << TS_TAG_STEP);
    return hash >> TS_TAG_ROW << TS_TAG_ROW | reset_part(reset) << TS_TAG_STEP | step;
}

void ts_device_times_tag(const ts_backend *backend, const ts_tally_row *row, int64_t reset)
{
    uint64_t tag = tag_of(row ? row->hash : 0, reset);
    if (TS_UNLIKELY(by_events)) {
        bool kernel = row && row->op < TS_ROW_GROUP && row->key < 16 && row->key != TS_KEY_CPU &&
                      ts_backend_of((ts_device){row->key, 0}) == backend;
        ts_device_events_tag(backend, tag, kernel);
    } else {
        backend->profile_tag(backend->state, tag);
    }
    watch_end();
}

/* ------------------------------------------------------------------------------- graphs ---- */

static struct {
    pthread_mutex_t lock;
    ts_graph_map *maps;
    int count, capacity;
} graphs = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void free_graph_maps(void)
{
    pthread_mutex_lock(&graphs.lock);
    for (int i = 0; i < graphs.count; i++)
        ts_sys_free(graphs.maps[i].rows);
    ts_sys_free(graphs.maps);
    graphs.maps = NULL;
    graphs.count = graphs.capacity = 0;
    pthread_mutex_unlock(&graphs.lock);
}

/** Index of the graph's map, which is made at the first call; -1 if out of memory. */
static int find_graph(uint64_t id, uint64_t launch_row, const ts_graph_part *const *works, int n)
{
    for (int i = graphs.count; i-- > 0;)
        if (graphs.maps[i].id == id && graphs.maps[i].launch_row == launch_row)
            return i;
    if (graphs.count == graphs.capacity) {
        int wanted = 2 * graphs.capacity + 16;
        void *grown = ts_sys_realloc(graphs.maps, (size_t)wanted * sizeof *graphs.maps);
        if (!grown)
            return -1;
        graphs.maps = grown;
        graphs.capacity = wanted;
    }
    uint64_t *rows = ts_sys_alloc((size_t)(n + 1) * sizeof *rows);
    if (!rows)
        return -1;
    for (int i = 0; i < n; i++)
        rows[i] = works[i] && works[i]->row ? works[i]->row->hash >> TS_TAG_ROW : launch_row;
    graphs.maps[graphs.count] = (ts_graph_map){id, launch_row, n, rows};
    return graphs.count++;
}

void ts_device_times_graph(const ts_backend *backend, const ts_tally_row *row, int64_t reset,
                           const void *graph, const ts_graph_part *const *works, int nworks)
{
    uint64_t id = ((uintptr_t)graph ^ row->hash ^ (uint64_t)reset << 40) * 0x9e3779b97f4a7c15u;
    if (by_events || !nworks)
        return;
    pthread_mutex_lock(&graphs.lock);
    int at = find_graph(id >> TS_TAG_ROW, row->hash >> TS_TAG_ROW, works, nworks);
    pthread_mutex_unlock(&graphs.lock);
    if (at >= 0)
        backend->profile_tag(backend->state, tag_of(id, reset));
}

const ts_graph_map *ts_device_times_graphs(int *count)
{
    *count = graphs.count;
    return graphs.maps;
}

/* ------------------------------------------------------------------------------- ranges ---- */

/* the backend that names ranges for other tools; NULL: none */
static _Atomic(const ts_backend *) ranges;
static bool wants_ranges;

static void take_ranges(const ts_backend *b)
{
    if (wants_ranges && b && b->profile_range)
        atomic_store(&ranges, b);
}

void ts_device_times_name_ranges(bool on)
{
    wants_ranges = on;
    atomic_store(&ranges, NULL);
    for (uint8_t k = 0; k < 16; k++)
        take_ranges(ts_backend_of((ts_device){k, 0}));
}

void ts_device_times_range_step(void)
{
    static _Thread_local const ts_backend *open; /* the backend of the open range */
    const ts_backend *b = atomic_load_explicit(&ranges, memory_order_acquire);
    if (open && open == b)
        b->profile_range(b->state, NULL);
    if (b)
        b->profile_range(b->state, "step");
    open = b;
}

void ts_device_times_range(const char *name)
{
    const ts_backend *b = atomic_load_explicit(&ranges, memory_order_acquire);
    if (TS_UNLIKELY(b != NULL))
        b->profile_range(b->state, name);
}

void ts_device_times_open_scope(const char *name) { ts_timers_scope(name); }

/** Moves the thread's error to `note`. */
static void move_error_to_note(void)
{
    snprintf(note, sizeof note, "%.159s", ts_error_message());
    ts_error_clear();
}

/** Reads the clocks of host and device at the start (end 0) or the end (end 1) of a recording.
 *  Keeps the reading of the device's clock that took the fewest host ticks. */
static void read_clock(const ts_backend *b, int end)
{
    int64_t closest = INT64_MAX;
    device_clock.ns[end] = 0;
    for (int i = 0; i < 20 && b->profile_clock && !by_events; i++) {
        int64_t before = ticks(), ns = b->profile_clock(b->state), apart = ticks() - before;
        if (ns > 0 && apart < closest) {
            closest = apart;
            device_clock.ticks[end] = before + apart / 2;
            device_clock.ns[end] = ns;
        }
    }
}

const ts_device_clock *ts_device_times_clock(void)
{
    return device_clock.ns[0] > 0 && device_clock.ns[1] > device_clock.ns[0] ? &device_clock : NULL;
}

void ts_device_times_join(const ts_backend *backend)
{
    take_ranges(backend);
    if (!backend || !backend->profile_begin || !wanted || atomic_load(&ts_timing.device))
        return;
    if (backend->device_count && backend->device_count(backend->state) <= 0) {
        ts_error_clear();
        return; /* there is nothing to record */
    }
    note[0] = 0;
    by_events = false;
    if (backend->profile_begin(backend->state) != TS_OK) {
        move_error_to_note();
        by_events = ts_device_events_begin(backend);
        ts_error_clear();
        if (!by_events)
            return;
    }
    atomic_store(&exists, true);
    atomic_store_explicit(&ts_timing.device, backend, memory_order_release);
    read_clock(backend, 0);
}

void ts_device_times_begin(void)
{
    record = (ts_device_record){0};
    note[0] = 0;
    wanted = true;
    recorder = TS_KEY_CPU;
    atomic_store(&exists, false);
    device_clock = (ts_device_clock){0};
    free_graph_maps();
    ts_marks_clear();
    for (uint8_t k = 0; k < 16; k++)
        ts_device_times_join(ts_backend_of((ts_device){k, 0}));
}

void ts_device_times_drop(void)
{
    const ts_backend *b = atomic_load_explicit(&ts_timing.device, memory_order_acquire);
    if (b && by_events)
        ts_device_events_drop();
    else if (b && b->profile_begin(b->state) != TS_OK)
        ts_error_clear(); /* old work stays, but ts_tag_is_current() excludes it */
}

/** Fetches the record of backend b. */
static void fetch(const ts_backend *b)
{
    ts_process_watch_end(); /* see watch_end(); a report at exit measures device ceilings too */
    for (uint8_t k = 0; k < 16; k++)
        recorder = ts_backend_of((ts_device){k, 0}) == b ? k : recorder;
    read_clock(b, 1);
    if ((by_events ? ts_device_events_end(b, &record) : b->profile_end(b->state, &record)) !=
        TS_OK) {
        record = (ts_device_record){0};
        move_error_to_note();
    }
}

void ts_device_times_end(void)
{
    pthread_mutex_lock(&ending);
    const ts_backend *b = atomic_exchange(&ts_timing.device, NULL);
    wanted = false;
    if (b)
        fetch(b);
    ts_device_times_name_ranges(false);
    pthread_mutex_unlock(&ending);
}

const ts_device_record *ts_device_times(const char **why)
{
    *why = note;
    return &record;
}

ts_device ts_device_of_times(void) { return (ts_device){recorder, 0}; }
