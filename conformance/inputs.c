/** @file inputs.c  Arguments of samples: numbers, layouts, sentinels. */
// SPDX-License-Identifier: MIT
#include "conformance/drive.h"

#include <math.h>
#include <string.h>

enum { SENTINEL = 0xa5 };

/* ----------------------------------------------------------------------------- numbers ---- */

double random_uniform(uint64_t *state)
{
    /* SplitMix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

double random_normal(uint64_t *state)
{
    double u = 1 - random_uniform(state), v = random_uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* eps: for f64 and f32 the distance from 1 to the next number; for halves, which are rounded once
 * from f32, half of it */
double dtype_eps(ts_dtype dtype)
{
    switch (dtype) {
    case TS_F64: return 0x1p-52;
    case TS_F32: return 0x1p-23;
    case TS_BF16: return 0x1p-8;
    case TS_F16: return 0x1p-11;
    default: return 0;
    }
}

/** x 2^n: ldexp() without a call, where both powers are normal numbers. */
static double scaled(double x, int n)
{
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double power;
    if (n < -1000 || n > 1000)
        return ldexp(x, n);
    memcpy(&power, &bits, sizeof power);
    return x * power;
}

/** The exponent of frexp(), without its call for normal numbers. */
static int exponent(double x)
{
    uint64_t bits;
    int e;
    memcpy(&bits, &x, sizeof bits);
    e = (int)(bits >> 52 & 2047);
    if (e)
        return e - 1022;
    frexp(x, &e);
    return e;
}

/** Rounds x once, to nearest even, to `bits` significant bits; exponents (of frexp) below `least`
 * use the grid of `least`, as denormals do. */
static double on_grid(double x, int bits, int least)
{
    if (!isfinite(x) || x == 0)
        return x;
    int e = exponent(x);
    e = e < least ? least : e;
    return scaled(rint(scaled(x, bits - e)), e - bits);
}

/** f16 bits of a number that f16 represents exactly. The mantissa is added with its leading bit,
 * which increments the exponent field. */
static uint16_t f16_bits(double x)
{
    int sign = signbit(x) ? 0x8000 : 0;
    if (!(fabs(x) <= 65504))
        return (uint16_t)(sign | (isnan(x) ? 0x7e00 : 0x7c00));
    int e = exponent(x);
    e = x == 0 || e < -13 ? -13 : e;
    return (uint16_t)(sign | ((e + 13) * 1024 + (int)scaled(fabs(x), 11 - e)));
}

static double f16_value(uint16_t h)
{
    int e = h >> 10 & 31, fraction = h & 1023;
    double x = e == 31 ? (fraction ? NAN : INFINITY)
                       : scaled(e ? 1024 + fraction : fraction, (e ? e : 1) - 25);
    return h & 0x8000 ? -x : x;
}

/** Stores x at p as dtype; integers wrap. */
static void store(double x, ts_dtype dtype, void *p)
{
    int64_t i = fabs(x) < 0x1p63 ? (int64_t)x : 0;
    uint32_t bits;
    float f;
    switch (dtype) {
    case TS_F64: memcpy(p, &x, 8); break;
    case TS_F32: memcpy(p, &(float){(float)x}, 4); break;
    case TS_BF16:
        f = (float)on_grid(x, 8, -125);
        memcpy(&bits, &f, 4);
        bits = (bits | (isnan(f) ? 0x400000 : 0)) >> 16;
        memcpy(p, &bits, 2);
        break;
    case TS_F16: memcpy(p, &(uint16_t){f16_bits(on_grid(x, 11, -13))}, 2); break;
    case TS_I64: memcpy(p, &i, 8); break;
    case TS_I32: memcpy(p, &(int32_t){(int32_t)(uint32_t)i}, 4); break;
    case TS_U8: *(uint8_t *)p = (uint8_t)i; break;
    default: *(uint8_t *)p = x != 0;
    }
}

static double load(const void *p, ts_dtype dtype)
{
    union {
        double d;
        float f;
        uint16_t h;
        int64_t i;
        int32_t i32;
        uint32_t u32;
    } v = {0};
    switch (dtype) { /* copies of constant size, which take no call */
    case TS_F64: memcpy(&v, p, 8); return v.d;
    case TS_F32: memcpy(&v, p, 4); return v.f;
    case TS_BF16: memcpy(&v, p, 2); v.u32 <<= 16; return v.f;
    case TS_F16: memcpy(&v, p, 2); return f16_value(v.h);
    case TS_I64: memcpy(&v, p, 8); return (double)v.i;
    case TS_I32: memcpy(&v, p, 4); return v.i32;
    default: return *(const uint8_t *)p;
    }
}

double round_to(double x, ts_dtype dtype)
{
    char bytes[8] = {0};
    store(x, dtype, bytes);
    return load(bytes, dtype);
}

static double special(int64_t i, ts_dtype dtype)
{
    /* two denormals, the largest, the smallest normal */
    static const double ends[][4] = {
        [TS_F64] = {5e-311, -5e-324, 0x1.fffffffffffffp1023, 0x1p-1022},
        [TS_F32] = {1e-41, -1e-44, 0x1.fffffep127, 0x1p-126},
        [TS_BF16] = {1e-39, -0x1p-133, 0x1.fep127, 0x1p-126},
        [TS_F16] = {3e-6, -0x1p-24, 65504, 0x1p-14},
    };
    const double *end = ends[dtype <= TS_F16 ? dtype : TS_F32];
    const double floats[] = {0.0, -0.0, 1, -1, 0.5, -2.5, INFINITY, -INFINITY, NAN, end[0], end[1],
                             end[2], end[3], 88.5, -104,
                             1e-10, 3.14159265, 709.5, -745};
    const double wholes[] = {0, 1, -1, 2, 7, -128, 127, 255};
    if (ts_dtype_is_float(dtype))
        return floats[i % TS_COUNTOF(floats)];
    return wholes[i % TS_COUNTOF(wholes)];
}

/** Number i of a seed's normal sequence. An op draws the same one for each dtype, so the last
 * sequence of each tensor of a call is kept. */
static double normal_at(uint64_t seed, int place, int64_t i)
{
    static struct {
        uint64_t seed, state;
        int64_t numel, capacity;
        double *x;
    } kept[MADE_MOST], *k;
    k = &kept[place];
    if (k->seed != seed) {
        k->seed = k->state = seed;
        k->numel = 0;
    }
    if (k->capacity <= i) {
        k->capacity = 2 * i + 64;
        k->x = realloc(k->x, (size_t)k->capacity * sizeof *k->x);
    }
    for (; k->numel <= i; k->numel++)
        k->x[k->numel] = random_normal(&k->state);
    return k->x[i];
}

/** Element i of tensor `place` of a call. */
static double element(const ts_sample_arg *a, int64_t i, int place, ts_dtype dtype, uint64_t seed,
                      uint64_t *state)
{
    double x, width = a->high - a->low;
    bool whole = !ts_dtype_is_float(dtype);
    switch (a->gen) {
    case GEN_UNIFORM:
        x = a->low + width * random_uniform(state);
        x = whole ? floor(x) : x;
        break;
    case GEN_WHOLE: x = floor(a->low + width * random_uniform(state)); break;
    case GEN_SPECIAL: x = special(i + 5 * place, dtype); break;
    default:
        x = normal_at(seed, place, i);
        x = whole ? rint(3 * x) : x;
    }
    if (dtype == TS_U8)
        x = fabs(x);
    if (dtype == TS_BOOL)
        x = x > 0;
    return round_to(x, dtype);
}

/* ----------------------------------------------------------------------------- layouts ---- */

/** Calls see for each element in row-major order, with its index i and its offset in elements. */
static void visit(const int64_t *sizes, const int64_t *strides, int ndim,
                  void (*see)(void *ctx, int64_t i, int64_t at), void *ctx)
{
    int64_t at[TS_MAX_DIMS] = {0}, n = ref_numel(sizes, ndim), offset = 0;
    for (int64_t i = 0; i < n; i++) {
        see(ctx, i, offset);
        for (int d = ndim - 1; d >= 0; d--) {
            offset += strides[d];
            if (++at[d] < sizes[d])
                break;
            offset -= sizes[d] * strides[d];
            at[d] = 0;
        }
    }
}

/** Sets the strides of a layout and the offset of its first element; returns the number of elements
 * of its buffer. */
static int64_t layout_plan(const int64_t *sizes, int ndim, ts_layout layout, int64_t *strides,
                           int64_t *offset)
{
    int64_t span = 1;
    bool expanded = false;
    if (layout == LAYOUT_TRANSPOSED) {
        for (int d = 0; d < ndim; d++) {
            strides[d] = span;
            span *= sizes[d];
        }
    } else {
        int64_t step = layout == LAYOUT_STRIDED ? 2 : 1;
        for (int d = ndim - 1; d >= 0; d--) {
            if (layout == LAYOUT_EXPANDED && !expanded && sizes[d] > 1 &&
                (d == 0 || sizes[0] < 2 || ndim % 2)) {
                strides[d] = 0;
                expanded = true;
                continue;
            }
            strides[d] = span * step;
            span *= sizes[d];
        }
        span *= step;
    }
    *offset = layout == LAYOUT_OFFSET ? 3 : layout == LAYOUT_STRIDED ? 1 : 0;
    return *offset + span + 5;
}

typedef struct filling {
    char *data; /* address of the element at offset 0 */
    double *values;
    ts_dtype dtype;
    int64_t item; /* bytes of an element */
} filling;

static void fill_one(void *ctx, int64_t i, int64_t at)
{
    filling *f = ctx;
    store(f->values[i], f->dtype, f->data + at * f->item);
}

static void read_one(void *ctx, int64_t i, int64_t at)
{
    filling *f = ctx;
    f->values[i] = load(f->data + at * f->item, f->dtype);
}

bool on_cpu(ts_device device) { return device.backend == TS_DEVICE_CPU.backend; }
bool on_meta(ts_device device) { return device.backend == TS_DEVICE_META.backend; }

/** Creates the buffer of a layout on the CPU, with sentinels around the elements. */
static ts_tensor *buffer_make(double *values, ts_dtype dtype, const int64_t *sizes, int ndim,
                              const int64_t *strides, int64_t offset, int64_t length, bool expanded)
{
    size_t item = ts_dtype_size(dtype);
    char *bytes = malloc((size_t)length * item + 1);
    memset(bytes, dtype == TS_BOOL && !strides ? 0 : SENTINEL, (size_t)length * item);
    int64_t row_major[TS_MAX_DIMS], span = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        row_major[d] = span;
        span *= sizes[d];
    }
    if (values) {
        filling f = {bytes + (size_t)offset * item, values, dtype, (int64_t)item};
        visit(sizes, strides ? strides : row_major, ndim, fill_one, &f);
        if (expanded) /* elements with the same address have the last written value */
            visit(sizes, strides, ndim, read_one, &f);
    }
    ts_tensor *b = strides ? ts_from_array(bytes, dtype, &length, 1)
                           : ts_from_array(bytes, dtype, sizes, ndim);
    free(bytes);
    return b;
}

