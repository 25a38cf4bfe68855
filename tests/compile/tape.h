/**
 * @file tape.h  A mock device that supports capture. The host cannot read the device's memory
 * (offset.h).
 *
 * A capture is a list of tasks. A part is the tasks that are queued between one capture_part() and
 * the next. If the library has passed an order of parts (capture_order()), each replay runs the
 * parts in a drawn order that keeps all pairs. The device counts calls that CUDA forbids while a
 * stream captures: allocations, copies from and to the host, waits. It overwrites new and freed
 * memory.
 */
// SPDX-License-Identifier: MIT
#ifndef TESTS_COMPILE_TAPE_H
#define TESTS_COMPILE_TAPE_H

#include "tests/dispatch/offset.h"
#include "tests/tracing/common.h"

/** A task queued by a kernel. */
typedef struct task {
    void (*run)(const struct task *), (*end)(const struct task *); /* end: frees it; may be NULL */
    ts_space space;
    double numbers[2];
    void *to, *from;
    int64_t n;
    ts_rng_state rng;
    int part;
} task;

struct ts_capture {
    task *kept, *fresh; /* tasks of the graph; tasks of the running capture */
    int nkept, nfresh, part;
    ts_part_pair *pairs; /* order of the parts of `kept`; NULL: parts run by ascending number */
    int npairs, parts;   /* number of pairs; largest number of a part + 1 */
    int *state;          /* for a replay: the next task of each part, and whether the part is
                            done */
    int groups;          /* groups_run when the capture began */
    bool whole;          /* a replay does not run tasks of other parts between those of a part,
                            because groups share memory */
};

static offset_state memory = {.devices = 2};
static _Thread_local struct ts_capture *capturing; /* running capture, also used as its stream */
static int captures;                 /* captures not yet freed */
static int begun;                    /* captures begun so far */
static int groups_run;               /* groups run so far */
static int ordered;                  /* captures with an order of parts */
static int swapped;                  /* tasks run after one of a part with a larger number */
static _Atomic int forbidden;        /* forbidden calls during captures */
static bool refuses;                 /* the device refuses captures */
static _Thread_local ts_status run_status; /* status of the last task that can fail */
static _Thread_local task *described; /* if set, queue() stores a kernel's task here, for a group */

static void end_tasks(const task *t, int n)
{
    for (int i = 0; i < n; i++)
        if (t[i].end)
            t[i].end(&t[i]);
}

/** Stores the task in *described if that is set. Otherwise adds it to the capture if `stream` is
 *  one, or runs and ends it. */
static ts_status queue(ts_stream *stream, task t)
{
    struct ts_capture *c = (struct ts_capture *)stream;
    task *larger;
    run_status = TS_OK;
    if (described) {
        *described = t;
        return TS_OK;
    }
    if (!c) {
        t.run(&t);
        end_tasks(&t, 1);
        return run_status;
    }
    ck_assert_ptr_eq(c, capturing);
    if (!(larger = realloc(c->fresh, (size_t)(c->nfresh + 1) * sizeof t))) {
        end_tasks(&t, 1);
        return ts_error_set(TS_ERR_MEMORY, "no memory for a task");
    }
    c->fresh = larger;
    t.part = c->part;
    c->fresh[c->nfresh++] = t;
    return TS_OK;
}

/* -------------------------------------------------------------------------------- memory ---- */

static void run_copy(const task *t)
{
    memcpy(from_handle(t->to), from_handle(t->from), (size_t)t->n);
}

static void *allocate(void *state, int index, int64_t bytes, ts_stream *stream)
{
    forbidden += capturing != NULL;
    char *p = offset_allocate(state, index, bytes, stream);
    if (p)
        memset(from_handle(p), 0xab, (size_t)bytes);
    return p;
}
static void release(void *state, int index, void *data, int64_t bytes)
{
    memset(from_handle(data), 0xcd, (size_t)bytes);
    offset_free(state, index, data, bytes);
}
static ts_status copy_in(void *state, int index, void *to, const void *from, int64_t bytes,
                         ts_stream *stream)
{
    forbidden += capturing != NULL;
    return offset_in(state, index, to, from, bytes, stream);
}
static ts_status copy_out(void *state, int index, void *to, const void *from, int64_t bytes,
                          ts_stream *stream)
{
    forbidden += capturing != NULL;
    return offset_out(state, index, to, from, bytes, stream);
}
static ts_status copy_within(void *state, int index, void *to, const void *from, int64_t bytes,
                             ts_stream *stream)
{
    (void)state, (void)index;
    return queue(stream, (task){.run = run_copy, .to = to, .from = (void *)from, .n = bytes});
}
static ts_status synchronize(void *state, int index, ts_stream *stream)
{
    (void)state, (void)index, (void)stream;
    forbidden += capturing != NULL;
    return TS_OK;
}

