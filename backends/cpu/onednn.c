/**
 * @file onednn.c
 * Convolutions by oneDNN's primitives (onednn.h).
 *
 * A plan has the primitives of one call (ts_onednn_call: sizes and strides). The parts of y are
 * bands of rows of each image: a band of x is copied to the layout that the primitive wants, the
 * primitive runs, and its result is copied to y. The parts of the gradient of the weight are slices
 * of the features, or of the groups: a primitive adds up all images. Channels-last images that a
 * primitive takes as they are need no copies.
 */
// SPDX-License-Identifier: MIT
#include "backends/cpu/onednn.h"
#include "backends/cpu/onednn_library.h"

#include "backends/cpu/isa.h"
#include "core/parallel.h"
#include "core/process.h"
#include "tessera/core.h"
#include "tessera/device.h"
#include "tessera/program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MOST_PLANS = 256,   /* plans that are kept */
    MOST_PARTS = 64,    /* bands of an image, or slices of a weight */
    MOST_SLICES = 8,    /* slices of a weight, each of which a task copies */
    BAND_BYTES = 1 << 18, /* bytes of a band of x and y that stay in L2 */
    BAND_ROWS = 4,      /* least rows of a band */
    PARTS = 16,         /* parts that suffice for the threads of most machines */
    WEIGHT_BLOCK = 64,  /* rows that a block of oneDNN's layouts of weights never exceeds */
    SLICE_ROWS = 16,    /* least features of a slice: the channels of a block in oneDNN */
    LEAST_WORK = 1 << 23, /* least products of a call: below, copies and calls take longer */
    LEAST_DEPTHWISE = 1 << 21, /* the same for y of a depthwise call */
    BLOCK = 8,          /* channels of a vector: with fewer, a part of oneDNN's vectors is idle */
    LEAST_CHANNELS = 3, /* least channels of x, except in depthwise calls */
    LEAST_TAPS = 6,     /* least taps with AVX-512, or of channels-last images */
    LARGE_WEIGHT = 32,  /* most elements of a weight per element of x; each call copies it */
    CREATE_ROOM = 1 << 22, /* more bytes than oneDNN allocates for a primitive */
    RUN_ROOM = 1 << 16  /* more bytes than it allocates while primitives run */
};

/* oneDNN ends the process if one of its own allocations fails, so memory is probed before calls. */

/** True if the heap of the calling thread can allocate RUN_ROOM bytes. */
static bool has_room_to_run(void)
{
    void *volatile block = malloc(RUN_ROOM); /* volatile: compilers remove unused blocks */
    free(block);
    return block != NULL;
}

/** True if the process can map CREATE_ROOM bytes and its heap can grow. */
static bool has_room_to_create(void)
{
    void *block = mmap(NULL, CREATE_ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                       0);
    if (block == MAP_FAILED)
        return false;
    munmap(block, CREATE_ROOM);
    return has_room_to_run();
}

/* -------------------------------------------------------------------------------- plans ---- */

/** A primitive, and the scratch memory that it needs. */
typedef struct step {
    void *primitive; /* NULL: nothing is done */
    layout scratchpad;
    int64_t bytes;
} step;

/** An operand: its memory in the caller's tensor, and the layout that the primitive wants. */
typedef struct operand {
    layout given, wanted;
    step move; /* copies between the two; no primitive if they are equal */
} operand;

/** The primitives of parts of one form: `rows` rows of y from `lines` lines of x, of which the
 *  windows reach `above` and `below` lines beyond; or `slice` rows or groups of the weight. */
typedef struct pass {
    int64_t rows, lines, above, below, slice;
    operand x, weight, y;
    step run;
} pass;

struct ts_onednn_plan {
    ts_onednn_call call;
    bool supported; /* false: the library's kernels compute the call */
    int users;
    uint64_t used;  /* time of the last use */
    int64_t bands;  /* parts of an image, or of the weight */
    int64_t each;   /* rows of y, or rows or groups of the weight, of each part but the last */
    int npasses, nslices;
    pass *passes;
    operand *slices; /* copies of slices of the weight, for y */
    operand image;   /* the copy of an image of x that all slices of the weight read */
    int64_t image_bytes;
    unsigned char pass_of[MOST_PARTS];
};

/** Columns of x that windows read, and those beyond the image. */
typedef struct span {
    int64_t first, size, before, after; /* inside the image; outside */
} span;

