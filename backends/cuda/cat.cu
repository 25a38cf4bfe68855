/**
 * @file cat.cu
 * cat and stack. The members are the joined tensors. The result consists of rows of bytes, and each
 * member fills the same part of every row. Members that have the result's dtype and its layout
 * (contiguous or channels-last) are copied by one kernel: a block finds its member by binary search
 * and copies units of up to 16 bytes. Small members of the result's dtype and other strides are
 * copied together, element by element, with all other members if the result is small; other members
 * are copied one by one.
 */
// SPDX-License-Identifier: MIT
#include <string.h>

#include "backends/cuda/copy.cuh"
#include "backends/cuda/image.cuh"
#include "backends/cuda/units.cuh"

using namespace ts;

enum { MEMBERS = 128 };

/** Members of one launch; a row of a member is `row.d` units. */
struct members {
    int count;
    int64_t total; /* units of a row of the result */
    unsigned first[MEMBERS + 1]; /* first block of each member */
    uint32_t units[MEMBERS];     /* units of each member */
    split<uint32_t> row[MEMBERS];
    int64_t offset[MEMBERS]; /* first unit of each member in a row of the result */
    const void *data[MEMBERS];
};

template <class U>
static __global__ void __launch_bounds__(UNITS_THREADS)
    members_kernel(const __grid_constant__ members m, U *out)
{
    int low = 0, high = m.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (m.first[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    const U *from = (const U *)m.data[low];
    uint32_t n = m.units[low], first = (blockIdx.x - m.first[low]) * UNITS_BLOCK + threadIdx.x;
    U x[UNITS_UNROLL];
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++)
        if (first + u * UNITS_THREADS < n)
            x[u] = from[first + u * UNITS_THREADS];
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++) {
        uint32_t i = first + u * UNITS_THREADS;
        if (i >= n)
            continue;
        uint32_t o = m.row[low].of(i), r = i - o * m.row[low].d;
        out[(int64_t)o * m.total + m.offset[low] + r] = x[u];
    }
}

enum {
    STRIDED = 12,
    STRIDED_BYTES = 4 << 20, /* of the largest member that is copied with others */
    MIXED_BYTES = 1 << 18    /* of the largest result that one launch copies element by element
                                sooner than two launches */
};

/** Offsets of a member's elements in the result and in the member. */
struct member_space : walk<uint32_t, 2> {
    member_space() : walk(nullptr, 0, {}) {}
    member_space(const ts_tensor *t, const int64_t *to)
        : walk(ts_sizes(t), ts_ndim(t), {to, ts_strides(t)})
    {
    }
};

/** Members of any strides of one launch; strides and offsets are in elements. */
struct strided_members {
    int count;
    unsigned first[STRIDED + 1]; /* first block of each member */
    uint32_t numel[STRIDED];
    member_space space[STRIDED];
    int64_t offset[STRIDED];          /* of the member's first element in the result */
    const void *data[STRIDED];
};

template <class E>
static __global__ void __launch_bounds__(UNITS_THREADS)
    strided_members_kernel(const __grid_constant__ strided_members m, E *out)
{
    int k = 0;
    while (k + 1 < m.count && m.first[k + 1] <= blockIdx.x)
        k++;
    const E *from = (const E *)m.data[k];
    uint32_t first = (blockIdx.x - m.first[k]) * UNITS_BLOCK + threadIdx.x;
    int64_t at[UNITS_UNROLL][2];
    E x[UNITS_UNROLL];
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++)
        if (first + u * UNITS_THREADS < m.numel[k]) {
            m.space[k].at(first + u * UNITS_THREADS, at[u]);
            x[u] = from[at[u][1]];
        }
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++)
        if (first + u * UNITS_THREADS < m.numel[k])
            out[m.offset[k] + at[u][0]] = x[u];
}

/** A member's start and length along dim in the result. */
struct part {
    const ts_tensor *t;
    int64_t at, length;
    bool packed;  /* copied by members_kernel() */
    bool strided; /* copied by strided_members_kernel() */
};

/** Copies one member with any strides and dtype. */
static ts_status copy_alone(ts_frame *f, ts_tensor *out, int dim, bool stack, const part &p)
{
    int64_t to[TS_MAX_DIMS], item = (int64_t)ts_dtype_size(ts_dtype_of(out));
    int ndim = ts_ndim(p.t);
    for (int d = 0; d < ndim; d++)
        to[d] = ts_strides(out)[d + (stack && d >= dim)];
    char *data = (char *)ts_kernel_data(out) + p.at * ts_strides(out)[dim] * item;
    return copy_part(f, {data, to, ts_dtype_of(out)},
                     {ts_kernel_data(p.t), ts_strides(p.t), ts_dtype_of(p.t)}, ts_sizes(p.t), ndim);
}

/** Copies the strided members m, and empties m. */
static ts_status copy_strided(ts_frame *f, strided_members &m, ts_tensor *out)
{
    if (!m.count)
        return TS_OK;
    unsigned blocks = m.first[m.count];
    ts_status status = on_device(f, [&](const call &c) {
        void *to = ts_kernel_data(out);
        switch (ts_dtype_size(ts_dtype_of(out))) {
        case 8:
            strided_members_kernel<<<blocks, UNITS_THREADS, 0, c.stream>>>(m, (uint64_t *)to);
            break;
        case 4:
            strided_members_kernel<<<blocks, UNITS_THREADS, 0, c.stream>>>(m, (uint32_t *)to);
            break;
        case 2:
            strided_members_kernel<<<blocks, UNITS_THREADS, 0, c.stream>>>(m, (uint16_t *)to);
            break;
        default: strided_members_kernel<<<blocks, UNITS_THREADS, 0, c.stream>>>(m, (uint8_t *)to);
        }
        return cudaPeekAtLastError();
    });
    m.count = 0;
    return status;
}

