/** @file overlap.c  Tests of ts_tensors_overlap() and of calls that write to a view of the tensor
 * that they read. */
// SPDX-License-Identifier: MIT
#include <time.h>

#include "dispatch/entries.h"
#include "tests/expect.h"

enum { BYTES = 4096, VIEWS = 4000 };

static uint64_t state;
static int64_t draw(int64_t least, int64_t most)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return least + (int64_t)((state >> 33) % (uint64_t)(most - least + 1));
}

/** Sets *t to a header over drawn bytes of `memory`; false if the drawn layout does not fit. */
static bool draw_view(ts_tensor *t, char *memory)
{
    static const uint8_t dtypes[] = {TS_F32, TS_F32, TS_F32, TS_F64, TS_BF16, TS_U8};
    *t = (ts_tensor){.dtype = dtypes[draw(0, 5)], .ndim = (uint8_t)draw(0, 4), .numel = 1};
    int64_t item = ts_dtype_sizes[t->dtype], low = 0, high = 0;
    for (int d = 0; d < t->ndim; d++) {
        t->sizes[d] = draw(0, 30) ? draw(1, 6) : 0;
        t->strides[d] = draw(0, 3) ? draw(0, 12) : draw(-40, 60);
        t->numel *= t->sizes[d];
        int64_t reach = (t->sizes[d] - 1) * t->strides[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    int64_t first = -low * item, last = BYTES - (high + 1) * item;
    if (t->numel && first > last)
        return false;
    int64_t at = !t->numel ? 0 : draw(0, 3) ? ts_min64(first + draw(0, 30) * item, last)
                                            : draw(first, last);
    t->data = memory + at;
    return true;
}

/** Marks t's bytes; true if one was marked as `other`. */
static bool mark(const ts_tensor *t, const char *memory, uint8_t *marks, uint8_t own, uint8_t other)
{
    bool met = false;
    for (int64_t i = 0; i < t->numel; i++) {
        int64_t rest = i, at = t->data - memory, item = ts_dtype_sizes[t->dtype];
        for (int d = t->ndim - 1; d >= 0; d--) {
            at += rest % t->sizes[d] * t->strides[d] * item;
            rest /= t->sizes[d];
        }
        for (int64_t k = at; k < at + item; k++) {
            met |= marks[k] == other;
            marks[k] = own;
        }
    }
    return met;
}

/* Compared with an enumeration of the bytes. */
TS_TEST(drawn_views_overlap_if_they_have_a_byte_in_common, .loop = 4)
{
    static char memory[BYTES];
    uint64_t seed = state = (uint64_t)time(NULL) * 4 + (uint64_t)_i;
    int found[2] = {0};
    for (int k = 0; k < VIEWS; k++) {
        ts_tensor a, b;
        if (!draw_view(&a, memory) || !draw_view(&b, memory))
            continue;
        uint8_t marks[BYTES] = {0};
        mark(&a, memory, marks, 1, 2);
        bool want = mark(&b, memory, marks, 2, 1);
        ck_assert_msg(ts_tensors_overlap(&a, &b) == want && ts_tensors_overlap(&b, &a) == want,
                      "seed %llu, pair %d: expected %d", (unsigned long long)seed, k, want);
        found[want]++;
    }
    ck_assert_int_gt(found[0], VIEWS / 20);
    ck_assert_int_gt(found[1], VIEWS / 20);
}

/* Views of the kinds that programs use, at sizes that no search could enumerate. */
TS_TEST(large_interleaved_views_are_found_disjoint)
{
    TS_SCOPE;
    const int64_t n = (int64_t)1 << 40;
    ts_tensor even = {.dtype = TS_F32, .ndim = 2, .numel = 3 * n, .data = (char *)(1 << 20),
                      .sizes = {n, 3}, .strides = {6, 2}}, odd = even, rows = even, next;
    odd.data += 4;
    ck_assert(!ts_tensors_overlap(&even, &odd) && ts_tensors_overlap(&even, &even));
    odd.dtype = TS_BF16; /* the first halves of the odd elements: strides in bf16 elements */
    odd.strides[0] = 12, odd.strides[1] = 4;
    ck_assert(!ts_tensors_overlap(&even, &odd));
    odd.data += 4;
    ck_assert(ts_tensors_overlap(&even, &odd));
    rows.strides[0] = 7, rows.strides[1] = 1; /* columns 0 to 2 of 7 */
    next = rows;
    next.data += 4 * 4, next.sizes[0] = n - 1;
    ck_assert(!ts_tensors_overlap(&rows, &next));
    next.strides[1] = 2; /* columns 4, 6 and 1 of the next row */
    ck_assert(ts_tensors_overlap(&rows, &next));
}

/* An in-place call takes an argument that is a part of the same tensor. If the parts overlap, and
 * are not the same, the call fails. */
TS_TEST(calls_write_to_drawn_views_of_the_tensor_that_they_read, .loop = 4)
{
    uint64_t seed = state = (uint64_t)time(NULL) * 4 + (uint64_t)_i;
    int done = 0, refused = 0;
    for (int k = 0; k < 400; k++) {
        TS_SCOPE;
        int64_t rows = draw(1, 9), columns = draw(1, 9), step = draw(1, 4), across = draw(1, 4);
        ts_tensor *x = ts_reshape(ts_arange(0, 1600, 1, TS_F32), TS_SIZES(40, 40)), *v[2],
                  *copy = ts_clone(x);
        int64_t from[2][2];
        for (int i = 0; i < 2; i++) {
            from[i][0] = draw(0, 3), from[i][1] = draw(0, 3);
            v[i] = ts_slice(ts_slice(x, 0, from[i][0], from[i][0] + rows * step, step), 1,
                            from[i][1], from[i][1] + columns * across, across);
            OK(v[i]);
        }
        uint8_t marks[1600] = {0};
        bool meet = false;
        float *want = ts_data_mut(copy);
        for (int i = 0; i < 2; i++)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t c = 0; c < columns; c++) {
                    int64_t at = (from[i][0] + r * step) * 40 + from[i][1] + c * across;
                    meet |= i && marks[at];
                    marks[at] |= !i;
                }
        bool same = from[0][0] == from[1][0] && from[0][1] == from[1][1];
        if (meet && !same) {
            FAILS(TS_ERR_VALUE, ts_mul_(v[0], v[1]));
            SAYS("shares memory");
            ts_error_clear();
            refused++;
            continue;
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++)
                want[(from[0][0] + r * step) * 40 + from[0][1] + c * across] *=
                    (float)((from[1][0] + r * step) * 40 + from[1][1] + c * across);
        OK(ts_mul_(v[0], v[1]));
        ck_assert_msg(memcmp(ts_data(x), want, 1600 * sizeof *want) == 0, "seed %llu, call %d",
                      (unsigned long long)seed, k);
        done++;
    }
    ck_assert_int_gt(done, 40);
    ck_assert_int_gt(refused, 40);
}
