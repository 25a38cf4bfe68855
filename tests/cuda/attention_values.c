/**
 * @file attention_values.c
 * Attention on a GPU, compared with separate ops: lengths, depths, options, dtypes and layouts,
 * which reach each kind of kernel.
 */
// SPDX-License-Identifier: MIT
#include "tests/cuda/attention.h"

#include <math.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const int64_t lengths[] = {1, 3, 64, 97, 108, 113, 128, 203, 217, 239, 256, 512, 799, 1024,
                                  2048};

/** Numbers of query heads and of key heads: equal, key heads shared by groups, one key head. */
static const int64_t sharing[][2] = {{2, 2}, {4, 2}, {3, 1}, {6, 2}, {1, 1}};

static problem of_lengths(int i, ts_dtype dtype, int64_t depth)
{
    problem p = {.dtype = dtype, .batch = 1 + i % 2,
                 .rows = lengths[i / COUNT(lengths) % COUNT(lengths)],
                 .keys = lengths[i % COUNT(lengths)], .depth = depth, .lies = (layout)(i % LAYOUTS),
                 .causal = i % 3 != 0, .lse_gradient = i % 7 == 0};
    p.heads = sharing[i % COUNT(sharing)][0];
    p.groups = sharing[i % COUNT(sharing)][1];
    return p;
}

TS_TEST(attention_of_halves_of_all_pairs_of_lengths_has_the_error_of_separate_ops,
        .loop = TENSOR_CORES, .timeout = 120)
{
    static const int64_t depths[] = {64, 128, 72, 192, 96, 40, 256, 112, 8, 136};
    keep_to(_i);
    GPU(device);
    for (int i = 0; i < COUNT(lengths) * COUNT(lengths); i++)
        for (int k = 0; k < 2; k++) {
            problem p = of_lengths(i, k ? TS_F16 : TS_BF16, depths[(2 * i + k) % COUNT(depths)]);
            judge(&p, device, device);
        }
}

/* In deterministic mode, Hopper's kernels compute gradients in two passes instead of one. */
TS_TEST(attention_of_halves_in_deterministic_mode_has_the_error_of_separate_ops, .timeout = 120)
{
    static const int64_t depths[] = {64, 128, 72, 40};
    GPU(device);
    OK(ts_set_deterministic(true));
    for (int i = 0; i < COUNT(lengths) * COUNT(lengths); i += 2) {
        problem p = of_lengths(i, i / 2 % 2 ? TS_F16 : TS_BF16, depths[i / 4 % COUNT(depths)]);
        judge(&p, device, device);
    }
}

TS_TEST(attention_of_halves_of_every_depth_has_the_error_of_separate_ops, .loop = TENSOR_CORES,
        .timeout = 120)
{
    keep_to(_i);
    GPU(device);
    for (int64_t depth = 8, i = 0; depth <= 256; depth += 8)
        for (int k = 0; k < 4; k++, i++) {
            problem p = of_lengths((int)i, k % 2 ? TS_F16 : TS_BF16, depth);
            p.rows = k < 2 ? 203 : 128;
            p.keys = k < 2 ? 239 : 113;
            /* values of another depth: on the other side of 64 and 128 for some */
            p.value_depth = i % 3 ? depth : 8 + (depth + 88) % 256;
            judge(&p, device, device);
        }
}

/* Rows omit the fields that all problems share. TS_DTYPE_NONE: a mask of the query's dtype. */
static const problem options[] = {
    {.scale = 0.3},
    {.scale = -0.2, .causal = true},
    {.window = true, .left = 30, .right = 0},
    {.window = true, .left = 0, .right = 0},
    {.window = true, .left = 70, .right = 5, .lse_gradient = true},
    {.window = true, .left = -1, .right = 40},
    {.window = true, .left = 130, .right = -1},
    {.mask = "bhqk", .mask_dtype = TS_BOOL},
    {.mask = "b11k", .mask_dtype = TS_BOOL, .causal = true},
    {.mask = "k", .mask_dtype = TS_BOOL, .lse_gradient = true},
    {.mask = "BHqk", .mask_dtype = TS_BOOL},
    {.mask = "q1", .mask_dtype = TS_BOOL}, /* whole rows */
    {.mask = "bhqk", .mask_dtype = TS_DTYPE_NONE},
    {.mask = "hqk", .mask_dtype = TS_F32, .causal = true},
    {.mask = "BHqk", .mask_dtype = TS_DTYPE_NONE},
    {.mask = "b1q1", .mask_dtype = TS_F32, .lse_gradient = true},
    {.softcap = 3},
    {.softcap = 2, .causal = true, .lse_gradient = true},
    {.dropout_p = 0.2},
    {.dropout_p = 0.5, .causal = true, .lse_gradient = true},
    {.packed = true, .batch = 5},
    {.packed = true, .batch = 8, .causal = true},
    {.packed = true, .batch = 4, .window = true, .left = 50, .right = 3, .lse_gradient = true},
    {.packed = true, .batch = 3, .mask = "b1qk", .mask_dtype = TS_BOOL},
    {.packed = true, .batch = 6, .dropout_p = 0.2, .softcap = 2, .causal = true},
    {.mask = "1hqk", .mask_dtype = TS_DTYPE_NONE, .softcap = 2, .dropout_p = 0.2, .scale = 0.1,
     .window = true, .left = 90, .right = 9},
};

