/** @file alias.c  Compiled functions that write tensors which share memory: one rule per test. */
// SPDX-License-Identifier: MIT
#include <time.h>

#include "core/tensor.h"
#include "tests/compile/explains.h"
#include "tests/tracing/net.h"

enum { INPUTS = 3, TURNS = 5, ROWS = 40, COLUMNS = 30 };

/** Makes inputs whose elements depend only on the turn: (40, 30), (30), (40, 30). */
typedef void maker(ts_tensor **in, uint64_t turn);

static void apart(ts_tensor **in, uint64_t turn)
{
    in[0] = numbers(3 * turn, TS_SIZES(ROWS, COLUMNS));
    in[1] = numbers(3 * turn + 1, TS_SIZES(COLUMNS));
    in[2] = numbers(3 * turn + 2, TS_SIZES(ROWS, COLUMNS));
}
/** The first and the last input are handles on one storage. */
static void two_handles(ts_tensor **in, uint64_t turn)
{
    apart(in, turn);
    in[2] = ts_view(in[0], TS_SIZES(ROWS, COLUMNS));
}
/** The first and the last input share their inner rows. */
static void overlapping(ts_tensor **in, uint64_t turn)
{
    apart(in, turn);
    ts_tensor *base = numbers(3 * turn, TS_SIZES(ROWS + 5, COLUMNS));
    in[0] = ts_narrow(base, 0, 0, ROWS);
    in[2] = ts_narrow(base, 0, 5, ROWS);
}

/** Index of the first tensor of a call, inputs before outputs, that is t; -1: none. */
static int place_of(ts_tensor *t, ts_tensor *const *in, ts_tensor *const *out, int m)
{
    for (int i = 0; i < INPUTS; i++)
        if (in[i] == t)
            return i;
    for (int i = 0; i < m; i++)
        if (out[i] == t)
            return INPUTS + i;
    return -1;
}

/** Compares compiled calls with eager ones: bits of outputs and inputs, versions, equal handles,
 *  and outputs on the memory of inputs. With `replay`, the last calls must be replays. */
static void check_alias(ts_trace_fn fn, maker *make, int m, bool replay)
{
    ts_compiled *c = ts_compile(fn, NULL, TS_OPTS(ts_compile_opts, .replay = replay));
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        TS_SCOPE;
        ts_tensor *a[INPUTS], *b[INPUTS], *got[2], *want[2];
        make(a, turn);
        make(b, turn);
        OK(ts_compiled_call(c, a, INPUTS, got, m));
        OK(fn(NULL, b, INPUTS, want, m));
        for (int i = 0; i < m; i++) {
            ck_assert_msg(same(got[i], want[i]), "output %d differs", i);
            ck_assert_int_eq(place_of(got[i], a, got, m), place_of(want[i], b, want, m));
            for (int k = 0; k < INPUTS; k++)
                ck_assert_int_eq(got[i]->storage == a[k]->storage,
                                 want[i]->storage == b[k]->storage);
        }
        for (int i = 0; i < INPUTS; i++) {
            ck_assert_msg(same(a[i], b[i]), "input %d differs", i);
            ck_assert_uint_eq(ts_version(a[i]), ts_version(b[i]));
        }
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).compiles, 1);
    ck_assert_int_eq(ts_compiled_get_stats(c).skipped, replay ? TURNS - 2 : 0);
    ts_compiled_free(c);
}
#define BOTH(fn, make, m) (check_alias(fn, make, m, false), check_alias(fn, make, m, true))

/* -------------------------------------------------------------------------------- views ---- */

static ts_status write_and_read_alias(TRACED)
{
    ts_tensor *row = ts_select(in[0], 0, 1);
    TS_TRY(ts_mul_scalar_(in[0], 2));
    TS_TRY(ts_add_(row, in[1]));
    return TS_STATUS_OF(out[0] = ts_add(row, ts_select(in[0], 0, 0)));
}
TS_TEST(a_view_and_its_base_see_each_others_writes) { BOTH(write_and_read_alias, apart, 1); }