/* ------------------------------------------------------------------------------- capture ---- */

static ts_status capture_begin(void *state, int index, ts_capture **capture, ts_stream **stream)
{
    (void)state, (void)index;
    if (refuses)
        return ts_error_set(TS_ERR_UNSUPPORTED, "the mock refuses");
    if (!*capture) {
        if (!(*capture = calloc(1, sizeof(ts_capture))))
            return ts_error_set(TS_ERR_MEMORY, "no memory for a capture");
        captures++;
    }
    capturing = *capture;
    capturing->nfresh = 0;
    capturing->part = -1;
    capturing->groups = groups_run;
    begun++;
    *stream = (ts_stream *)capturing;
    return TS_OK;
}
static ts_status capture_part(void *state, int index, ts_capture *c, int part)
{
    (void)state, (void)index;
    ck_assert_ptr_eq(c, capturing);
    ck_assert_int_lt(c->part, part);
    c->part = part;
    if (!c->kept)
        c->parts = part + 1;
    return TS_OK;
}
static ts_status capture_order(void *state, int index, ts_capture *c, const ts_part_pair *pairs,
                               int n)
{
    (void)state, (void)index;
    ck_assert_ptr_eq(c, capturing);
    ck_assert_ptr_null(c->kept);
    ck_assert_ptr_null(c->pairs);
    for (int i = 0; i < n; i++)
        ck_assert(0 <= pairs[i].before && pairs[i].before < pairs[i].after &&
                  pairs[i].after < c->parts);
    c->state = malloc((2 * (size_t)c->parts + 1) * sizeof *c->state);
    if (!c->state || !(c->pairs = malloc(((size_t)n + 1) * sizeof *pairs)))
        return ts_error_set(TS_ERR_MEMORY, "no memory for an order");
    if (n)
        memcpy(c->pairs, pairs, (size_t)n * sizeof *pairs);
    c->npairs = n;
    c->whole = groups_run != c->groups;
    ordered++;
    return TS_OK;
}
static ts_status capture_end(void *state, int index, ts_capture *c, int64_t *launches)
{
    (void)state, (void)index;
    capturing = NULL;
    if (!c->kept) {
        c->kept = c->fresh;
        c->nkept = c->nfresh;
        c->fresh = NULL;
        c->nfresh = 0;
    } else {
        int to = 0;
        for (int i = 0; i < c->nfresh; i++, to++) {
            while (to < c->nkept && c->kept[to].part < c->fresh[i].part)
                to++;
            if (to == c->nkept || c->kept[to].part != c->fresh[i].part ||
                c->kept[to].run != c->fresh[i].run)
                return ts_error_set(TS_ERR_STATE, "a part is of other kernels than before");
            task before = c->kept[to];
            c->kept[to] = c->fresh[i];
            c->fresh[i] = before;
        }
        end_tasks(c->fresh, c->nfresh);
        c->nfresh = 0;
    }
    *launches = c->nkept;
    return TS_OK;
}
/** Runs the first task of a part (-1: of any part) whose index in c->kept is at least *at, and sets
 *  *at to the next index. False if there is none. */