ts_tensor *tensor_make(double *values, ts_dtype dtype, const int64_t *sizes, int ndim,
                       ts_layout layout, ts_device device, ts_tensor **base)
{
    TS_NO_GRAD;
    int64_t strides[TS_MAX_DIMS], offset = 0, length = ref_numel(sizes, ndim);
    bool plain = layout == LAYOUT_CONTIGUOUS;
    if (!plain)
        length = layout_plan(sizes, ndim, layout, strides, &offset);
    ts_tensor *b;
    if (on_meta(device))
        b = plain ? ts_empty_on(sizes, ndim, dtype, device)
                  : ts_empty_on(&length, 1, dtype, device);
    else
        b = buffer_make(values, dtype, sizes, ndim, plain ? NULL : strides, offset, length,
                        layout == LAYOUT_EXPANDED);
    if (b && !on_meta(device) && !on_cpu(device))
        b = ts_to_device(b, device);
    if (base)
        *base = b;
    return b && !plain ? ts_as_strided(b, sizes, strides, ndim, offset) : b;
}

/** t itself when it is on the CPU, else a copy there, in the innermost scope; NULL on failure. */
static const ts_tensor *on_host(const ts_tensor *t)
{
    TS_NO_GRAD;
    return on_cpu(ts_device_of(t)) ? t : ts_to_device((ts_tensor *)t, TS_DEVICE_CPU);
}