/** The elements of x along dim d for positions begin to end - 1. */
static span span_of(const ts_onednn_call *c, int d, int64_t begin, int64_t end)
{
    int64_t low = begin * c->move[d] + c->base[d];
    int64_t high = (end - 1) * c->move[d] + c->base[d] + (c->taps[d] - 1) * c->shift[d] + 1;
    int64_t first = low < 0 ? 0 : low, last = high < c->size[d] ? high : c->size[d];
    return (span){first, last - first, first - low, high - last};
}

static void drop(step *s)
{
    if (s->primitive)
        ts_dnnl.destroy(s->primitive);
    s->primitive = NULL;
}

static void drop_pass(pass *p)
{
    drop(&p->x.move);
    drop(&p->weight.move);
    drop(&p->y.move);
    drop(&p->run);
}

static void drop_parts(ts_onednn_plan *plan)
{
    for (int i = 0; i < plan->npasses; i++)
        drop_pass(&plan->passes[i]);
    for (int i = 0; i < plan->nslices; i++)
        drop(&plan->slices[i].move);
    drop(&plan->image.move);
    free(plan->passes);
    free(plan->slices);
    plan->passes = NULL;
    plan->slices = NULL;
    plan->npasses = plan->nslices = 0;
}

/** Creates the primitive of a description, which is destroyed. Returns oneDNN's status. */
static int finish(step *s, void *description)
{
    const layout *scratchpad = ts_dnnl.query_layout(description, QUERY_SCRATCHPAD, 0);
    s->bytes = 0;
    if (scratchpad) {
        s->scratchpad = *scratchpad;
        s->bytes = (int64_t)ts_dnnl.size(scratchpad);
    }
    int status = ts_dnnl.create(&s->primitive, description);
    if (status)
        s->primitive = NULL;
    ts_dnnl.desc_destroy(description);
    return status;
}

/** Prepares the copy from `given` to `wanted`, or back. */
static int prepare_copy(operand *o, bool back)
{
    if (!has_room_to_create())
        return OUT_OF_MEMORY;
    void *description = NULL;
    const layout *from = back ? &o->wanted : &o->given, *to = back ? &o->given : &o->wanted;
    int status = ts_dnnl.describe_reorder(&description, from, ts_dnnl.engine, to, ts_dnnl.engine,
                                          ts_dnnl.attr);
    return status ? status : finish(&o->move, description);
}

/** The same, unless the layouts are equal. */
static int prepare_move(operand *o, bool back)
{
    return ts_dnnl.equal(&o->given, &o->wanted) ? SUCCESS : prepare_copy(o, back);
}

/** True if the images can be read and written as they are: channels are innermost. */
static bool are_last(const ts_onednn_call *c) { return c->x[1] == 1 && c->y[1] == 1; }

/** True if each group has one channel of x and one of y. */
static bool is_depthwise(const ts_onednn_call *c)
{
    return c->groups > 1 && c->channels == 1 && c->rows == 1;
}

/** Describes the weight, or `groups` groups or `rows` rows of it. */
static int describe_weight(layout *of, const ts_onednn_call *c, int64_t groups, int64_t rows,
                           bool any)
{
    const int64_t dims[5] = {groups, rows, c->channels, c->taps[0], c->taps[1]};
    int skip = c->groups == 1;
    return any ? ts_dnnl.by_tag(of, 5 - skip, dims + skip, F32, TAG_ANY)
               : ts_dnnl.by_strides(of, 5 - skip, dims + skip, F32, c->weight + skip);
}

/** Describes an image of `batch` samples. */
static int describe_image(layout *of, int64_t batch, int64_t channels, int64_t lines,
                          int64_t columns, const int64_t *strides, int any)
{
    const int64_t dims[4] = {batch, channels, lines, columns};
    const int64_t dense[4] = {batch > 1 ? strides[0] : lines * strides[2], strides[1], strides[2],
                              strides[3]};
    return any ? ts_dnnl.by_tag(of, 4, dims, F32, any)
               : ts_dnnl.by_strides(of, 4, dims, F32, dense);
}

/**
 * Creates the primitives of a pass. wanted: a pass whose layouts are used for the weight and, in
 * the gradient of the weight, for x; NULL lets oneDNN choose. plain: images are used as they are.
 * Returns oneDNN's status; one of its slow kernels counts as unsupported.
 */