static bool run_next(const ts_capture *c, int part, int *at)
{
    while (*at < c->nkept && part >= 0 && c->kept[*at].part != part)
        ++*at;
    if (*at == c->nkept)
        return false;
    c->kept[*at].run(&c->kept[*at]);
    ck_assert_msg(run_status == TS_OK, "%s", ts_error_message());
    ++*at;
    return true;
}
/** Runs the tasks in a drawn order that keeps all pairs. */
static void run_parts(const ts_capture *c)
{
    static uint32_t draw = 1;
    int *next = c->state, *done = next + c->parts;
    memset(next, 0, 2 * (size_t)c->parts * sizeof *next);
    for (int left = c->parts, most = -1; left > 0;) {
        int part = -1, ready = 0;
        for (int p = 0; p < c->parts; p++) {
            bool waits = done[p];
            for (int i = 0; i < c->npairs; i++)
                waits |= c->pairs[i].after == p && !done[c->pairs[i].before];
            draw = draw * 1664525 + 1013904223;
            if (!waits && (draw >> 8) % (uint32_t)++ready == 0)
                part = p;
        }
        ck_assert_int_ge(part, 0);
        swapped += part < most;
        most = part > most ? part : most;
        bool more = run_next(c, part, &next[part]);
        while (more && c->whole)
            more = run_next(c, part, &next[part]);
        done[part] = !more;
        left -= !more;
    }
}
static ts_status capture_replay(void *state, int index, ts_capture *c, ts_stream *stream)
{
    (void)state, (void)index;
    ck_assert_ptr_null(stream);
    run_status = TS_OK;
    int at = 0;
    if (c->pairs)
        run_parts(c);
    while (!c->pairs && run_next(c, -1, &at))
        ;
    return TS_OK;
}
static void capture_free(void *state, int index, ts_capture *c)
{
    (void)state, (void)index;
    if (capturing == c)
        capturing = NULL;
    captures--;
    end_tasks(c->kept, c->nkept);
    end_tasks(c->fresh, c->nfresh);
    free(c->kept);
    free(c->fresh);
    free(c->pairs);
    free(c->state);
    free(c);
}

static const ts_backend mock = {
    OFFSET_BACKEND("TAPE", TS_BACKEND_CPU_FALLBACK, &memory),
    .synchronize = synchronize,
    .capture_begin = capture_begin, .capture_part = capture_part, .capture_end = capture_end,
    .capture_replay = capture_replay, .capture_free = capture_free,
    .capture_order = capture_order,
};

/* -------------------------------------------------------------------------------- groups ---- */

enum { INSIDE = 64, INSIDE_FLOATS = 1024 }; /* most values inside a group; most elements of each */
static int calls_run;                /* calls in the groups that groups_run counts */
static bool refuses_groups;          /* the device has no kernel for any group */
static int new_kernels;              /* number of following groups that report a compilation */

static ts_status describe(ts_frame *f, ts_kernel kernel, task *t)
{
    *t = (task){.run = NULL};
    described = t;
    ts_status status = kernel(f);
    described = NULL;
    return status;
}
/** Accepts pointwise kernels that queue one task and need no cast. */
static bool group_takes(void *state, ts_frame *f, ts_kernel kernel)
{
    (void)state;
    task t;
    for (int i = 0; i < f->nargs; i++) /* the mock does not cast */
        if (f->args[i].tag == TS_TAG_TENSOR && ts_dtype_of(f->args[i].t) != ts_kernel_dtype(f))
            return false;
    return describe(f, kernel, &t) == TS_OK && t.space.ndim > 0;
}
/** The mock's group_takes and group_run, which tests with other kernels replace. */
static bool group_takes(void *state, ts_frame *f, ts_kernel kernel);
static ts_status group_run(void *state, int index, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report);
static bool (*takes_group)(void *, ts_frame *, ts_kernel) = group_takes;
static ts_status (*runs_group)(void *, int, const ts_group_call *, int, ts_stream *,
                               ts_group_report *) = group_run;

/** Runs a group call by call; values that exist only inside the group are in `inside`. */
static ts_status group_run(void *state, int index, const ts_group_call *calls, int count,
                           ts_stream *stream, ts_group_report *report)
{
    (void)state, (void)index;
    static float inside[INSIDE][INSIDE_FLOATS];
    const ts_tensor *owners[INSIDE];
    int n = 0;
    if (refuses_groups)
        return ts_error_set(TS_ERR_UNSUPPORTED, "the mock has no kernel");
    for (int c = 0; c < count; c++) {
        task t;
        TS_TRY(describe(calls[c].frame, calls[c].kernel, &t));
        for (int k = 0; k < t.space.operands; k++) {
            ts_operand *o = &t.space.operand[k];
            const ts_tensor *of = k ? calls[c].frame->args[o->arg].t : calls[c].frame->rets[0].t;
            int i = 0;
            if (o->host || ts_kernel_data(of))
                continue;
            while (i < n && owners[i] != of)
                i++;
            ck_assert(i < n || (k == 0 && n < INSIDE && ts_numel(of) <= INSIDE_FLOATS));
            owners[i] = of;
            n += i == n;
            o->data = to_handle(inside[i]);
        }
        TS_TRY(queue(stream, t));
    }
    groups_run++;
    calls_run += count;
    *report = (ts_group_report){.launches = 1, .compile_ms = new_kernels > 0 ? 1.5 : 0};
    new_kernels--;
    return TS_OK;
}