double *tensor_values(const ts_tensor *t)
{
    TS_SCOPE;
    const ts_tensor *host = on_host(t);
    if (!host)
        return NULL;
    double *values = calloc((size_t)ts_numel(t) + 1, sizeof *values);
    filling f = {(char *)ts_data(host), values, ts_dtype_of(host),
                 (int64_t)ts_dtype_size(ts_dtype_of(host))};
    visit(ts_sizes(host), ts_strides(host), ts_ndim(host), read_one, &f);
    return values;
}

typedef struct packing {
    char *to;
    const char *data;
    size_t item;
} packing;

static void pack_one(void *ctx, int64_t i, int64_t at)
{
    packing *g = ctx;
    char *to = g->to + (size_t)i * g->item;
    const char *from = g->data + at * (int64_t)g->item;
    switch (g->item) {
    case 8: memcpy(to, from, 8); break;
    case 4: memcpy(to, from, 4); break;
    case 2: memcpy(to, from, 2); break;
    default: memcpy(to, from, g->item);
    }
}

char *tensor_bytes(const ts_tensor *t)
{
    TS_SCOPE;
    const ts_tensor *host = on_host(t);
    if (!host)
        return NULL;
    size_t item = ts_dtype_size(ts_dtype_of(t));
    packing g = {malloc(((size_t)ts_numel(t) + 1) * item), ts_data(host), item};
    if (ts_is_contiguous(host) && ts_numel(t))
        memcpy(g.to, g.data, (size_t)ts_numel(t) * item);
    else
        visit(ts_sizes(host), ts_strides(host), ts_ndim(host), pack_one, &g);
    return g.to;
}

