/**
 * @file draw.c
 * Draws tensors and other arguments at random, valid and invalid ones.
 */
// SPDX-License-Identifier: MIT
#include <math.h>
#include <stdlib.h>

#include "tests/misuse/misuse.h"

/* ------------------------------------------------------------------------- random numbers ---- */

uint64_t next(void)
{
    uint64_t z = (my->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
int below(int n) { return (int)(next() % (uint64_t)n); }
bool one_in(int n) { return below(n) == 0; }

/* ------------------------------------------------------------------------ memory of a call ---- */

void *arena(size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes > sizeof my->memory - my->taken)
        return NULL;
    my->taken += bytes;
    return memset(my->memory + my->taken - bytes, 0, bytes);
}

bool places_are_empty(void)
{
    for (int i = 0; i < my->nplaces; i++)
        for (size_t k = 0; k < RESULT_BYTES / sizeof *my->places[i]; k++)
            if (my->places[i][k])
                return false;
    return true;
}
void clear_places(void) { my->nplaces = 0; }

/* ------------------------------------------------------------------------------- tensors ---- */

bool dead_allowed;

void begin_drawing(void)
{
    my->nmade = my->ndying = my->nplaces = my->nborrowed = 0;
    my->sharing = false;
    my->taken = 0;
    my->null_list = false;
    my->mostly_right = !one_in(3);
    my->dims = below(5);
    for (int d = 0; d < my->dims; d++)
        my->shape[d] = one_in(12) ? 0 : 1 + below(4);
    my->common = one_in(2) ? TS_F32 : (ts_dtype)below(TS_DTYPE_COUNT);
    my->count_of_call = my->dims;
}

/** True if the row holds references to its tensors, so that their handles stay valid. */
static bool retains(void) { return my->held || !dead_allowed; }

void free_row_tensors(void)
{
    for (int i = my->nborrowed; i < my->nmade; i++) {
        ts_set_grad(my->made[i].t, TS_NONE); /* breaks cycles of gradients */
        if (retains()) {
            ts_release(my->made[i].t);
            ts_release(my->made[i].base);
        }
    }
    my->nmade = my->nborrowed = 0;
}

static ts_tensor *add_made(ts_tensor *t, ts_tensor *base)
{
    if (t && my->nmade < MADE) {
        my->made[my->nmade++] = (made_tensor){.t = t, .base = base};
        if (retains()) {
            ts_retain(t);
            ts_retain(base);
        }
    }
    return t;
}

/** A new tensor whose sizes are usually those of the call, my->shape. */
static ts_tensor *new_tensor(void)
{
    int64_t sizes[TS_MAX_DIMS];
    int n = my->dims;
    memcpy(sizes, my->shape, sizeof sizes);
    if (one_in(my->mostly_right ? 6 : 2)) {
        n = below(6);
        for (int d = 0; d < n; d++)
            sizes[d] = one_in(3) ? below(2) : (int[]){1, 2, 3, 4, 5, 7}[below(6)];
    } else if (one_in(4)) {
        for (int d = 0; d < n; d++)
            sizes[d] = one_in(3) ? 1 : sizes[d];
    } else if (n && one_in(4)) {
        n--;
    }
    bool other = one_in(my->mostly_right ? 6 : 2);
    ts_dtype dtype = other ? (ts_dtype)below(TS_DTYPE_COUNT) : my->common;
    bool meta = one_in(my->mostly_right ? 60 : 15);
    ts_tensor *base = meta     ? ts_empty_on(sizes, n, dtype, TS_DEVICE_META)
                      : one_in(3) ? ts_full(sizes, n, TS_SCALAR(one_in(9) ? NAN : below(4)), dtype)
                                  : ts_full(sizes, n, TS_SCALAR(below(5)), dtype);
    ts_tensor *t = base;
    if (t && n > 1 && one_in(6))
        t = ts_transpose(t, 0, n - 1);
    if (t && n && one_in(8))
        t = ts_slice(t, n - 1, 0, INT64_MAX, 2);
    if (t && one_in(8)) {
        int64_t wide[TS_MAX_DIMS + 1] = {below(3)};
        memcpy(wide + 1, ts_sizes(t), (size_t)ts_ndim(t) * sizeof *wide);
        t = ts_expand(t, wide, ts_ndim(t) + 1);
    }
    if (t && ts_dtype_is_float(dtype) && one_in(4)) {
        if (t == base)
            ts_set_requires_grad(t, true);
        if (one_in(3))
            t = ts_mul_scalar(ts_set_requires_grad(ts_detach(t), true), TS_SCALAR(1)), base = NULL;
    }
    return add_made(t, meta ? NULL : base);
}

ts_tensor *pick_tensor(void)
{
    int what = below(my->mostly_right ? 120 : 24);
    if (what == 0)
        return NULL;
    if (what == 1)
        return TS_NONE;
    if (what == 2 && dead_allowed && my->ndying < TS_COUNTOF(my->dying)) {
        say("dead ");
        return my->dying[my->ndying++] = ts_ones(my->shape, my->dims, my->common);
    }
    if (my->sharing && one_in(2))
        return my->made[below(my->nborrowed)].t;
    int own = my->nmade - my->nborrowed;
    if (own && (what == 3 || one_in(my->held ? 2 : 8)))
        return my->made[my->nborrowed + below(own)].t;
    return new_tensor();
}

void make_tensors(int n)
{
    for (int i = 0; i < n; i++)
        new_tensor();
}

void borrow_tensors(const hand *owner)
{
    my->dims = owner->dims;
    my->common = owner->common;
    memcpy(my->shape, owner->shape, sizeof my->shape);
    memcpy(my->made, owner->made, (size_t)owner->nmade * sizeof *my->made);
    my->nmade = my->nborrowed = owner->nmade;
}

ts_tensor *draw_tensor(const char *argument)
{
    say_name(argument);
    ts_tensor *t = pick_tensor();
    say_tensor(t);
    return t;
}

/* ------------------------------------------------------------------------ other arguments ---- */

int64_t odd_number(void)
{
    static const int64_t odd[] = {INT64_MAX, INT64_MIN,   (int64_t)1 << 45,  -((int64_t)1 << 45),
                                  INT32_MAX, INT32_MIN,   (int64_t)1 << 32,  1000,
                                  -1000,     UINT32_MAX, INT64_MAX / 2 + 1, INT64_MIN + 1};
    return odd[below(TS_COUNTOF(odd))];
}
int64_t pick_number(void)
{
    return one_in(my->mostly_right ? 40 : 6) ? odd_number() : one_in(3) ? below(10) - 4 : below(4);
}
int64_t draw_int64(const char *argument)
{
    int64_t v = pick_number();
    say_name(argument);
    say("%" PRId64, v);
    return v;
}
int draw_int(const char *argument) { return (int)draw_int64(argument); }
uint64_t draw_uint64(const char *argument) { return (uint64_t)draw_int64(argument); }
int draw_enum(const char *argument) { return (int)draw_int64(argument); }

double pick_double(void)
{
    static const double some[] = {0,        -0.0,      1,   -1,   0.5, 2,   1e300, -1e300,
                                  INFINITY, -INFINITY, NAN, 1e-8, 0.1, 0.9, 100,   -0.3};
    return my->mostly_right && !one_in(8) ? some[below(2) ? 4 : 13] : some[below(TS_COUNTOF(some))];
}
double draw_double(const char *argument)
{
    double v = pick_double();
    say_name(argument);
    say("%g", v);
    return v;
}
bool draw_bool(const char *argument)
{
    bool v = one_in(2);
    say_name(argument);
    say("%d", v);
    return v;
}
size_t draw_bytes(const char *argument)
{
    size_t v = one_in(8) ? (size_t)-1 : (size_t)below(600);
    say_name(argument);
    say("%zu", v);
    return v;
}
ts_scalar draw_scalar(const char *argument)
{
    ts_scalar s = one_in(2) ? ts_scalar_float(pick_double())
                  : one_in(4) ? ts_scalar_bool(one_in(2)) : ts_scalar_int(pick_number());
    if (one_in(my->mostly_right ? 100 : 12))
        s.kind = (uint8_t)(one_in(2) ? below(16) : below(256));
    say_name(argument);
    say("{%d, %" PRId64 "}", s.kind, s.i);
    return s;
}
ts_dtype draw_dtype(const char *argument)
{
    int v = one_in(my->mostly_right ? 40 : 6) ? (int)odd_number()
            : one_in(20)                  ? 250 + below(8)
                                          : below(TS_DTYPE_COUNT);
    say_name(argument);
    say("dtype %d", v);
    return (ts_dtype)v;
}
ts_device draw_device(const char *argument)
{
    ts_device d = !one_in(my->mostly_right ? 20 : 3) ? TS_DEVICE_CPU
                  : one_in(2)                    ? TS_DEVICE_META
                                  : (ts_device){(uint8_t)below(256), (uint8_t)below(256)};
    if (in_world && one_in(2))
        d = (ts_device){(uint8_t)(2 + below(3)), (uint8_t)below(2)};
    say_name(argument);
    say("device %d:%d", d.backend, d.index);
    return d;
}
ts_rng_state draw_rng_state(const char *argument)
{
    say_name(argument);
    say("state");
    return (ts_rng_state){next(), next()};
}
ts_loader_state draw_loader_state(const char *argument)
{
    return (ts_loader_state){draw_int64(argument), draw_int64("index")};
}
ts_keyset draw_keyset(const char *argument)
{
    ts_keyset set = one_in(3) ? 0 : one_in(4) ? next() : TS_KEYSET(draw_key(argument) & 63);
    say_name(argument);
    say("%#" PRIx64, set);
    return set;
}
ts_mask_guard draw_mask_guard(const char *argument)
{
    return (ts_mask_guard){draw_keyset(argument), draw_keyset("exclude")};
}
ts_rows draw_rows(const char *argument)
{
    return (ts_rows){draw_int64(argument), draw_int64("count"), draw_int64("inner")};
}
ts_check_place draw_check_place(const char *argument)
{
    (void)argument;
    return (ts_check_place){"ts_misuse", NULL};
}
ts_key draw_key(const char *argument)
{
    static const uint8_t known[] = {TS_KEY_CPU, TS_KEY_META, TS_KEY_AUTOGRAD, TS_KEY_TRACING,
                                    TS_KEY_AUTOCAST, 2, 3, 25, TS_KEY_ABSENT, TS_KEY_INVALID};
    ts_key key = one_in(4) ? (ts_key)below(256) : known[below(TS_COUNTOF(known))];
    say_name(argument);
    say("key %d", key);
    return key;
}

static const char *const texts[] = {
    "", "none", "mean", "sum", "tanh", "add", "cpu", "meta", "cpu:3", "a text that no op knows",
    "\x1b[31m\xc2\x9b\n", "\xe2\x80\xae", "\xff\xfe", "%s%n", "weight", "bias", "a", "b", "0",
    "0.weight", "model", "loss", "step", "groups.0.lr", "scale", "nan", "1", "-5", "relu", "gelu",
    "mine", "mine.op", "mine.op(Tensor self) -> Tensor", "mine.op(Tensor a, Scalar b) -> Tensor",
    "mine.two(Tensor a, Tensor(a!) b) -> (Tensor, Tensor)", "mine.op(Tensor", "AUTOGRAD",
    "backends", "{\"a\": 1}", "{\"a\": [1, {}", "dispatch", "--steps", "MINE"};
const char *pick_text(void) { return texts[below(TS_COUNTOF(texts))]; }

char *draw_string(const char *argument)
{
    const char *text = one_in(my->mostly_right ? 30 : 8) ? NULL : pick_text();
    say_name(argument);
    say("text %.20s", text ? text : "NULL");
    return (char *)text;
}
/** A random text for check.h's functions; never NULL. */
char *draw_letters(const char *argument)
{
    (void)argument;
    return (char *)pick_text();
}

/* --------------------------------------------------------------------------------- lists ---- */

void draw_count(void)
{
    my->count_of_call = one_in(my->mostly_right ? 30 : 5) ? (int[]){-1, INT32_MIN, -4, 0}[below(4)]
                    : one_in(3)                   ? below(ENTRIES + 1)
                                                  : my->dims;
    my->null_list = my->some_list = false;
}
/** A list's count, drawn after the lists. If all lists are NULL, it may be any number. */
int64_t drawn_count(const char *argument)
{
    bool any = my->null_list && !my->some_list && one_in(2);
    int64_t count = any ? odd_number() : my->count_of_call;
    say(", %s=%" PRId64, argument, count);
    return count;
}

/** Memory for a list; sometimes NULL. */
static void *buffer(const char *argument)
{
    void *made = one_in(my->mostly_right ? 60 : 12) ? NULL : arena(RESULT_BYTES);
    say_name(argument);
    say("%s", made ? "" : "NULL");
    my->null_list |= !made, my->some_list |= made != NULL;
    return made;
}
ts_tensor **draw_tensors(const char *argument)
{
    ts_tensor **list = buffer(argument);
    say("[");
    for (int i = 0; list && i < ENTRIES; i++) {
        list[i] = i && one_in(2) ? list[below(i)] : pick_tensor();
        say(i ? ", " : "");
        say_tensor(list[i]);
    }
    say("]");
    return list;
}
ts_tensor **draw_places(const char *argument)
{
    ts_tensor **list = buffer(argument);
    if (list && my->nplaces < TS_COUNTOF(my->places))
        my->places[my->nplaces++] = list;
    return list;
}
ts_tensor ***draw_place_list(const char *argument)
{
    ts_tensor ***list = buffer(argument);
    for (int i = 0; list && i < 3; i++)
        list[i] = one_in(3) ? NULL : draw_places("");
    return list;
}
const char **draw_strings(const char *argument)
{
    const char **list = buffer(argument);
    for (int i = 0; list && i < ENTRIES; i++)
        list[i] = draw_string("");
    return list;
}
/** The words of a command line, with a final NULL. */
char **draw_words(const char *argument)
{
    char **list = buffer(argument);
    for (int i = 0; list && i < ENTRIES; i++)
        list[i] = (char *)pick_text();
    return list;
}
int draw_argc(const char *argument) { return (void)argument, below(ENTRIES + 1); }
int64_t *draw_ints(const char *argument)
{
    int64_t *list = buffer(argument);
    say("[");
    for (int i = 0; list && i < NUMBERS; i++) {
        list[i] = my->mostly_right && i < my->dims && one_in(2) ? my->shape[i] : pick_number();
        if (i < 9)
            say("%s%" PRId64, i ? ", " : "", list[i]);
    }
    say("]");
    return list;
}
/** Sizes for which the memory of draw_memory() is large enough, and invalid sizes. */
int64_t *draw_few(const char *argument)
{
    int64_t *list = buffer(argument);
    for (int i = 0; list && i < NUMBERS; i++)
        list[i] = one_in(20) ? INT64_MIN >> below(64) : below(3);
    return list;
}
double *draw_doubles(const char *argument)
{
    double *list = buffer(argument);
    for (int i = 0; list && i < NUMBERS; i++)
        list[i] = pick_double();
    return list;
}
int *draw_int_place(const char *argument) { return buffer(argument); }
ts_scalar *draw_scalar_place(const char *argument)
{
    ts_scalar *list = buffer(argument);
    if (list)
        *list = draw_scalar("*");
    return list;
}
void *draw_buffer(const char *argument) { return buffer(argument); }
void *draw_memory(const char *argument)
{
    static _Thread_local _Alignas(64) char elements[1 << 16];
    bool none = one_in(12);
    size_t at = one_in(4) ? (size_t)below(16) : 0;
    say_name(argument);
    say(none ? "NULL" : "memory");
    my->null_list |= none, my->some_list |= !none;
    return none ? NULL : elements + at;
}
ts_step_guard *draw_guard(const char *argument)
{
    ts_step_guard *guard = one_in(2) ? NULL : arena(sizeof *guard);
    if (!guard)
        return NULL;
    say_name(argument);
    say("guard");
    guard->found = draw_tensor("found");
    guard->skipped = draw_tensors("skipped");
    return guard;
}
FILE *stream;
FILE *draw_stream(const char *argument)
{
    FILE *file = one_in(8) ? NULL : stream;
    say_name(argument);
    say(file ? "stream" : "NULL");
    return file;
}
ts_node *draw_node(const char *argument)
{
    ts_tensor *t = draw_tensor(argument);
    ts_node *node = t && t != TS_NONE && ts_requires_grad(t) ? ts_grad_node(t) : NULL;
    say(" node%s", node ? "" : " NULL");
    return node;
}

void *draw_sized(const char *argument, void *options, size_t size)
{
    size_t given = !one_in(my->mostly_right ? 40 : 6)
                       ? size
                       : (size_t[]){0, 1, 7, size - 1, size + 1, (size_t)-1}[below(6)];
    if (options)
        memcpy(options, &given, sizeof given);
    bool none = one_in(6);
    say_name(argument);
    say("%s of size %zu", none ? "NULL" : "options", given);
    return none ? NULL : options;
}
void *draw_struct(const char *argument, void *options)
{
    bool none = one_in(20);
    say_name(argument);
    say(none ? "NULL" : "struct");
    return none ? NULL : options;
}
void *draw_structs(const char *argument, const void *one, size_t size)
{
    char *list = one_in(my->mostly_right ? 60 : 12) ? NULL : arena((ENTRIES + 1) * size);
    say_name(argument);
    say(list ? "structs" : "NULL");
    my->null_list |= !list, my->some_list |= list != NULL;
    for (int i = 0; list && i < ENTRIES; i++)
        memcpy(list + (size_t)i * size, one, size);
    return list;
}

ts_value draw_value(const ts_op_arg *p)
{
    int tag = below(10);
    uint16_t kinds = p->kinds;
    bool free_choice = one_in(my->mostly_right ? 100 : 20);
    if (!free_choice && p->optional && one_in(3))
        return say(", %s=none", p->name), ts_value_none();
    for (int k = 0; !free_choice && k < 10 && !(kinds >> tag & 1); k++)
        tag = (tag + 1) % 10;
    switch (tag) {
    case TS_TAG_BOOL: return ts_value_bool(draw_bool(p->name));
    case TS_TAG_INT: return ts_value_int(draw_int64(p->name));
    case TS_TAG_FLOAT: return ts_value_float(draw_double(p->name));
    case TS_TAG_TENSOR: return ts_value_tensor(draw_tensor(p->name));
    case TS_TAG_TENSORS: {
        ts_tensor **list = draw_tensors(p->name);
        int n = list ? below(ENTRIES + 1) : one_in(2) ? (int)odd_number() : 0;
        say(" %d", n);
        return ts_value_tensors(list, n);
    }
    case TS_TAG_INTS: {
        int64_t *list = draw_ints(p->name);
        int n = list ? one_in(2) ? my->dims : below(NUMBERS) : one_in(2) ? (int)odd_number() : 0;
        say(" %d", n);
        return ts_value_ints(list, n);
    }
    case TS_TAG_DTYPE: return ts_value_dtype(draw_dtype(p->name));
    case TS_TAG_DEVICE: return ts_value_device(draw_device(p->name));
    case TS_TAG_STRING: return ts_value_string(draw_string(p->name));
    default: say(", %s=none", p->name); return ts_value_none();
    }
}