/** The mock's epilogue_cost; NULL: products have no epilogues. */
static int64_t (*costs_epilogue)(void *, const ts_group_call *, int);

static int joined_run; /* groups with members run so far */
/** Runs the members as groups, the last one first. */
static ts_status group_run_members(void *state, int index, const ts_group_call *calls, int count,
                                   int members, ts_stream *stream, ts_group_report *report)
{
    ts_status status = TS_OK;
    ck_assert_int_gt(members, 1);
    for (int m = members - 1; m >= 0 && status == TS_OK; m--)
        status = runs_group(state, index, calls + m * count, count, stream, report);
    joined_run++;
    return status;
}

/** Element i of an operand. */
static inline float *at(const ts_space *s, int operand, int64_t i)
{
    int64_t offset = 0;
    for (int d = 0; d < s->ndim; d++) {
        offset += i % s->sizes[d] * s->operand[operand].strides[d];
        i /= s->sizes[d];
    }
    return (float *)((char *)from_handle(s->operand[operand].data) + offset);
}
static inline float read_operand(const task *t, int operand, int64_t i)
{
    return t->space.operand[operand].host ? (float)t->numbers[operand - 1]
                                          : *at(&t->space, operand, i);
}
/** run_NAME(): a task that computes a formula of x and y for each element. */
#define FORMULA(name, formula)                                                                     \
    static void run_##name(const task *t)                                                          \
    {                                                                                              \
        for (int64_t i = 0; i < t->space.numel; i++) {                                             \
            float x = read_operand(t, 1, i);                                                       \
            float y __attribute__((unused)) = t->space.operands > 2 ? read_operand(t, 2, i) : 0;   \
            *at(&t->space, 0, i) = formula;                                                        \
        }                                                                                          \
    }
/** The body of a kernel: queues a task with this `run` for the call of f. */
static inline ts_status pointwise(ts_frame *f, void (*run)(const task *))
{
    task t = {.run = run};
    TS_TRY(ts_kernel_space(f, &t.space));
    for (int k = 1; k < t.space.operands; k++)
        if (t.space.operand[k].host)
            t.numbers[k - 1] = ts_operand_number(&t.space.operand[k]);
    return queue(ts_kernel_stream(f), t);
}
static ts_device device;
static bool has_groups; /* the next device that is set up supports groups */
static void set_up_named(const char *name, ts_status (*installs)(void *state, ts_key key))
{
    static ts_backend backends[2];
    static int used;
    ts_key key;
    ts_backend own = mock;
    own.name = name;
    own.install = installs;
    own.allocate = allocate;
    own.free = release;
    own.copy_in = copy_in;
    own.copy_out = copy_out;
    own.copy_within = copy_within;
    if (has_groups) {
        own.group_takes = takes_group;
        own.group_run = runs_group;
        own.group_run_members = group_run_members;
        own.epilogue_cost = costs_epilogue;
    }
    backends[used] = own;
    OK(ts_register_backend(&backends[used++], &key));
    device = (ts_device){key, 0};
}
static inline void set_up_with(ts_status (*installs)(void *state, ts_key key))
{
    set_up_named("TAPE", installs);
}
/** Checks that no forbidden call came during a capture and that all captures are freed. */
static inline void tear_down(void)
{
    ck_assert_int_eq(forbidden, 0);
    ck_assert_int_eq(captures, 0);
    ck_assert_ptr_null(capturing);
}

/** numbers() of tests/tracing/common.h, copied to the device. */
static inline ts_tensor *remote(uint64_t seed, const int64_t *sizes, int ndim)
{
    return ts_to_device(numbers(seed, sizes, ndim), device);
}
/** same() for tensors on any devices. */
static inline bool same_values(ts_tensor *a, ts_tensor *b)
{
    return same(ts_to_device(a, TS_DEVICE_CPU), ts_to_device(b, TS_DEVICE_CPU));
}

#endif