bool tensor_equal(const ts_tensor *a, const ts_tensor *b)
{
    if (ts_dtype_of(a) != ts_dtype_of(b) || ts_numel(a) != ts_numel(b))
        return false;
    if (on_meta(ts_device_of(a)) || on_meta(ts_device_of(b)))
        return true;
    ts_dtype dtype = ts_dtype_of(a);
    size_t item = ts_dtype_size(dtype);
    char *x = tensor_bytes(a), *y = tensor_bytes(b);
    size_t count = (size_t)ts_numel(a);
    bool equal = x && y, same = equal && memcmp(x, y, count * item) == 0;
    for (size_t i = 0; equal && !same && i < count; i++) {
        const char *p = x + i * item, *q = y + i * item;
        equal = memcmp(p, q, item) == 0 || (isnan(load(p, dtype)) && isnan(load(q, dtype)));
    }
    free(x);
    free(y);
    return equal;
}

static void blank_one(void *ctx, int64_t i, int64_t at)
{
    (void)i;
    packing *g = ctx;
    memset(g->to + (size_t)at * g->item, SENTINEL, g->item);
}

bool tensor_spilled(const ts_tensor *t, const ts_tensor *base)
{
    size_t bytes = (size_t)ts_numel(base) * ts_dtype_size(ts_dtype_of(base));
    if (t == base || !bytes || on_meta(ts_device_of(base)))
        return false;
    char *copy = tensor_bytes(base);
    if (!copy)
        return true;
    packing g = {copy, NULL, ts_dtype_size(ts_dtype_of(t))};
    if (ts_numel(t))
        g.to += (const char *)ts_data(t) - (const char *)ts_data(base);
    visit(ts_sizes(t), ts_strides(t), ts_ndim(t), blank_one, &g);
    bool spilled = false;
    for (size_t i = 0; i < bytes; i++)
        spilled |= (uint8_t)copy[i] != SENTINEL;
    free(copy);
    return spilled;
}

/* --------------------------------------------------------------------------- arguments ---- */

int64_t sample_size(const ts_case *c, int64_t size) { return size == SWEEP ? c->sweep : size; }

/** The i-th of n bounds from 0 to top. */
static double bound(int64_t top, int64_t i, int64_t n)
{
    return n > 1 ? (double)(top * i / (n - 1)) : 0;
}

/** Numbers drawn so far for one tensor of a call, and the settings that they depend on. */
typedef struct drawn {
    uint64_t seed, state;
    double low, high;
    ts_dtype dtype;
    int gen;
    int64_t numel;
    double *x;
} drawn;

/**
 * Returns numel random numbers for tensor `place` of a call, owned by a cache. Successive sizes,
 * layouts and forms of a sample use the same leading numbers, and drawing them takes longer than
 * the op, so the cache keeps the last sequence of each place.
 */
static const double *draw(const ts_sample_arg *a, ts_dtype dtype, uint64_t seed, int place,
                          int64_t numel)
{
    static drawn kept[MADE_MOST];
    drawn *k = &kept[place];
    if (k->seed != seed || k->dtype != dtype || k->gen != a->gen || k->low != a->low ||
        k->high != a->high)
        *k = (drawn){seed, seed, a->low, a->high, dtype, a->gen, 0, k->x};
    if (!k->x || k->numel < numel)
        k->x = realloc(k->x, (size_t)(numel + 1) * sizeof *k->x);
    for (; k->numel < numel; k->numel++)
        k->x[k->numel] = element(a, k->numel, place, dtype, seed, &k->state);
    return k->x;
}

