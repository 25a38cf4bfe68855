/** @file dead.c  Calls whose results nothing reads: dropped, unless they report an error or have an
 *  effect as eager calls. */
// SPDX-License-Identifier: MIT
#include "dispatch/entries.h"
#include "ops/kernel.h"
#include "tests/compile/stages.h"
#include "tests/tracing/common.h"

/** Calls with an index, class or value that the kernel refuses. in: floats (5, 4), integers (5). */
static ts_status refused(ts_tensor *const *in, int which)
{
    ts_tensor *x = in[0], *at = ts_add_scalar(in[1], 90), *rows = ts_unsqueeze(at, 1), *grad, *out;
    ts_tensor *zero = ts_mul_scalar(in[1], 0), *one = ts_ones(TS_SIZES(1), TS_F32);
    ts_loss_opts loss = {.size = sizeof loss, .reduction = TS_REDUCTION_NONE};
    ts_attention_opts bounds = {.size = sizeof bounds, .max_seqlen_q = 2, .max_seqlen_k = 2};
    ts_tensor *packed = ts_reshape(x, TS_SIZES(1, 1, 5, 4)), *ends = ts_to(at, TS_I32);
    bounds.cu_seqlens = (ts_tensor *[]){ends, ends};
    switch (which) {
    case 0: return TS_STATUS_OF(ts_index_select(x, 0, at));
    case 1: return TS_STATUS_OF(ts_gather(x, 0, rows));
    case 2: return TS_STATUS_OF(ts_scatter(x, 0, rows, x));
    case 3: return TS_STATUS_OF(ts_scatter_add(ts_exp(x), 0, rows, x));
    case 4: return TS_STATUS_OF(ts_index_add_(ts_clone(x), 0, at, x));
    case 5: return TS_STATUS_OF(ts_one_hot(at, 3));
    case 6: return TS_STATUS_OF(ts_embedding(x, at, -1));
    case 7: return TS_STATUS_OF(ts_embedding_backward(x, at, 7, -1));
    case 8: return TS_STATUS_OF(ts_masked_scatter(x, ts_gt_scalar(ts_exp(x), 0), one));
    case 9: return TS_STATUS_OF(ts_cross_entropy(x, at));
    case 10: return TS_STATUS_OF(ts_cross_entropy_ex(x, at, &loss));
    case 11: return TS_STATUS_OF(ts_nll_loss(x, at));
    case 12: return TS_STATUS_OF(ts_nll_loss_backward(one, x, at, TS_REDUCTION_MEAN, -100));
    case 13: return TS_STATUS_OF(ts_floor_divide(in[1], zero));
    case 14: return TS_STATUS_OF(ts_remainder(in[1], zero));
    case 15: return TS_STATUS_OF(ts_bernoulli(ts_add_scalar(ts_exp(x), 1)));
    case 16: return TS_STATUS_OF(ts_multinomial(ts_neg(ts_exp(x)), 1, true));
    case 17: return TS_STATUS_OF(ts_scaled_dot_product_attention_ex(packed, packed, packed,
                                                                    NULL, &bounds));
    case 18:
        grad = ts_set_requires_grad(ts_clone(x), true);
        out = ts_nll_loss(grad, at);
        return TS_STATUS_OF(out);
    default: return TS_OK;
    }
}
enum { REFUSED = 19 };

typedef struct unread {
    int which;
    bool valid; /* no call is refused */
} unread;

/** Draws before and after the refused call, whose result nothing reads. */
static ts_status reads_none(TRACED)
{
    const unread *u = ctx;
    ts_tensor *drawn = ts_dropout(in[0], 0.5, true);
    TS_TRY(ts_add_scalar_(in[0], 0.25));
    if (!u->valid)
        TS_TRY(refused(in, u->which));
    return TS_STATUS_OF(out[0] = ts_add(drawn, ts_dropout(ts_exp(in[0]), 0.5, true)));
}

static void begin(ts_tensor **in)
{
    ts_rng_set_state((ts_rng_state){3, 100});
    in[0] = numbers(5, TS_SIZES(5, 4));
    in[1] = ts_arange(1, 6, 1, TS_I64);
}