static void judge_options(ts_device device, const ts_dtype *dtypes, int ndtypes)
{
    static const int64_t depths[] = {64, 72, 128, 192, 256, 32};
    static const int64_t sizes[][2] = {{97, 113}, {203, 128}, {64, 239}, {256, 256}, {399, 217}};
    int turn = 0;
    for (int i = 0; i < COUNT(options); i++)
        for (int d = 0; d < COUNT(depths); d++, turn++) {
            problem p = options[i];
            p.dtype = dtypes[(i + d) % ndtypes];
            p.depth = depths[d];
            p.batch = p.batch ? p.batch : 2;
            p.heads = sharing[turn % COUNT(sharing)][0];
            p.groups = sharing[turn % COUNT(sharing)][1];
            p.rows = sizes[turn % COUNT(sizes)][0];
            p.keys = sizes[turn % COUNT(sizes)][1];
            p.lies = (layout)(turn / 2 % LAYOUTS);
            if (p.mask_dtype == TS_DTYPE_NONE)
                p.mask_dtype = p.dtype;
            judge(&p, device, device);
        }
}

TS_TEST(attention_of_halves_with_each_option_has_the_error_of_separate_ops, .loop = TENSOR_CORES,
        .timeout = 120)
{
    static const ts_dtype halves[] = {TS_BF16, TS_F16};
    keep_to(_i);
    GPU(device);
    judge_options(device, halves, COUNT(halves));
}

TS_TEST(attention_of_f32_with_each_option_has_the_error_of_separate_ops, .timeout = 120)
{
    static const ts_dtype wide[] = {TS_F32};
    GPU(device);
    judge_options(device, wide, COUNT(wide));
}

TS_TEST(attention_by_plain_kernels_has_the_error_of_separate_ops, .timeout = 120)
{
    static const int64_t depths[] = {64, 5, 128, 33, 250};
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_F16};
    keep_to(KERNELS - 1);
    GPU(device);
    for (int i = 0, n = COUNT(lengths); i < n * n; i += 4) {
        problem p = of_lengths(i, dtypes[i % 3], depths[i % COUNT(depths)]);
        if (p.rows * p.keys <= 1024 * 1024)
            judge(&p, device, device);
    }
}

/** A random integer from 1 to `most`; log: its logarithm is uniform, so small ones are frequent. */
static int64_t drawn_up_to(int64_t most, bool log)
{
    double x;
    OK(ts_item(ts_uniform(TS_SIZES(1), 0, 1, TS_F64), &x));
    x = log ? exp(x * log1p((double)most)) : 1 + x * (double)most;
    return x < (double)most ? (int64_t)x : most;
}

/* Few rows of queries, as in decoding: kernels that split the keys run. */
TS_TEST(attention_of_few_rows_has_the_error_of_separate_ops, .loop = 4, .timeout = 120)
{
    static const int64_t shares[] = {1, 2, 4, 5, 8, 12};
    GPU(device);
    ts_manual_seed((uint64_t)(91 + _i));
    for (int turn = 0; turn < 60; turn++) {
        problem p = turn % 2 ? options[(turn / 2 + 30 * _i) % COUNT(options)] : (problem){0};
        p.dtype = turn % 4 == 3 ? TS_F32 : turn % 3 ? TS_BF16 : TS_F16;
        p.batch = p.packed ? p.batch : drawn_up_to(3, false);
        p.groups = drawn_up_to(3, false);
        p.heads = p.groups * shares[turn % COUNT(shares)];
        p.rows = drawn_up_to(turn % 4 ? 3 : 40 / (p.heads / p.groups), false);
        p.keys = turn % 8 == 3 ? drawn_up_to(20, false)
                               : 15 + drawn_up_to(turn % 5 ? 3000 : 12000, true);
        p.depth = 8 * drawn_up_to(turn % 3 ? 16 : 32, false);
        p.value_depth = turn % 7 ? 0 : 8 * drawn_up_to(16, false);
        p.lies = (layout)(turn % LAYOUTS);
        p.causal = p.causal || turn % 6 == 0;
        p.padded = !p.packed && turn % 5 == 2;
        p.lengths = (uint32_t)(turn + 1);
        if (p.mask_dtype == TS_DTYPE_NONE)
            p.mask_dtype = p.dtype;
        judge(&p, device, device);
    }
}