static int prepare(const ts_onednn_plan *plan, pass *p, const pass *wanted, bool plain)
{
    const ts_onednn_call *c = &plan->call;
    bool y = c->result == TS_ONEDNN_Y;
    int64_t groups = c->groups > 1 && !y ? p->slice : c->groups;
    int64_t rows = c->groups == 1 && !y ? p->slice : c->rows, batch = y ? 1 : c->batch;
    span columns = span_of(c, 1, 0, c->count[1]);
    layout x, weight, image, bias;
    static convolution_desc desc; /* large; cache.lock is held */
    const int64_t features = groups * rows, strides[2] = {c->move[0], c->move[1]},
                  dilates[2] = {c->shift[0] - 1, c->shift[1] - 1},
                  before[2] = {p->above, columns.before}, after[2] = {p->below, columns.after};
    int tag = plain ? 0 : y && is_depthwise(c) ? TAG_BLOCKS : TAG_ANY;
    int status = has_room_to_create() ? SUCCESS : OUT_OF_MEMORY;
    status = status ? status : describe_image(&p->x.given, batch, groups * c->channels, p->lines,
                                              columns.size, c->x, false);
    status = status ? status : describe_image(&p->y.given, batch, features, p->rows, c->count[1],
                                              c->y, false);
    status = status ? status : describe_weight(&p->weight.given, c, groups, rows, false);
    status = status ? status : describe_image(&x, batch, groups * c->channels, p->lines,
                                              columns.size, c->x, tag);
    status = status ? status : describe_image(&image, batch, features, p->rows, c->count[1], c->y,
                                              tag);
    status = status ? status : describe_weight(&weight, c, groups, rows, true);
    status = status ? status : ts_dnnl.by_tag(&bias, 1, &features, F32, TAG_DENSE);
    if (wanted && y)
        weight = wanted->weight.wanted;
    if (wanted && !y && c->groups == 1)
        x = wanted->x.wanted;
    const layout *b = c->bias ? &bias : NULL;
    void *hint = NULL, *description = NULL;
    status = status ? status
                    : ts_dnnl.forward(&desc, y ? FORWARD_INFERENCE : FORWARD_TRAINING, DIRECT, &x,
                                      &weight, b, &image, strides, dilates, before, after);
    status = status ? status
                    : ts_dnnl.describe(&description, &desc, ts_dnnl.attr, ts_dnnl.engine, NULL);
    if (status)
        return status;
    if (!y) {
        hint = description;
        status = ts_dnnl.backward_weight(&desc, DIRECT, &x, &weight, NULL, &image, strides, dilates,
                                         before, after);
        status = status ? status
                        : ts_dnnl.describe(&description, &desc, ts_dnnl.attr, ts_dnnl.engine,
                                           hint);
        ts_dnnl.desc_destroy(hint);
        if (status)
            return status;
    }
    const char *name = "";
    ts_dnnl.query(description, QUERY_NAME, 0, &name);
    if (strstr(name, "gemm") || strstr(name, "ref")) {
        ts_dnnl.desc_destroy(description);
        return -1;
    }
    p->x.wanted = *ts_dnnl.query_layout(description, QUERY_X, 0);
    p->weight.wanted = *ts_dnnl.query_layout(description, y ? QUERY_WEIGHT : QUERY_GRAD_WEIGHT, 0);
    p->y.wanted = *ts_dnnl.query_layout(description, y ? QUERY_Y : QUERY_GRAD_Y, 0);
    if (!wanted && ts_log_on("convolution"))
        ts_log_write("convolution",
                     "cpu, oneDNN's %s: %s of %lld x %lld x %lld x %lld, %lld features, %lld x "
                     "%lld, %lld groups, in %lld parts%s",
                     name, y ? "y" : "weight", (long long)c->batch,
                     (long long)(c->groups * c->channels), (long long)c->size[0],
                     (long long)c->size[1], (long long)(c->groups * c->rows),
                     (long long)c->taps[0], (long long)c->taps[1], (long long)c->groups,
                     (long long)(plan->bands * (y ? c->batch : 1)), plain ? ", no copies" : "");
    status = finish(&p->run, description);
    if (!status && (y || c->groups > 1))
        status = prepare_move(&p->x, false);
    if (!status)
        status = prepare_move(&p->y, y);
    if (!status && !y)
        status = prepare_move(&p->weight, true);
    return status;
}

/** Slices of the weight's copy for y: taps, if they are reversed; else rows, in whole blocks. */
typedef struct slicing {
    int64_t n, rows; /* slices; rows of each but the last */
    bool by_tap;
} slicing;