static uint64_t interleaving;
/** Drawn calls that read and write interleaved columns or rows of in[0]. */
static ts_status write_interleaved(TRACED)
{
    uint64_t state = interleaving;
    int dim = (int)(state % 2), parts = 2 + (int)(state / 2 % 3), size = dim ? COLUMNS : ROWS;
    ts_tensor *v[4], *w = in[0];
    size -= size % parts;
    for (int i = 0; i < parts; i++)
        TS_TRY(v[i] = ts_slice(in[0], dim, i, size, parts));
    for (int k = 0; k < 9; k++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        int to = (int)(state >> 40) % parts,
            from = (to + 1 + (int)(state >> 50) % (parts - 1)) % parts;
        switch ((state >> 33) % 4) {
        case 0: TS_TRY(w = ts_copy_(v[to], v[from])); break;
        case 1: TS_TRY(w = ts_add_(v[to], ts_mul_scalar(v[from], 0.5))); break;
        case 2: TS_TRY(w = ts_tanh(ts_mul_(v[to], v[from]))); break;
        default: TS_TRY(w = ts_sub(v[to], ts_relu_(v[from])));
        }
    }
    return TS_STATUS_OF(out[0] = ts_mul(w, w));
}
TS_TEST(drawn_calls_write_interleaved_views_of_an_input, .loop = 12)
{
    interleaving = (uint64_t)time(NULL) * 12 + (uint64_t)_i;
    BOTH(write_interleaved, apart, 1);
}

static ts_status write_transposed(TRACED)
{
    ts_tensor *a = ts_exp(in[0]), *b = ts_relu(a);
    TS_TRY(ts_copy_(a, ts_transpose(ts_contiguous(ts_transpose(b, 0, 1)), 0, 1)));
    TS_TRY(ts_mul_scalar_(ts_narrow(a, 1, 0, 2), 3));
    return TS_STATUS_OF(out[0] = ts_add(a, b));
}
TS_TEST(a_transposed_copy_is_read_before_the_original_is_written)
{
    BOTH(write_transposed, apart, 1);
}

static ts_status write_expanded(TRACED)
{
    return TS_STATUS_OF(out[0] = ts_add_(ts_expand(in[1], TS_SIZES(ROWS, COLUMNS)), in[0]));
}
TS_TEST(a_write_to_an_expanded_tensor_is_refused_as_in_eager_calls)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(write_expanded, NULL, NULL);
    ts_tensor *in[INPUTS], *out;
    apart(in, 1);
    FAILS(TS_ERR_VALUE, write_expanded(NULL, in, INPUTS, &out, 1));
    FAILS(TS_ERR_VALUE, ts_compiled_call(c, in, INPUTS, &out, 1));
    ts_compiled_free(c);
}

/* ------------------------------------------------------------------------------- inputs ---- */

/** Writes through both handles and reads each after a write through the other. */
static ts_status write_both(TRACED)
{
    TS_TRY(ts_mul_scalar_(in[0], 2));
    out[0] = ts_exp(in[2]);
    TS_TRY(ts_add_(in[2], in[1]));
    return TS_STATUS_OF(out[1] = ts_tanh(in[0]));
}
TS_TEST(two_inputs_on_one_storage_see_each_others_writes) { BOTH(write_both, two_handles, 2); }

static ts_status write_first_then_last(TRACED)
{
    TS_TRY(ts_mul_scalar_(in[0], 2));
    TS_TRY(ts_add_(in[2], in[1]));
    return TS_STATUS_OF(out[0] = ts_add(in[0], in[2]));
}
static ts_status write_last_then_first(TRACED)
{
    TS_TRY(ts_add_(in[2], in[1]));
    TS_TRY(ts_mul_scalar_(in[0], 2));
    return TS_STATUS_OF(out[0] = ts_add(in[0], in[2]));
}
TS_TEST(writes_to_overlapping_inputs_keep_the_order_of_calls)
{
    BOTH(write_first_then_last, overlapping, 1);
    BOTH(write_last_then_first, overlapping, 1);
}

