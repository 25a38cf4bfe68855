/** @file cause.c  Reasons for new plans and sites of breaks in the text of ts_explain(). */
// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "tests/compile/explains.h"
#include "tests/tracing/common.h"

/** What the function below does. */
typedef struct variant {
    bool tanh_form, other_op, keeps, given, bounded, third;
    int64_t dim;
    ts_dtype dtype;
    enum { NOTHING, NEG, SUM, CLAMP, CAT, ADD, TO } last; /* its last call */
    ts_tensor *kept;
} variant;

static ts_status varied(TRACED)
{
    variant *v = ctx;
    ts_tensor *t = ts_exp(in[0]), *first = t;
    if (v->keeps)
        v->kept = ts_retain(t);
    t = ts_mul(t, in[1]);
    t = v->other_op ? ts_tanh(t) : v->tanh_form ? ts_gelu_tanh(t) : ts_gelu(t);
    t = ts_cumsum(t, v->dim);
    ts_tensor *parts[] = {t, first, t};
    switch (v->last) {
    case NOTHING: break;
    case NEG: t = ts_neg(t); break;
    case SUM: t = ts_sum_dim(t, v->dim, false); break;
    case CLAMP:
        t = v->bounded ? ts_clamp(t, ts_scalar_float(-1), ts_scalar_float(1))
                       : ts_clamp_max(t, ts_scalar_float(1));
        break;
    case CAT: t = ts_cat(parts, v->third ? 3 : 2, 0); break;
    case ADD: t = v->given ? ts_add_out(in[2], t, first) : ts_add(t, first); break;
    case TO: t = ts_to(t, v->dtype); break;
    }
    return TS_STATUS_OF(out[0] = t);
}

/** Sizes and inputs of a pair of calls. */
typedef struct pair {
    int64_t r, c, more; /* (r, c) elements; `more` is another size */
    ts_tensor *was[3], *now[3];
    variant before, after;
} pair;

enum {
    SIZE, DIMS, STRIDE, DTYPE, SHARES, SHARES_NO_MORE, OFFSET, BOOL, INTEGER, OP, MORE, FEWER,
    MEMBER, PRESENT, LENGTH, HELD, GIVEN, DTYPE_ARGUMENT, CHANGES
};

/** Changes one property of the second call; writes the expected sentence. */
static void change(pair *p, int what, char *text, size_t size)
{
    long long r = p->r, c = p->c, more = p->more;
    variant *a = &p->before, *b = &p->after;
    switch (what) {
    case SIZE:
        for (int i = 0; i < 3; i++)
            p->now[i] = numbers(3, TS_SIZES(r, more));
        snprintf(text, size, "argument 'self' of call 0 (exp) had size %lld in dim 1, now %lld", c,
                 more);
        break;
    case DIMS:
        for (int i = 0; i < 3; i++)
            p->now[i] = numbers(3, TS_SIZES(r, c, 2));
        snprintf(text, size, "argument 'self' of call 0 (exp) had 2 dims, now 3");
        break;
    case STRIDE:
        p->now[0] = ts_transpose(numbers(3, TS_SIZES(c, r)), 0, 1);
        snprintf(text, size, "argument 'self' of call 0 (exp) had stride %lld in dim 0, now 1", c);
        break;
    case DTYPE:
        p->now[1] = ts_to(p->was[1], TS_BF16);
        snprintf(text, size, "argument 'other' of call 1 (mul) had dtype f32, now bf16");
        break;
    case SHARES:
        p->now[1] = p->now[0];
        snprintf(text, size, "argument 'other' of call 1 (mul) had memory of its own, now that of "
                             "argument 'self' of call 0 (exp)");
        break;
    case SHARES_NO_MORE:
        p->was[1] = p->was[0];
        snprintf(text, size, "argument 'other' of call 1 (mul) had the memory of argument 'self' "
                             "of call 0 (exp), now memory of its own");
        break;
    case OFFSET:
        p->now[0] = ts_narrow(numbers(3, TS_SIZES(more + r, c)), 0, more, r);
        snprintf(text, size,
                 "argument 'self' of call 0 (exp) began at byte 0 of its memory, now at %lld",
                 more * c * 4);
        break;
    case BOOL:
        b->tanh_form = true;
        snprintf(text, size, "argument 'tanh_form' of call 2 (gelu) was false, now true");
        break;
    case INTEGER:
        b->dim = 1;
        snprintf(text, size, "argument 'dim' of call 3 (cumsum) was 0, now 1");
        break;
    case OP:
        b->other_op = true;
        snprintf(text, size, "call 2 was gelu, now tanh");
        break;
    case MORE:
        b->last = NEG;
        snprintf(text, size, "there were 4 calls, now 5: call 4 (neg) is new");
        break;
    case FEWER:
        a->last = NEG;
        snprintf(text, size, "there were 5 calls, now 4: call 4 (neg) is missing");
        break;
    case MEMBER:
        *a = *b = (variant){.last = SUM, .dim = 1};
        b->dim = 0;
        snprintf(text, size, "argument 'dim' of call 3 (cumsum) was 1, now 0");
        break;
    case PRESENT:
        a->last = b->last = CLAMP;
        b->bounded = true;
        snprintf(text, size, "argument 'min' of call 4 (clamp) was absent, now a float");
        break;
    case LENGTH:
        a->last = b->last = CAT;
        b->third = true;
        snprintf(text, size, "argument 'tensors' of call 4 (cat) had 2 members, now 3");
        break;
    case HELD:
        b->keeps = true;
        snprintf(text, size, "the result of call 0 (exp) was not held by the program after the "
                             "recording, now held");
        break;
    case GIVEN:
        a->last = b->last = ADD;
        b->given = true;
        snprintf(text, size, "the result of call 4 (add) was new, now a given tensor");
        break;
    case DTYPE_ARGUMENT:
        a->last = b->last = TO;
        a->dtype = TS_BF16;
        b->dtype = TS_F16;
        snprintf(text, size, "argument 'dtype' of call 4 (to) was bf16, now f16");
        break;
    }
}