static slicing slicing_of(const ts_onednn_call *c)
{
    slicing s = {.n = 1, .rows = c->rows, .by_tap = c->flip[0] || c->flip[1]};
    if (s.by_tap) {
        s.n = c->taps[0] * c->taps[1];
    } else if (c->groups == 1 && c->rows % WEIGHT_BLOCK == 0) {
        s.rows = (c->rows / MOST_SLICES + WEIGHT_BLOCK - 1) / WEIGHT_BLOCK * WEIGHT_BLOCK;
        s.n = (c->rows + s.rows - 1) / s.rows;
    }
    return s;
}

/** Prepares the copies of the weight for y. */
static int prepare_weight(ts_onednn_plan *plan)
{
    const ts_onednn_call *c = &plan->call;
    const slicing s = slicing_of(c);
    int skip = c->groups == 1;
    if (!(plan->slices = calloc((size_t)s.n, sizeof *plan->slices)))
        return OUT_OF_MEMORY;
    for (int64_t i = 0; i < s.n; i++, plan->nslices++) {
        operand *o = &plan->slices[i];
        const int64_t tap[2] = {i / c->taps[1], i % c->taps[1]};
        int64_t dims[5] = {c->groups, c->rows, c->channels, c->taps[0], c->taps[1]};
        int64_t offsets[5] = {0};
        if (!s.by_tap) {
            offsets[1] = i * s.rows;
            dims[1] = s.rows < c->rows - offsets[1] ? s.rows : c->rows - offsets[1];
        }
        for (int d = 0; s.by_tap && d < 2; d++) {
            dims[3 + d] = 1;
            offsets[3 + d] = c->flip[d] ? c->taps[d] - 1 - tap[d] : tap[d];
        }
        int status = ts_dnnl.by_strides(&o->given, 5 - skip, dims + skip, F32, c->weight + skip);
        status = status ? status
                        : ts_dnnl.submemory(&o->wanted, &plan->passes[0].weight.wanted, dims + skip,
                                            offsets + skip);
        status = status ? status : s.by_tap ? prepare_copy(o, false) : prepare_move(o, false);
        if (status)
            return status;
    }
    return SUCCESS;
}

/** Prepares the copy of an image of x for the gradient of the weight. */
static int prepare_image(ts_onednn_plan *plan)
{
    const ts_onednn_call *c = &plan->call;
    const operand *x = &plan->passes[0].x;
    span columns = span_of(c, 1, 0, c->count[1]);
    const int64_t dims[4] = {1, c->channels, plan->passes[0].lines, columns.size},
                  offsets[4] = {0};
    if (c->groups > 1 || ts_dnnl.equal(&x->given, &x->wanted))
        return SUCCESS;
    plan->image_bytes = (int64_t)ts_dnnl.size(&x->wanted) / c->batch;
    int status = describe_image(&plan->image.given, 1, c->channels, dims[2], dims[3], c->x, false);
    status = status ? status : ts_dnnl.submemory(&plan->image.wanted, &x->wanted, dims, offsets);
    return status ? status : prepare_move(&plan->image, false);
}

/** Rows of a band of y: few enough for the caches, and for all threads to have some. */
static int64_t band_rows(const ts_onednn_call *c)
{
    int64_t line = 4 * c->groups * (c->channels * c->move[0] * c->size[1] + c->rows * c->count[1]);
    int64_t rows = BAND_BYTES / (line + 1), most = c->count[0];
    int64_t shared = (c->batch * most + PARTS - 1) / PARTS;
    rows = rows < shared ? rows : shared;
    rows = rows > BAND_ROWS ? rows : BAND_ROWS;
    int64_t least = (most + MOST_PARTS - 1) / MOST_PARTS;
    rows = rows > least ? rows : least;
    return rows < most ? rows : most;
}

/** Rows or groups of a slice of the weight. */
static int64_t slice_rows(const ts_onednn_call *c)
{
    int64_t all = c->groups > 1 ? c->groups : c->rows, each = (all + PARTS - 1) / PARTS;
    if (c->groups > 1 && c->rows * c->channels > 1) /* each group is a whole number of blocks */
        return each;
    each = (each + SLICE_ROWS - 1) / SLICE_ROWS * SLICE_ROWS;
    return each < all ? each : all;
}