static ts_tensor *make_one(ts_made *m, const ts_case *c, const ts_sample_arg *a, int arg,
                           uint64_t seed, double *const *values)
{
    if (m->ntensors >= MADE_MOST)
        return NULL;
    ts_made_tensor *x = &m->tensors[m->ntensors];
    ts_dtype dtype = a->dtype ? (ts_dtype)(a->dtype - 1) : c->dtype;
    int64_t sizes[TS_MAX_DIMS], numel;
    for (int d = 0; d < a->ndim; d++)
        sizes[d] = sample_size(c, a->sizes[d]);
    numel = ref_numel(sizes, a->ndim);
    x->arg = arg;
    x->written = c->info->args[arg].written;
    x->differentiable = ts_dtype_is_float(dtype) && !a->nograd && !x->written;
    x->values = malloc((size_t)(numel + 1) * sizeof *x->values);
    for (int64_t i = 0; !values && a->gen == GEN_BOUNDS && i < numel; i++)
        x->values[i] = bound(sample_size(c, (int64_t)a->high), i, numel);
    if (values || a->gen != GEN_BOUNDS)
        memcpy(x->values, values ? values[m->ntensors] : draw(a, dtype, seed, m->ntensors, numel),
               (size_t)numel * sizeof *x->values);
    ts_layout layout = c->layout;
    if (layout == LAYOUT_MIXED)
        layout = (ts_layout)((m->ntensors * 2 + 1) % LAYOUT_MIXED);
    if (layout == LAYOUT_EXPANDED && (c->s->no_expand || x->written))
        layout = LAYOUT_STRIDED;
    x->t = tensor_make(x->values, dtype, sizes, a->ndim, layout, c->device, &x->base);
    if (!x->t) {
        free(x->values);
        return NULL;
    }
    x->before = on_meta(c->device) ? NULL : tensor_bytes(x->base);
    x->version = ts_version(x->t);
    m->ntensors++;
    return x->t;
}

void made_free(ts_made *m)
{
    for (int i = 0; i < m->ntensors; i++) {
        free(m->tensors[i].values);
        free(m->tensors[i].before);
    }
    m->ntensors = 0;
}

bool made_build(ts_made *m, const ts_case *c, double *const *values)
{
    if (sample_run.begins)
        sample_run.begins(sample_run.ctx, c);
    m->nargs = c->info->nargs;
    m->ntensors = 0;
    uint64_t seed = 1;
    for (const char *p = c->s->op; *p; p++)
        seed = seed * 131 + (uint8_t)*p;
    bool good = true;
    for (int i = 0; good && i < m->nargs; i++) {
        const ts_sample_arg *a = &c->s->args[i];
        ts_value *v = &m->args[i];
        switch (a->tag) {
        case TS_TAG_TENSOR:
            *v = ts_value_tensor(make_one(m, c, a, i, seed + 77u * (unsigned)i, values));
            good = v->t != NULL;
            break;
        case TS_TAG_TENSORS:
            good = a->count <= TS_COUNTOF(m->lists[i]);
            for (int k = 0; good && k < a->count; k++) {
                m->lists[i][k] =
                    make_one(m, c, &a->list[k], i,
                             seed + 77u * (unsigned)i + 13u * (unsigned)(k + 1), values);
                good = m->lists[i][k] != NULL;
            }
            *v = ts_value_tensors(m->lists[i], a->count);
            break;
        case TS_TAG_INTS:
            for (int k = 0; k < a->ndim; k++)
                m->ints[i][k] = sample_size(c, a->sizes[k]);
            *v = ts_value_ints(m->ints[i], a->ndim);
            break;
        case TS_TAG_INT: *v = ts_value_int(sample_size(c, a->i)); break;
        case TS_TAG_FLOAT: *v = ts_value_float(a->d); break;
        case TS_TAG_BOOL: *v = ts_value_bool(a->i); break;
        case TS_TAG_DTYPE:
            *v = ts_value_dtype(a->dtype ? (ts_dtype)(a->dtype - 1) : c->dtype);
            break;
        case TS_TAG_DEVICE: *v = ts_value_device(c->device); break;
        case TS_TAG_STRING: *v = ts_value_string(a->str); break;
        default: *v = ts_value_none();
        }
    }
    if (!good) {
        made_free(m);
        if (sample_is_refusal(c, ts_error_code()))
            sample_refused(c);
        else
            sample_failed(c, "an argument cannot be made: %s", ts_error_message());
    }
    return good;
}

const char *made_intact(const ts_made *m)
{
    for (int i = 0; i < m->ntensors; i++) {
        const ts_made_tensor *x = &m->tensors[i];
        if (x->written) {
            if (ts_version(x->t) == x->version)
                return "the version of a written argument did not change";
            if (tensor_spilled(x->t, x->base))
                return "elements outside a written argument changed";
            continue;
        }
        if (ts_version(x->t) != x->version)
            return "the version of an argument that is not written changed";
        if (!x->before)
            continue;
        char *now = tensor_bytes(x->base);
        bool same =
            now && memcmp(x->before, now,
                          (size_t)ts_numel(x->base) * ts_dtype_size(ts_dtype_of(x->base))) == 0;
        free(now);
        if (!same)
            return "an argument that is not written changed";
    }
    return NULL;
}