/* Options with more tiles and blocks than a multiprocessor has, over lengths of any remainder, and
 * few rows beside many keys. */
TS_TEST(attention_with_drawn_options_has_the_error_of_separate_ops, .loop = 4, .timeout = 120)
{
    static const char *const masks[] = {"bhqk", "BHqk", "b11k", "hqk", "q1", "bHqk"};
    GPU(device);
    ts_manual_seed((uint64_t)(17 + _i));
    for (int turn = 0; turn < 40; turn++) {
        problem p = {.dtype = turn % 6 == 4 ? TS_F32
                              : turn % 3    ? TS_BF16
                                            : TS_F16,
                     .batch = drawn_up_to(4, false),
                     .groups = drawn_up_to(8, false),
                     .rows = drawn_up_to(700, true),
                     .keys = 15 + drawn_up_to(900, true),
                     .depth = 8 * drawn_up_to(16, false),
                     .lies = (layout)(turn % LAYOUTS)};
        if (turn % 8 == 7)
            p.depth = 8 * drawn_up_to(32, false);
        if (turn % 10 == 9) {
            p.batch = 1;
            p.groups = drawn_up_to(3, false);
            p.rows = drawn_up_to(300, true);
            p.keys = 3500 + drawn_up_to(1500, false);
        }
        p.heads = p.groups * drawn_up_to(4, true);
        p.dropout_p = turn % 4 ? 0.3 : 0;
        if (turn % 4 != 1) {
            p.mask = masks[drawn_up_to(COUNT(masks), false) - 1];
            p.mask_dtype = turn % 4 == 2 ? TS_BOOL : turn % 5 ? p.dtype : TS_F32;
        }
        if (turn % 8 == 0)
            p.keys = (p.keys + 7) / 8 * 8; /* rows of a mask of halves are aligned */
        p.causal = turn % 3 == 0;
        p.window = turn % 7 == 1;
        p.left = p.window ? 90 : 0;
        p.lse_gradient = turn % 5 == 0;
        judge(&p, device, device);
    }
}

/* More heads than multiprocessors, with at most 256 rows and keys: blocks compute several heads. */
TS_TEST(attention_of_many_short_batches_has_the_error_of_separate_ops, .loop = 2, .timeout = 120)
{
    GPU(device);
    ts_manual_seed((uint64_t)(29 + _i));
    for (int turn = 0; turn < 24; turn++) {
        problem p = {.dtype = turn % 2 ? TS_BF16 : TS_F16,
                     .batch = 20 + drawn_up_to(40, false),
                     .groups = 3 + drawn_up_to(4, false),
                     .rows = drawn_up_to(turn % 3 ? 256 : 128, false),
                     .keys = drawn_up_to(turn % 4 ? 128 : 256, false),
                     .depth = 8 * drawn_up_to(turn % 3 ? 8 : 16, false),
                     .lies = (layout)(turn % LAYOUTS),
                     .causal = drawn_up_to(2, false) == 1,
                     .lse_gradient = turn % 3 == 0};
        p.heads = p.groups * drawn_up_to(3, true);
        p.value_depth = turn % 5 ? 0 : 8 * drawn_up_to(16, false);
        p.dropout_p = turn % 4 == 1 ? 0.2 : 0;
        if (drawn_up_to(4, false) == 1) {
            p.mask = "b11k";
            p.mask_dtype = TS_BOOL;
        }
        if (drawn_up_to(4, false) == 1) {
            p.window = true;
            p.left = drawn_up_to(60, true);
            p.right = drawn_up_to(60, true);
        }
        judge(&p, device, device);
    }
}

/* Sequences of drawn lengths with drawn options, and combinations of options that only Hopper's
 * kernels for all options support. */