/** Finds or creates the pass of part i. */
static int prepare_part(ts_onednn_plan *plan, int64_t i, bool plain)
{
    const ts_onednn_call *c = &plan->call;
    int64_t all = c->result == TS_ONEDNN_Y ? c->count[0] : c->groups > 1 ? c->groups : c->rows;
    int64_t first = i * plan->each, end = first + plan->each < all ? first + plan->each : all;
    pass p = {.rows = c->count[0]};
    if (c->result == TS_ONEDNN_Y)
        p.rows = end - first;
    else
        p.slice = end - first;
    span lines = c->result == TS_ONEDNN_Y ? span_of(c, 0, first, end)
                                          : span_of(c, 0, 0, c->count[0]);
    if (lines.size < 1)
        return -1;
    p.lines = lines.size;
    p.above = lines.before;
    p.below = lines.after;
    for (int k = 0; k < plan->npasses; k++) {
        const pass *q = &plan->passes[k];
        if (q->rows == p.rows && q->lines == p.lines && q->above == p.above &&
            q->below == p.below && q->slice == p.slice) {
            plan->pass_of[i] = (unsigned char)k;
            return SUCCESS;
        }
    }
    pass *more = realloc(plan->passes, (size_t)(plan->npasses + 1) * sizeof *more);
    if (!more)
        return OUT_OF_MEMORY;
    plan->passes = more;
    int status = prepare(plan, &p, plan->npasses ? &plan->passes[0] : NULL, plain);
    more[plan->npasses] = p;
    plan->pass_of[i] = (unsigned char)plan->npasses++;
    return status;
}

/** Creates all primitives. Returns oneDNN's status. */
static int prepare_parts(ts_onednn_plan *plan, bool plain)
{
    const ts_onednn_call *c = &plan->call;
    bool y = c->result == TS_ONEDNN_Y;
    int64_t all = y ? c->count[0] : c->groups > 1 ? c->groups : c->rows;
    plan->each = y ? band_rows(c) : slice_rows(c);
    plan->bands = (all + plan->each - 1) / plan->each;
    int status = plan->bands > MOST_PARTS ? -1 : SUCCESS;
    for (int64_t i = 0; i < plan->bands && !status; i++)
        status = prepare_part(plan, i, plain);
    return status ? status : y ? prepare_weight(plan) : prepare_image(plan);
}

/** True if oneDNN is expected to be faster than the library's kernels. Depends only on the call and
 *  on the instruction set. */
static bool is_faster(const ts_onednn_call *c)
{
    bool to_y = c->result == TS_ONEDNN_Y, last = are_last(c), wide = ts_cpu_isa() == TS_ISA_AVX512;
    int64_t weight = c->rows * c->channels * c->taps[0] * c->taps[1];
    int64_t x = c->batch * c->channels * c->size[0] * c->size[1];
    if (c->taps[0] <= c->move[0] && c->taps[1] <= c->move[1]) /* no element is read twice */
        return false;
    bool depthwise = is_depthwise(c);
    if (c->groups * c->batch * c->count[0] * c->count[1] * weight <
        (depthwise && to_y ? LEAST_DEPTHWISE : LEAST_WORK))
        return false;
    if (depthwise)
        return to_y || !last;
    if (c->groups > 1)
        return to_y ? wide && last && c->rows >= BLOCK
                    : c->channels >= BLOCK && c->channels <= 2 * BLOCK && c->rows >= BLOCK &&
                          c->rows <= 4 * BLOCK;
    if (c->rows < 2 * BLOCK || ((wide || last) && c->taps[0] * c->taps[1] < LEAST_TAPS))
        return false;
    if (c->channels < BLOCK)
        return !to_y || last;
    if (!to_y)
        return !last && c->channels >= 2 * BLOCK &&
               weight <= (wide ? LARGE_WEIGHT : LARGE_WEIGHT / 8) * x;
    if (last && (c->flip[0] || c->flip[1])) /* the library's kernels copy the weight, too */
        return true;
    return weight <= LARGE_WEIGHT * x &&
           (last ? wide || (c->move[0] == 1 && c->move[1] == 1) : c->channels >= 2 * BLOCK);
}