TS_TEST(inputs_that_overlap_in_one_call_only_have_the_results_of_each)
{
    ts_compiled *c = ts_compile(write_first_then_last, NULL,
                                TS_OPTS(ts_compile_opts, .replay = true));
    static maker *const makers[] = {apart, overlapping, two_handles};
    for (uint64_t turn = 0; turn < 18; turn++) {
        TS_SCOPE;
        ts_tensor *a[INPUTS], *b[INPUTS], *got, *want;
        maker *make = makers[turn / 3 % 3];
        make(a, turn);
        make(b, turn);
        OK(ts_compiled_call(c, a, INPUTS, &got, 1));
        OK(write_first_then_last(NULL, b, INPUTS, &want, 1));
        ck_assert(same(got, want));
        ck_assert(same(a[0], b[0]) && same(a[2], b[2]));
    }
    ts_compiled_free(c);
}

/* ------------------------------------------------------------------------------- results ---- */

static ts_status same_twice(TRACED)
{
    out[0] = out[1] = ts_add(in[0], in[1]);
    return TS_STATUS_OF(out[0]);
}
TS_TEST(an_output_that_is_returned_twice_is_one_tensor) { BOTH(same_twice, apart, 2); }

static ts_status input_and_view(TRACED)
{
    TS_TRY(ts_relu_(in[0]));
    out[0] = in[0];
    return TS_STATUS_OF(out[1] = ts_select(in[0], 0, 1));
}
TS_TEST(an_input_and_its_view_may_be_outputs) { BOTH(input_and_view, apart, 2); }

static ts_status no_call(TRACED)
{
    out[0] = ts_dropout(in[0], 0.5, false);
    return TS_STATUS_OF(out[1] = ts_add_(out[0], in[1]));
}
TS_TEST(an_op_without_effect_returns_its_argument) { BOTH(no_call, apart, 2); }

static ts_status into_an_input(TRACED)
{
    ts_tensor *before = ts_exp(in[0]);
    TS_TRY(out[0] = ts_add_out(in[0], in[0], in[2])); /* also an argument */
    TS_TRY(ts_mul_out(in[2], before, in[0]));
    return TS_STATUS_OF(out[1] = ts_sub(in[2], before));
}
TS_TEST(an_input_may_be_the_destination_of_a_call) { BOTH(into_an_input, apart, 2); }
TS_TEST(two_handles_on_one_storage_may_be_argument_and_destination)
{
    BOTH(into_an_input, two_handles, 2);
}

/* -------------------------------------------------------------------------------- copies ---- */

static ts_status copy_then_write(TRACED)
{
    ts_tensor *copy = ts_clone(in[0]);
    TS_TRY(ts_zero_(in[0]));
    return TS_STATUS_OF(out[0] = ts_add_(copy, in[1]));
}
TS_TEST(a_copy_keeps_the_elements_from_before_a_write) { BOTH(copy_then_write, apart, 1); }

static ts_status returns_clones(TRACED)
{
    out[0] = ts_clone(in[0]);
    return TS_STATUS_OF(out[1] = ts_clone(out[0]));
}
TS_TEST(a_returned_clone_is_a_tensor_of_its_own)
{
    BOTH(returns_clones, apart, 2);
    TS_SCOPE;
    ts_compiled *c = ts_compile(returns_clones, NULL, NULL);
    ts_tensor *in[INPUTS], *out[2];
    apart(in, 1);
    ts_tensor *kept = ts_clone(in[0]);
    OK(ts_compiled_call(c, in, INPUTS, out, 2));
    OK(ts_zero_(out[0]));
    ck_assert(same(in[0], kept) && same(out[1], kept));
    ts_compiled_free(c);
}

TS_TEST(later_calls_do_not_overwrite_results)
{
    TS_SCOPE;
    ts_compiled *c = ts_compile(same_twice, NULL, NULL);
    ts_tensor *in[] = {numbers(1, TS_SIZES(300)), numbers(2, TS_SIZES(300))}, *first[2], *later[2];
    OK(ts_compiled_call(c, in, 2, first, 2));
    ts_tensor *kept = ts_clone(first[0]);
    for (int i = 0; i < 3; i++) {
        in[0] = i ? later[0] : first[0]; /* an earlier output as input */
        OK(ts_compiled_call(c, in, 2, later, 2));
    }
    ck_assert(same(first[0], kept));
    ck_assert(!same(later[0], kept));
    ts_compiled_free(c);
}