TS_TEST(attention_of_sequences_with_drawn_options_has_the_error_of_separate_ops, .loop = 4,
        .timeout = 120)
{
    static const char *const masks[] = {"b1qk", "hqk", "b11k", "qk", "k"};
    GPU(device);
    ts_manual_seed((uint64_t)(53 + _i));
    for (int turn = 0; turn < 30; turn++) {
        problem p = {.dtype = turn % 3 ? TS_BF16 : TS_F16,
                     .batch = drawn_up_to(SEQUENCES, false),
                     .groups = drawn_up_to(3, false),
                     .rows = 40 + drawn_up_to(500, true),
                     .keys = 40 + drawn_up_to(600, true),
                     .depth = 8 * drawn_up_to(turn % 5 ? 16 : 32, false),
                     .lies = (layout)(turn % LAYOUTS),
                     .packed = turn % 3 == 0,
                     .padded = turn % 3 == 1,
                     .lengths = (uint32_t)drawn_up_to(1 << 30, false),
                     .causal = drawn_up_to(2, false) == 1,
                     .lse_gradient = turn % 4 == 0};
        p.heads = p.groups * drawn_up_to(4, true);
        p.value_depth = turn % 6 ? 0 : 8 * drawn_up_to(16, false);
        bool plain = turn % 5 == 0;
        if (!plain && drawn_up_to(2, false) == 1)
            p.softcap = (double)drawn_up_to(40, true) / 2;
        if (!plain && drawn_up_to(2, false) == 1)
            p.dropout_p = 0.25;
        if (!plain && drawn_up_to(2, false) == 1) {
            p.mask = masks[drawn_up_to(COUNT(masks), false) - 1];
            int64_t kind = drawn_up_to(3, false);
            p.mask_dtype = kind == 1 ? TS_BOOL : kind == 2 ? p.dtype : TS_F32;
        }
        if (drawn_up_to(4, false) == 1) {
            p.window = true;
            p.left = drawn_up_to(200, true);
            p.right = drawn_up_to(60, true);
        }
        if (drawn_up_to(6, false) == 1)
            p.scale = -0.2;
        judge(&p, device, device);
    }
}

/* One problem for each kernel and each path in it, compared with the CPU. It is small for memory
 * and race checkers, which make a kernel about a hundred times slower. */
TS_TEST(attention_of_a_sample_of_problems_has_the_error_of_separate_ops_on_the_CPU, .timeout = 600)
{
    static const problem choice[] = {
        {TS_BF16, 1, 2, 1, 203, 239, 64, .causal = true},                   /* Hopper, depth 64 */
        {TS_F16, 1, 2, 1, 130, 150, 128, 72, FRAMED, .lse_gradient = true}, /* Hopper, depth 128 */
        {TS_BF16, 3, 1, 1, 200, 97, 64, .packed = true, .causal = true},    /* Hopper, sequences */
        {TS_F16, 2, 2, 1, 70, 100, 128, .packed = true, .softcap = 3, .dropout_p = 0.2,
         .mask = "qk", .mask_dtype = TS_F16},
        {TS_BF16, 3, 2, 1, 130, 200, 72, .padded = true, .lengths = 5},
        {TS_F16, 140, 2, 1, 20, 30, 16, .causal = true}, /* one kernel, several heads a block */
        {TS_BF16, 3, 4, 1, 2, 500, 128, .padded = true, .lengths = 6, .causal = true},
        {TS_BF16, 1, 1, 1, 70, 65, 192, .lies = ODD}, /* sm_80, depth 256 */
        {TS_BF16, 1, 2, 1, 70, 65, 72, .softcap = 2, .dropout_p = 0.2, .mask = "qk",
         .mask_dtype = TS_BOOL},
        {TS_BF16, 1, 4, 1, 1, 700, 64, .causal = true}, /* few rows */
        {TS_F16, 2, 4, 1, 5, 330, 128, .window = true, .left = 200, .right = 1},
        {TS_BF16, 2, 2, 1, 2, 300, 192, .packed = true, .softcap = 2, .dropout_p = 0.2},
        {TS_BF16, 1, 2, 1, 140, 150, 64, .dropout_p = 0.2, .mask = "qk",
         .mask_dtype = TS_BOOL}, /* Hopper, with options */
        {TS_BF16, 1, 2, 1, 140, 152, 64, .mask = "hqk", .mask_dtype = TS_BF16}, /* mask by TMA */
        {TS_F16, 1, 2, 1, 140, 152, 104, .mask = "qk", .mask_dtype = TS_F16},
        {TS_F16, 1, 2, 1, 140, 150, 104, .dropout_p = 0.2, .mask = "qk", .mask_dtype = TS_F16},
        {TS_F16, 1, 2, 1, 40, 330, 192, .softcap = 2, .dropout_p = 0.2}, /* keys are split */
        {TS_F32, 1, 2, 1, 40, 33, 20, .mask = "k", .mask_dtype = TS_F32},
        {TS_F32, 2, 3, 1, 4, 600, 104, .window = true, .left = 300, .right = 2}, /* few rows */
        {TS_F32, 3, 2, 2, 1, 200, 192, .padded = true, .lengths = 7, .dropout_p = 0.2},
    };
    GPU(device);
    for (int i = 0; i < COUNT(choice); i++)
        judge(&choice[i], device, TS_DEVICE_CPU);
}