/** Adds a member to m, and copies m if that is full. */
static ts_status add_strided(ts_frame *f, strided_members &m, ts_tensor *out, int dim, bool stack,
                             const part &p)
{
    int64_t to[TS_MAX_DIMS];
    int n = m.count++, ndim = ts_ndim(p.t);
    for (int d = 0; d < ndim; d++)
        to[d] = ts_strides(out)[d + (stack && d >= dim)];
    m.numel[n] = (uint32_t)ts_numel(p.t);
    m.space[n] = member_space(p.t, to);
    m.offset[n] = p.at * ts_strides(out)[dim];
    m.data[n] = ts_kernel_data(p.t);
    m.first[n + 1] = m.first[n] + units_blocks(m.numel[n]);
    return m.count == STRIDED ? copy_strided(f, m, out) : TS_OK;
}

/** True if `out` is dense in the memory order of a stack of channels-last images along `dim`: that
 *  of their cat, with the new dim before the images' dim `dim`. */
static bool stacks_images(const ts_tensor *out, int dim)
{
    int n = ts_ndim(out) - 1;
    if (n < 3 || dim >= n || ts_is_contiguous(out))
        return false;
    int64_t step = 1;
    for (int k = 0; k < n; k++) {
        int d = k == 0 ? 1 : k == n - 1 ? 0 : n - k, r = d + (d >= dim);
        if (ts_strides(out)[r] != step)
            return false;
        step *= ts_size(out, r);
        if (d == dim && ts_strides(out)[dim] != step)
            return false;
        step *= d == dim ? ts_size(out, dim) : 1;
    }
    return true;
}

static ts_status join(ts_frame *f, bool stack)
{
    const ts_value *list = &f->args[0];
    ts_tensor *out = f->rets[0].t;
    if (!ts_numel(out))
        return TS_OK;
    int dim = (int)ts_kernel_dim(f);
    bool flat = ts_is_contiguous(out),
         last = stack ? stacks_images(out, dim) : !flat && dense_last(out);
    int64_t item = (int64_t)ts_dtype_size(ts_dtype_of(out)),
            step = (!last      ? elements_behind(out, dim)
                    : stack    ? ts_strides(out)[dim]
                    : dim == 1 ? 1
                    : dim == 0 ? elements_behind(out, 0)
                               : elements_behind(out, dim) * ts_size(out, 1)) *
                   item,
            row = ts_size(out, dim) * step;
    int64_t outer = ts_numel(out) * item / row, at = 0;
    bool mixed = false;
    auto part_of = [&](uint32_t i, int64_t begin) {
        const ts_tensor *t = list->list[i];
        part p = {t, begin, 0, false, false};
        if (!ts_numel(t) || ts_ndim(t) + stack != ts_ndim(out))
            return p; /* ignored */
        p.length = stack ? 1 : ts_size(t, dim);
        p.packed = !mixed && (last ? dense_last(t) : flat && ts_is_contiguous(t)) &&
                   ts_dtype_of(t) == ts_dtype_of(out) && outer * p.length * step < (int64_t)1 << 31;
        p.strided = !p.packed && ts_dtype_of(t) == ts_dtype_of(out) &&
                    ts_numel(t) * item <= STRIDED_BYTES;
        return p;
    };
    if (list->count <= STRIDED && ts_numel(out) * item <= MIXED_BYTES)
        for (uint32_t i = 0; i < list->count && !mixed; i++)
            mixed = part_of(i, 0).strided;
    strided_members strided;
    strided.count = 0;
    strided.first[0] = 0;
    uint64_t bits = (uint64_t)row | (uint64_t)(uintptr_t)ts_kernel_data(out);
    for (uint32_t i = 0; i < list->count; i++) {
        part p = part_of(i, at);
        bits |= (uint64_t)(p.length * step); /* so that the next member begins at a unit */
        if (p.packed)
            bits |= (uint64_t)(uintptr_t)ts_kernel_data(p.t);
        else if (p.strided)
            TS_CUDA_TRY(add_strided(f, strided, out, dim, stack, p));
        else if (p.length)
            TS_CUDA_TRY(copy_alone(f, out, dim, stack, p));
        at += p.length;
    }
    TS_CUDA_TRY(copy_strided(f, strided, out));
    int64_t unit = unit_of(bits);
    return on_device(f, [&](const call &c) {
        members m;
        m.total = row / unit;
        m.count = 0;
        m.first[0] = 0;
        at = 0;
        for (uint32_t i = 0; i < list->count; i++) {
            part p = part_of(i, at);
            at += p.length;
            if (p.packed) {
                int n = m.count++;
                m.units[n] = (uint32_t)(outer * p.length * step / unit);
                m.row[n] = split<uint32_t>(p.length * step / unit);
                m.offset[n] = p.at * step / unit;
                m.data[n] = ts_kernel_data(p.t);
                m.first[n + 1] = m.first[n] + units_blocks(m.units[n]);
            }
            if (m.count == MEMBERS || (m.count && i + 1 == list->count)) {
                with_unit((int)unit, [&]<class U>() {
                    members_kernel<U><<<m.first[m.count], UNITS_THREADS, 0, c.stream>>>(
                        m, (U *)ts_kernel_data(out));
                });
                m.count = 0;
            }
        }
        return cudaPeekAtLastError();
    });
}
static ts_status cat(ts_frame *f) { return join(f, false); }
static ts_status stack(ts_frame *f) { return join(f, true); }

TS_CUDA_FAMILY(cat,
    {"cat", cat, 0, false, false, true},
    {"stack", stack, 0, false, false, true},
)