/* ----------------------------------------------------------------------------- gradients ---- */

/** A write to a tensor that backward has saved, or, with *ctx, to one that it does not need. */
static ts_status save_then_write(TRACED)
{
    TS_SCOPE;
    bool needed = !*(const bool *)ctx;
    ts_tensor *h = ts_mul_scalar(in[0], 2), *saved = needed ? ts_exp(h) : ts_add(h, h);
    ts_tensor *loss = ts_sum(saved);
    TS_TRY(loss);
    {
        TS_NO_GRAD;
        TS_TRY(ts_add_scalar_(ts_detach(saved), 1));
    }
    TS_TRY(ts_backward(loss));
    out[0] = ts_keep(ts_detach(saved));
    return TS_OK;
}
TS_TEST(a_write_to_a_saved_tensor_is_the_error_of_eager_calls, .loop = 2)
{
    bool harmless = _i;
    ts_compiled *c = ts_compile(save_then_write, &harmless, NULL);
    for (uint64_t turn = 0; turn < 3; turn++) {
        TS_SCOPE;
        ts_tensor *x = ts_set_requires_grad(numbers(turn, TS_SIZES(9, 7)), true),
                  *y = ts_set_requires_grad(ts_detach(ts_clone(x)), true), *got, *want;
        ts_status status = save_then_write(&harmless, &y, 1, &want, 1);
        ck_assert_int_eq(status == TS_OK, harmless);
        char text[500];
        snprintf(text, sizeof text, "%s", ts_error_message());
        ts_error_clear();
        ck_assert_int_eq(ts_compiled_call(c, &x, 1, &got, 1), status);
        ck_assert_str_eq(ts_error_message(), text);
        ts_error_clear();
        if (harmless)
            ck_assert(same(got, want) && same(ts_grad(x), ts_grad(y)));
    }
    ts_compiled_free(c);
}

/** A training step; the output is read from a second handle on the first parameter, which the
 *  optimizer writes in between. */
typedef struct watched {
    net net;
    ts_tensor *handle;
} watched;
static ts_status step_and_read(TRACED)
{
    const watched *w = ctx;
    TS_SCOPE;
    ts_tensor *before = ts_mul_scalar(w->handle, 2);
    TS_TRY(ts_backward(ts_mse_loss(ts_forward(w->net.module, in[0]), in[1])));
    TS_TRY(ts_optimizer_step(w->net.optimizer));
    ts_optimizer_zero_grad(w->net.optimizer);
    out[0] = ts_keep(ts_sub(w->handle, before));
    return TS_OK;
}
TS_TEST(an_optimizers_write_is_seen_through_another_handle, .loop = 2)
{
    TS_SCOPE;
    watched a = {.net = net_new(0, TS_ADAMW)}, b = {.net = net_new(0, TS_ADAMW)};
    int64_t n;
    a.handle = ts_detach(ts_optimizer_params(a.net.optimizer, &n)[0]);
    b.handle = ts_detach(ts_optimizer_params(b.net.optimizer, &n)[0]);
    ts_compiled *c = ts_compile(step_and_read, &a, TS_OPTS(ts_compile_opts, .replay = _i));
    for (uint64_t turn = 0; turn < 8; turn++) {
        TS_SCOPE;
        ts_tensor *batch[] = {numbers(2 * turn, TS_SIZES(4, 6)),
                              numbers(2 * turn + 1, TS_SIZES(4, 3))}, *got, *want;
        OK(ts_compiled_call(c, batch, 2, &got, 1));
        OK(step_and_read(&b, batch, 2, &want, 1));
        ck_assert(same(got, want));
        ck_assert(same(a.handle, b.handle));
        ck_assert_uint_eq(ts_version(a.handle), ts_version(b.handle));
        check_same_nets(a.net, b.net, false);
    }
    ck_assert_int_eq(ts_compiled_get_stats(c).skipped > 0, _i);
    ts_compiled_free(c);
    net_free(a.net);
    net_free(b.net);
}