/** Creates the primitives of a new plan, unless oneDNN lacks fast ones. Returns oneDNN's status. */
static int prepare_plan(ts_onednn_plan *plan)
{
    const ts_onednn_call *c = &plan->call;
    if (!is_depthwise(c) && c->channels < LEAST_CHANNELS)
        return -1; /* version 2.6.3 has wrong results for dilated windows of one channel */
    if ((c->flip[0] || c->flip[1]) && c->taps[0] * c->taps[1] > MOST_PARTS)
        return -1; /* a copy of the weight for each tap */
    bool last = are_last(c) && (ts_cpu_isa() == TS_ISA_AVX512 || c->channels < 16);
    int status = last ? prepare_parts(plan, true) : -1;
    if (status != SUCCESS && status != OUT_OF_MEMORY) {
        drop_parts(plan);
        status = prepare_parts(plan, false);
    }
    plan->supported = !status;
    if (status)
        drop_parts(plan);
    return status;
}

static struct {
    pthread_mutex_t lock;
    ts_onednn_plan *plans[MOST_PLANS]; /* the first `count` */
    int count;
    uint64_t time;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

void ts_onednn_install(void) { TS_FORK_GUARD(&cache.lock); }

/** A place in the cache; of a full cache, that of the plan which was not used for the longest time,
 *  whose memory is released. -1 if all plans are in use. */
static int place_of_new(void)
{
    int oldest = -1;
    if (cache.count < MOST_PLANS)
        return cache.count++;
    for (int i = 0; i < cache.count; i++)
        if (!cache.plans[i]->users &&
            (oldest < 0 || cache.plans[i]->used < cache.plans[oldest]->used))
            oldest = i;
    if (oldest >= 0) {
        drop_parts(cache.plans[oldest]);
        free(cache.plans[oldest]);
    }
    return oldest;
}

static ts_onednn_plan *find(const ts_onednn_call *c)
{
    for (int i = 0; i < cache.count; i++)
        if (memcmp(&cache.plans[i]->call, c, sizeof *c) == 0)
            return cache.plans[i];
    return NULL;
}

/** Adds a plan to the cache; NULL without memory. */
static ts_onednn_plan *add(const ts_onednn_call *c)
{
    ts_onednn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->call = *c;
    int threads = ts_dnnl.get_threads();
    ts_dnnl.set_threads(1);
    int status = prepare_plan(plan), place = status == OUT_OF_MEMORY ? -1 : place_of_new();
    ts_dnnl.set_threads(threads);
    if (place < 0) {
        drop_parts(plan);
        free(plan);
        return NULL;
    }
    return cache.plans[place] = plan;
}

/** The value of TS_CPU_CONV. */
static int allowed(void)
{
    static _Atomic int value; /* 0: not read yet */
    int is = atomic_load(&value);
    if (!is) {
        is = ts_variable_choice("TS_CPU_CONV", "auto|own|onednn");
        is = is < 0 ? 1 : is + 1;
        atomic_store(&value, is);
    }
    return is - 1;
}

ts_status ts_onednn_plan_of(const ts_onednn_call *c, ts_onednn_plan **plan)
{
    enum { AUTO, OWN };
    *plan = NULL;
    if (allowed() == OWN || ts_cpu_isa() == TS_ISA_BASELINE || ts_deterministic() ||
        (allowed() == AUTO && !is_faster(c)) || !ts_dnnl_is_available())
        return TS_OK;
    pthread_mutex_lock(&cache.lock);
    ts_onednn_plan *found = find(c);
    if (!found)
        found = add(c);
    if (found)
        found->used = ++cache.time;
    if (found && found->supported) {
        found->users++;
        *plan = found;
    }
    pthread_mutex_unlock(&cache.lock);
    return found ? TS_OK : ts_error_memory("primitives of a convolution", CREATE_ROOM);
}

void ts_onednn_release(ts_onednn_plan *plan)
{
    pthread_mutex_lock(&cache.lock);
    plan->users--;
    pthread_mutex_unlock(&cache.lock);
}

/* -------------------------------------------------------------------------------- calls ---- */

static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/** Bytes for an operand in the layout that a primitive wants; 0 if it needs no copy. */
static int64_t made_bytes(const operand *o)
{
    return o->move.primitive ? whole_lines((int64_t)ts_dnnl.size(&o->wanted)) : 0;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/** Bytes of x's copy that all slices of the weight read, of the weight's copy that all bands read;
 *  0 without one. */
static int64_t shared_bytes(const ts_onednn_plan *p)
{
    const ts_onednn_call *c = &p->call;
    const operand *x = &p->passes[0].x;
    if (c->result == TS_ONEDNN_Y)
        return p->slices[0].move.primitive || slicing_of(c).by_tap
                   ? whole_lines((int64_t)ts_dnnl.size(&p->passes[0].weight.wanted))
                   : 0;
    return c->groups == 1 && !ts_dnnl.equal(&x->given, &x->wanted)
               ? whole_lines((int64_t)ts_dnnl.size(&x->wanted))
               : 0;
}

/** Bytes of a worker's scratch memory. */
static int64_t worker_bytes(const ts_onednn_plan *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->npasses; i++) {
        const pass *q = &p->passes[i];
        int64_t steps = larger(larger(q->x.move.bytes, q->y.move.bytes),
                               larger(q->weight.move.bytes, q->run.bytes));
        most = larger(most, made_bytes(&q->x) + made_bytes(&q->y) + made_bytes(&q->weight) +
                                whole_lines(steps));
    }
    for (int i = 0; i < p->nslices; i++)
        most = larger(most, whole_lines(p->slices[i].move.bytes));
    return most;
}

/** Number of parts. */
static int64_t parts_of(const ts_onednn_plan *p)
{
    return p->bands * (p->call.result == TS_ONEDNN_Y ? p->call.batch : 1);
}

int64_t ts_onednn_scratch(const ts_onednn_plan *p)
{
    return shared_bytes(p) + ts_num_threads() * worker_bytes(p);
}

/** A running call. */
typedef struct running {
    const ts_onednn_plan *plan;
    float *x, *weight, *bias, *y;
    char *shared, *scratch; /* scratch: that of the first worker */
    int64_t workers;
    _Atomic bool failed;
} running;

/** Runs a primitive with up to four operands and its scratch memory. */
static bool execute(const step *s, void *stream, int n, const int *index, const layout *const *of,
                    void *const *data, char *scratchpad)
{
    argument arguments[5];
    int made = 0, status = SUCCESS;
    for (; made < n && !status; made++) {
        arguments[made].index = index[made];
        status = ts_dnnl.memory_create(&arguments[made].memory, of[made], ts_dnnl.engine,
                                       data[made]);
        if (status)
            break;
    }
    if (!status && s->bytes) {
        arguments[made].index = ARG_SCRATCHPAD;
        status = ts_dnnl.memory_create(&arguments[made].memory, &s->scratchpad, ts_dnnl.engine,
                                       scratchpad);
        made += !status;
    }
    if (!status)
        status = ts_dnnl.execute(s->primitive, stream, made, arguments);
    while (made > 0)
        ts_dnnl.memory_destroy(arguments[--made].memory);
    return status == SUCCESS;
}

/** Copies an operand to the layout that the primitive wants, or back. */
static bool move(const operand *o, void *stream, float *given, void *wanted, bool back,
                 char *scratchpad)
{
    const int index[2] = {ARG_X, ARG_Y};
    const layout *of[2] = {back ? &o->wanted : &o->given, back ? &o->given : &o->wanted};
    void *data[2] = {back ? wanted : given, back ? (void *)given : wanted};
    return !o->move.primitive || execute(&o->move, stream, 2, index, of, data, scratchpad);
}

/** Computes part `part`. */
static bool run_part(const running *r, int64_t part, char *scratch, void *stream)
{
    const ts_onednn_plan *plan = r->plan;
    const ts_onednn_call *c = &plan->call;
    bool to_y = c->result == TS_ONEDNN_Y;
    int64_t band = part % plan->bands, image = part / plan->bands, first = band * plan->each;
    const pass *p = &plan->passes[plan->pass_of[band]];
    span columns = span_of(c, 1, 0, c->count[1]);
    span lines = span_of(c, 0, to_y ? first : 0, to_y ? first + p->rows : c->count[0]);
    float *x = r->x + image * c->x[0] + lines.first * c->x[2] + columns.first * c->x[3];
    float *y = r->y + image * c->y[0], *weight = r->weight;
    if (to_y) {
        y += first * c->y[2];
    } else if (c->groups > 1) {
        x += first * c->channels * c->x[1];
        y += first * c->rows * c->y[1];
        weight += first * c->weight[0];
    } else {
        y += first * c->y[1];
        weight += first * c->weight[1];
    }
    void *made[3] = {x, weight, y};
    const operand *operands[3] = {&p->x, &p->weight, &p->y};
    for (int i = 0; i < 3; i++)
        if (operands[i]->move.primitive) {
            made[i] = scratch;
            scratch += made_bytes(operands[i]);
        }
    if (r->shared)
        made[to_y ? 1 : 0] = r->shared;
    const int index[2][4] = {{ARG_X, ARG_WEIGHT, ARG_Y, ARG_BIAS},
                             {ARG_X, ARG_GRAD_WEIGHT, ARG_GRAD_Y}};
    const int64_t features = c->groups * c->rows;
    layout bias;
    const layout *of[4] = {&p->x.wanted, &p->weight.wanted, &p->y.wanted, &bias};
    void *data[4] = {made[0], made[1], made[2], r->bias};
    bool with_bias = to_y && c->bias;
    if (with_bias && ts_dnnl.by_tag(&bias, 1, &features, F32, TAG_DENSE))
        return false;
    return move(&p->x, stream, x, made[0], false, scratch) &&
           (to_y || move(&p->y, stream, y, made[2], false, scratch)) &&
           execute(&p->run, stream, with_bias ? 4 : 3, index[!to_y], of, data, scratch) &&
           move(to_y ? &p->y : &p->weight, stream, to_y ? y : weight, made[to_y ? 2 : 1], true,
                scratch);
}

/** Copies slice i of the weight, for y, or image i of x, for the gradient of the weight. */
static bool run_shared(const running *r, int64_t i, char *scratch, void *stream)
{
    const ts_onednn_plan *p = r->plan;
    const ts_onednn_call *c = &p->call;
    if (c->result == TS_ONEDNN_Y) {
        const slicing s = slicing_of(c);
        int64_t offset = s.by_tap ? i / c->taps[1] * c->weight[3] + i % c->taps[1] * c->weight[4]
                                  : i * s.rows * c->weight[1];
        return move(&p->slices[i], stream, r->weight + offset, r->shared, false, scratch);
    }
    span lines = span_of(c, 0, 0, c->count[0]), columns = span_of(c, 1, 0, c->count[1]);
    return move(&p->image, stream,
                r->x + i * c->x[0] + lines.first * c->x[2] + columns.first * c->x[3],
                r->shared + i * p->image_bytes, false, scratch);
}

/** Runs workers begin to end - 1, each of which computes a range of parts, or of shared copies. */
static void run_workers(running *r, int64_t begin, int64_t end, int64_t parts,
                        bool (*one)(const running *r, int64_t i, char *scratch, void *stream))
{
    int64_t bytes = worker_bytes(r->plan);
    void *stream = NULL;
    int threads = ts_dnnl.get_threads();
    ts_dnnl.set_threads(1);
    bool failed = !has_room_to_run() ||
                  ts_dnnl.stream_create(&stream, ts_dnnl.engine, IN_ORDER) != SUCCESS;
    for (int64_t worker = begin; worker < end && !failed; worker++)
        for (int64_t i = parts * worker / r->workers;
             i < parts * (worker + 1) / r->workers && !failed; i++)
            failed = !one(r, i, r->scratch + worker * bytes, stream);
    if (failed)
        atomic_store(&r->failed, true);
    if (stream)
        ts_dnnl.stream_destroy(stream);
    ts_dnnl.set_threads(threads);
}

static int64_t shared_parts(const ts_onednn_plan *p)
{
    return p->call.result == TS_ONEDNN_Y ? p->nslices : p->call.batch;
}

static void run_shared_workers(void *ctx, int64_t begin, int64_t end)
{
    running *r = ctx;
    run_workers(r, begin, end, shared_parts(r->plan), run_shared);
}

static void run_part_workers(void *ctx, int64_t begin, int64_t end)
{
    running *r = ctx;
    run_workers(r, begin, end, parts_of(r->plan), run_part);
}

bool ts_onednn_run(const ts_onednn_plan *p, float *x, float *weight, float *bias, float *y,
                   char *scratch)
{
    int64_t shared = shared_bytes(p);
    running r = {.plan = p, .x = x, .weight = weight, .bias = bias, .y = y,
                 .shared = shared ? scratch : NULL, .scratch = scratch + shared};
    if (shared) {
        r.workers = ts_min64(ts_num_threads(), shared_parts(p));
        ts_parallel_for(r.workers, 1, run_shared_workers, &r);
    }
    r.workers = ts_min64(ts_num_threads(), parts_of(p));
    if (!r.failed)
        ts_parallel_for(r.workers, 1, run_part_workers, &r);
    return !r.failed;
}