TS_TEST(an_error_of_a_call_that_nothing_reads_is_reported, .loop = 2 * STAGES)
{
    set_stage(stages[_i % STAGES]);
    for (int k = 0; k < REFUSED; k++) {
        TS_SCOPE;
        unread u = {.which = k};
        ts_tensor *in[2], *out;
        ts_compiled *c = ts_compile(reads_none, &u, TS_OPTS(ts_compile_opts,
                                                            .replay = _i >= STAGES));
        begin(in);
        ts_status want = reads_none(&u, in, 2, &out, 1);
        char text[512], sums[2][8];
        ts_rng_state rng = ts_rng_get_state();
        ck_assert_msg(want != TS_OK, "case %d does not fail", k);
        snprintf(text, sizeof text, "%s", ts_error_message());
        memcpy(sums[0], ts_data(in[0]), 8);
        for (int turn = 0; turn < 4; turn++) {
            begin(in);
            ts_error_clear();
            u.valid = turn == 2;
            ts_status got = ts_compiled_call(c, in, 2, &out, 1);
            memcpy(sums[1], ts_data(in[0]), 8);
            ck_assert_mem_eq(sums[0], sums[1], 8);
            if (u.valid) {
                OK(got);
                continue;
            }
            ck_assert_msg(got == want && strcmp(text, ts_error_message()) == 0,
                          "case %d, turn %d: %d, '%s', not '%s'", k, turn, got, ts_error_message(),
                          text);
            ck_assert_uint_eq(ts_rng_get_state().offset, rng.offset);
        }
        ts_compiled_free(c);
    }
    set_stage("full");
}

/** Each op that has the flag is one of the calls above, or its gradient. */
TS_TEST(calls_that_may_fail_are_marked)
{
    static const char *const backward[] = {
        "cross_entropy_backward", "cross_entropy_grad", "max_pool_backward",
        "max_pool_taps_backward",
        "scaled_dot_product_attention_backward"}; /* their arguments come from forward calls */
    int marked = 0;
    for (int op = 0; op < TS_OP_COUNT; op++)
        marked += (ts_ops[op].flags & TS_OP_CHECKED) != 0;
    ck_assert_int_eq(marked, 17 + TS_COUNTOF(backward));
}

static _Atomic int noted;
static ts_status note(ts_frame *f)
{
    noted++;
    memset(f->rets[0].t->data, 0, sizeof(float) * (size_t)f->rets[0].t->numel);
    return TS_OK;
}
static ts_status note_rule(ts_frame *f) { return ts_rule_pointwise(f, 1, TS_DTYPE_NONE, true); }

static ts_status notes(TRACED)
{
    int op = *(int *)ctx;
    ts_value x = ts_value_tensor(ts_exp(in[0])), y[3] = {{0}};
    TS_TRY(ts_call_boxed(op, &x, 1, &y[0], 1));
    TS_TRY(ts_call_boxed(op, &x, 1, &y[1], 1));
    TS_TRY(ts_call_boxed(op, &x, 1, &y[2], 1));
    out[0] = ts_mul(ts_relu(y[1].t), y[2].t);
    for (int i = 0; i < 3; i++)
        ts_release(y[i].t);
    return TS_STATUS_OF(out[0]);
}

/** The first of three equal calls is not read; the others are read by pointwise calls. */
TS_TEST(each_call_of_a_programs_op_runs_its_kernel_once, .loop = 2 * STAGES)
{
    int op;
    OK(ts_register_op_ex("test.note(Tensor x) -> Tensor",
                         TS_OPTS(ts_op_opts, .rule = note_rule, .not_differentiable = true), &op));
    OK(ts_register_kernel("test.note", TS_KEY_CPU, note, NULL, NULL));
    set_stage(stages[_i % STAGES]);
    TS_SCOPE;
    ts_compiled *c = ts_compile(notes, &op, NULL);
    int64_t rows = _i < STAGES ? 3 : 700;
    ts_tensor *x = numbers(7, TS_SIZES(rows, 257)), *y;
    for (int turn = 0; turn < 3; turn++) {
        noted = 0;
        OK(ts_compiled_call(c, &x, 1, &y, 1));
        ck_assert_int_eq(noted, 3);
    }
    ts_compiled_free(c);
    set_stage("full");
}