TS_TEST(explain_names_the_call_and_the_field_that_made_a_new_plan, .loop = CHANGES)
{
    for (uint32_t turn = 0; turn < 8; turn++) {
        TS_SCOPE;
        uint32_t draw = (turn * CHANGES + (uint32_t)_i) * 2654435761u;
        pair p = {.r = 2 + (draw >> 8) % 40, .c = 2 + (draw >> 16) % 40};
        p.more = p.c + 1 + (draw >> 24) % 9;
        for (int i = 0; i < 3; i++)
            p.was[i] = p.now[i] = numbers((uint64_t)i, TS_SIZES(p.r, p.c));
        char text[400], whole[420];
        change(&p, _i, text, sizeof text);
        snprintf(whole, sizeof whole, "newest plan (%s)", text);
        variant v = p.before;
        ts_compiled *c = ts_compile(varied, &v, NULL);
        ts_tensor *out;
        OK(ts_compiled_call(c, p.was, 3, &out, 1));
        ck_assert(explains(c, "newest plan (the first recording)"));
        v = p.after;
        OK(ts_compiled_call(c, p.now, 3, &out, 1));
        ck_assert_msg(explains(c, whole), "%lld x %lld, other size %lld", (long long)p.r,
                      (long long)p.c, (long long)p.more);
        ts_release(v.kept);
        v.kept = NULL;
        ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 2);
        ts_compiled_free(c);
    }
}

typedef struct scale {
    double a, b;
} scale;

static ts_status scaled_twice(TRACED)
{
    const scale *s = ctx;
    ts_tensor *a = ts_exp(ts_mul_scalar(in[0], s->a));
    return TS_STATUS_OF(out[0] = ts_sub(a, ts_exp(ts_mul_scalar(in[0], s->b))));
}

TS_TEST(explain_names_the_numbers_that_made_a_new_plan)
{
    TS_SCOPE;
    scale s = {2, 2};
    ts_compiled *c = ts_compile(scaled_twice, &s, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(30)), *y;
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    s.b = 3.5;
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert(explains(c, "numbers that were equal differ: argument 'other' of call 0 (mul) is 2, "
                          "argument 'other' of call 2 (mul) is 3.5"));
    ts_compiled_free(c);
    s = (scale){1, 3};
    c = ts_compile(scaled_twice, &s, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    s.a = 4;
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ck_assert(explains(c, "numbers that were folded differ: argument 'other' of call 0 (mul) was "
                          "1, now 4"));
    ts_compiled_free(c);
}

/** Three recordings: two reads of values end the first two. */
static ts_status broken(TRACED)
{
    double sum, most;
    ts_tensor *t = ts_exp(in[0]);
    TS_TRY(ts_item(ts_sum(t), &sum));
    t = ts_mul_scalar(t, sum);
    TS_TRY(ts_item(ts_amax(t), &most));
    return TS_STATUS_OF(out[0] = ts_tanh(t));
}

TS_TEST(a_recording_after_a_break_is_compared_with_the_one_after_the_same_break)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(broken, NULL, NULL);
    ts_tensor *y;
    for (int turn = 0; turn < 3; turn++) {
        static const int64_t sizes[] = {300, 600, 300};
        ts_tensor *x = numbers(1, TS_SIZES(sizes[turn]));
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert(explains(c, turn ? "newest plan (after break 2: argument 'self' of call 0 (tanh) "
                                     "had size 300 in dim 0, now 600)"
                                   : "newest plan (after break 2: the first recording)"));
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 6);
    ts_compiled_free(c);
}

/** The call sites of breaks that the log has named, in words of ts_format_site(). */
static char logged[400];
static void on_log(void *payload, const char *topic, const char *text)
{
    (void)payload;
    if (strcmp(topic, "compile") == 0 && strstr(text, "breaks the recording"))
        snprintf(logged, sizeof logged, "%s", text);
}

static const void *item_site;
static ts_status reads(TRACED)
{
    double sum;
    ts_tensor *t = ts_sum(ts_exp(in[0]));
    ts_tensor *none = NULL;
    ts_item(none, &sum); /* an error, whose call site is in this function too */
    item_site = ts_error_site();
    ts_error_clear();
    TS_TRY(ts_item(t, &sum));
    return TS_STATUS_OF(out[0] = ts_mul_scalar(in[0], sum));
}

TS_TEST(explain_and_the_log_name_the_call_site_of_a_break)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(reads, NULL, NULL);
    ts_tensor *x = numbers(1, TS_SIZES(30)), *y;
    char site[200], file[64];
    unsigned in_reads, found;
    ts_log_set_callback(on_log, NULL);
    OK(ts_compiled_call(c, &x, 1, &y, 1));
    ts_log_set_callback(NULL, NULL);
    ts_format_site(site, sizeof site, item_site);
    ck_assert_int_eq(sscanf(site, "%60[^+]+%x", file, &in_reads), 2); /* of this executable */
    char want[120];
    snprintf(want, sizeof want, "a read of values breaks the recording, called from %s+", file);
    const char *at = strstr(logged, want);
    ck_assert_msg(at && sscanf(at + strlen(want), "%x", &found) == 1, "%s", logged);
    ck_assert_msg(found - in_reads < 1000 || in_reads - found < 1000,
                  "the break is at %x, the program's calls at %x", found, in_reads);
    snprintf(want, sizeof want, "break: a read of values, called from %s+0x%x", file, found);
    ck_assert(explains(c, want));
    ts_compiled_free(c);
}
