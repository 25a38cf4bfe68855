/**
 * @file random.c  Random programs: views, writes through them, constants, random numbers, failing
 * calls, captured tensors, and a backward at the end. A replay has the same effects and bits as a
 * call.
 */
// SPDX-License-Identifier: MIT
#include "tests/tracing/common.h"

enum { POOL = 14, STEPS = 30, LARGEST = 128 };

typedef struct program {
    uint64_t seed;
    ts_tensor *outside; /* captured tensor, read and written */
    bool gradients;
} program;

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/** Makes one random call. Returns its new tensor or NULL; the caller clears the error. */
static ts_tensor *one_step(uint64_t *state, ts_tensor **pool, int count)
{
    uint64_t r = draw(state);
    ts_tensor *a = pool[r % (unsigned)count], *b = pool[(r >> 8) % (unsigned)count],
              *c = pool[(r >> 16) % (unsigned)count];
    int64_t small = (int64_t)(r >> 24) % 3;
    float values[4] = {(float)small, 1, -2, 0.5f};
    switch ((r >> 32) % 20) {
    case 0: return ts_add(a, b);
    case 1: return ts_mul(a, b);
    case 2: return ts_sub(a, b);
    case 3: return ts_transpose(a, 0, -1);
    case 4: return ts_narrow(a, 0, small, 2);
    case 5: return ts_select(a, -1, small);
    case 6: return ts_reshape(a, TS_SIZES(-1));
    case 7: return ts_dropout(a, 0.5, true);
    case 8: return ts_numel(a) + ts_numel(b) > LARGEST ? NULL : ts_cat((ts_tensor *[]){a, b}, 2, 0);
    case 9: return ts_from_array(values, TS_F32, TS_SIZES(4));
    case 10: return ts_uniform(TS_SIZES(4, 4), -1, 1, TS_F32);
    case 11: return ts_tanh(a);
    case 12: return ts_detach(a);
    case 13: return ts_where(ts_gt(a, b), a, b);
    case 14: return ts_matmul(a, b);
    case 15: ts_add_(a, b); return NULL;
    case 16: ts_mul_(a, c); return NULL;
    case 17: ts_copy_(a, b); return NULL;
    case 18: ts_add_out(a, b, c); return NULL;
    default: ts_fill_(a, ts_scalar_float(0.25)); return NULL;
    }
}

static ts_status run(TRACED)
{
    const program *p = ctx;
    uint64_t state = p->seed;
    TS_SCOPE;
    /* a detached view: a write that would record a history in it, beyond this run, is an error */
    ts_tensor *pool[POOL] = {in[0], in[1], p->gradients ? ts_detach(p->outside) : p->outside};
    int count = 3, steps = 3 + (int)(draw(&state) % STEPS);
    for (int i = 0; i < steps; i++) {
        ts_tensor *y = one_step(&state, pool, count);
        if (ts_error_code() != TS_OK)
            ts_error_clear();
        else if (y && ts_numel(y) <= LARGEST)
            pool[count < POOL ? count++ : 3 + (int)(draw(&state) % (POOL - 3))] = y;
    }
    ts_tensor *loss = ts_zeros(TS_SIZES(1), TS_F32);
    for (int i = 0; i < count; i++)
        loss = ts_add(loss, ts_mean(pool[i]));
    TS_TRY(loss);
    if (ts_requires_grad(loss) && ts_backward(loss) != TS_OK)
        ts_error_clear(); /* a saved tensor was overwritten */
    out[0] = ts_keep(ts_detach(loss));
    for (int i = 0; i < m - 1; i++)
        out[1 + i] = ts_keep(ts_clone(ts_contiguous(ts_detach(pool[i % count]))));
    return TS_STATUS_OF(out[m - 1]);
}

TS_TEST(replays_of_random_programs_are_bit_identical_with_eager_calls, .loop = 4)
{
    int complete = 0, backward = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        TS_SCOPE;
        enum { RECORDED, REPLAYED, CALLED, RUNS, OUTPUTS = 8 };
        ts_tensor *in[RUNS][2], *out[RUNS][OUTPUTS], *outside = numbers(9, TS_SIZES(4, 4)),
                  *left[RUNS];
        program p = {seed + 1000 * (uint64_t)_i, outside, _i % 2};
        for (int k = 0; k < RUNS; k++)
            for (int i = 0; i < 2; i++)
                in[k][i] = ts_set_requires_grad(
                    numbers((k == RECORDED ? 1 : 3) + (uint64_t)i, TS_SIZES(4, 4)), p.gradients);
        ts_graph *graph = NULL;
        for (int k = 0; k < RUNS; k++) {
            OK(ts_copy_(outside, numbers(9, TS_SIZES(4, 4))));
            ts_rng_set_state((ts_rng_state){seed, k == RECORDED ? 0 : 500});
            if (k == RECORDED)
                OK(ts_trace(run, &p, in[k], 2, out[k], OUTPUTS, &graph));
            else if (k == REPLAYED)
                OK(ts_replay(graph, in[k], 2, out[k], OUTPUTS));
            else
                OK(run(&p, in[k], 2, out[k], OUTPUTS));
            left[k] = ts_clone(outside);
        }
        complete += ts_graph_get_info(graph).complete;
        for (int i = 0; i < OUTPUTS; i++)
            ck_assert_msg(same(out[REPLAYED][i], out[CALLED][i]), "program %d: output %d differs",
                          (int)p.seed, i);
        for (int i = 0; i < 2; i++) {
            ck_assert_msg(same(in[REPLAYED][i], in[CALLED][i]), "program %d: input %d differs",
                          (int)p.seed, i);
            ts_tensor *g = ts_grad(in[REPLAYED][i]), *h = ts_grad(in[CALLED][i]);
            backward += g != TS_NONE;
            ck_assert_msg((g == TS_NONE && h == TS_NONE) ||
                              same(ts_contiguous(g), ts_contiguous(h)),
                          "program %d: the gradient of input %d differs", (int)p.seed, i);
        }
        ck_assert_msg(same(left[REPLAYED], left[CALLED]),
                      "program %d: the tensor from outside differs", (int)p.seed);
        ts_graph_free(graph);
    }
    ck_assert_int_eq(complete, 150);
    ck_assert_int_ge(backward, _i % 2 ? 150 : 0); /* of 300 gradients of inputs */
}
