/**
 * @file mma.cu
 * Implicit products of convolutions: the choice of the engine, and launches of mma.cuh.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/convolution/mma.cuh"
#include "backends/cuda/convolution/cudnn.h"
#include "backends/cuda/frame.cuh"
#include "backends/cuda/runtime/launch.h"

#include "tessera/program.h"

namespace ts {

template <class T, int WIDE> static cudaError_t multiply(const conv_call &c, cudaStream_t stream)
{
    int64_t tiles = ((int64_t)c.windows + CONV_TALL - 1) / CONV_TALL * ((c.rows + WIDE - 1) / WIDE);
    if (tiles > INT32_MAX || c.groups > UINT16_MAX)
        return cudaErrorNotSupported;
    return launch(c.after.some ? conv_mma_kernel<T, WIDE, true> : conv_mma_kernel<T, WIDE, false>,
                  {dim3((unsigned)tiles, (unsigned)c.groups), dim3(CONV_THREADS),
                   128 + CONV_STAGES * (CONV_TALL + WIDE) * 128, 1},
                  stream, c);
}
template <class T> cudaError_t conv_mma(const conv_call &c, cudaStream_t stream)
{
    return c.rows <= 32   ? multiply<T, 32>(c, stream)
           : c.rows <= 64 ? multiply<T, 64>(c, stream)
                          : multiply<T, 128>(c, stream);
}

static int64_t tiles_by(const conv_call &c)
{
    return (int64_t)((c.rows + CONV_TALL - 1) / CONV_TALL) * ((c.taps * c.chunks + 15) / 16);
}
/** Number of elements of the gradient of the weight. */
static int64_t weights_of(const conv_call &c)
{
    return (int64_t)c.groups * c.rows * c.taps * c.each;
}
/** Number of steps, of CONV_DEEP windows each, per part of the windows. Minimises an estimate of
 * the time, which depends only on the shape. */
static int steps_of_part(const conv_call &c)
{
    constexpr int64_t PROCESSORS = 132, /* of an H100; other GPUs get the same bits */
        FIXED = 16,                     /* time of a tile's begin and end, in steps */
        STEP_BYTES = 1 << 20;           /* bytes that memory moves in the time of a step */
    int64_t steps = (c.windows + CONV_DEEP - 1) / CONV_DEEP, tiles = tiles_by(c) * c.groups,
            least = INT64_MAX, best = steps;
    for (int64_t parts = 1; parts <= 256 && parts <= steps; parts++) {
        int64_t each = (steps + parts - 1) / parts, all = (steps + each - 1) / each;
        int64_t time = (tiles * all + PROCESSORS - 1) / PROCESSORS * (each + FIXED) +
                       (all > 1 ? FIXED + 8 * all * weights_of(c) / STEP_BYTES : 0);
        if (time < least)
            least = time, best = each;
    }
    return (int)best;
}
static int parts_of(const conv_call &c)
{
    int each = steps_of_part(c) * CONV_DEEP;
    return (c.windows + each - 1) / each;
}
int64_t conv_mma_bytes(const conv_call &c)
{
    int parts = parts_of(c);
    return parts > 1 ? parts * weights_of(c) * 4 : 0;
}
template <class T> cudaError_t conv_mma_by(const conv_call &c, cudaStream_t stream)
{
    int64_t tiles = tiles_by(c), quads = weights_of(c) / 4;
    int parts = parts_of(c);
    if (tiles > INT32_MAX || c.groups > UINT16_MAX)
        return cudaErrorNotSupported;
    cudaError_t e = launch(conv_mma_by_kernel<T>,
                           {dim3((unsigned)tiles, (unsigned)c.groups, (unsigned)parts),
                            dim3(CONV_THREADS), 128 + CONV_STAGES * 2 * CONV_DEEP * 256, 1},
                           stream, c, steps_of_part(c) * CONV_DEEP);
    if (e != cudaSuccess || parts == 1)
        return e;
    return launch(
        conv_add_parts_kernel<T>,
        {dim3((unsigned)((quads + CONV_THREADS - 1) / CONV_THREADS)), dim3(CONV_THREADS), 0, 1},
        stream, (const float4 *)c.partial, (vec<T, 4> *)c.to, parts, quads);
}

/* ------------------------------------------------------------------------------- calls ---- */

static conv_call call_of_product(const ts_cuda_window_product &p, const call &at)
{
    const ts_cuda_windows &w = p.windows;
    conv_call c = {};
    c.taps = 1;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis &a = w.axis[d];
        c.axis[d] = {(int)a.count,
                     (int)a.taps,
                     (int)a.move,
                     (int)a.base,
                     (int)a.shift,
                     (int)w.size[d],
                     (int)a.start,
                     (int)a.step,
                     (int)p.size[d],
                     divisor((uint32_t)a.count),
                     divisor((uint32_t)a.taps)};
        c.taps *= (int)a.taps;
    }
    c.processors = at.device->sms;
    c.image = w.image;
    c.other = p.other;
    c.bias = p.bias;
    c.to = p.to;
    c.windows = (int)p.all;
    c.groups = (int)w.groups;
    c.rows = (int)p.rows;
    c.channels = (int)w.channels;
    c.each = c.channels / c.groups;
    c.chunks = c.each / 8;
    c.by_chunks = divisor((uint32_t)c.chunks);
    c.after = conv_after::of(p.after, p.rows * w.groups);
    c.vectors = c.rows % 8 == 0 && ((uintptr_t)c.to | (uintptr_t)c.after.added) % 16 == 0;
    return c;
}

static void log_call(const conv_call &c, bool hopper, const char *what)
{
    if (ts_log_on("convolution"))
        ts_log_write("convolution",
                     "cuda, %s kernels, %s; windows: %d, groups: %d, rows: %d, "
                     "taps: %d, channels: %d",
                     hopper ? "wgmma" : "mma", what, c.windows, c.groups, c.rows, c.taps, c.each);
}

/** Runs launch.operator()<T>(stream); T is the call's dtype, bf16 or f16. */
template <class F> static ts_status with_half(ts_frame *f, const call &at, F &&launch)
{
    cudaError_t e = ts_kernel_dtype(f) == TS_BF16 ? launch.template operator()<bf16>(at.stream)
                                                  : launch.template operator()<f16>(at.stream);
    return ts_cuda_launched(f, e, at.stream);
}

} // namespace ts

using namespace ts;

bool ts_cuda_window_product_fits(const ts_cuda_window_product *p)
{
    const ts_cuda_windows *w = &p->windows;
    int64_t each = w->channels / w->groups, taps = 1, most = INT32_MAX / 4;
    uintptr_t at = (uintptr_t)w->image | (uintptr_t)p->other;
    if (ts_cuda_conv_allowed() == TS_CUDA_CONV_MATRIX || w->item != 2 || each % 8 || !each ||
        !p->rows || at % 16 || w->groups > 65535)
        return false;
    for (int d = 0; d < 3; d++) {
        const ts_window_axis *a = &w->axis[d];
        int64_t shift = a->shift < 0 ? -a->shift : a->shift,
                base = a->base < 0 ? -a->base : a->base;
        if (a->taps < 1 || a->taps > most / taps || shift > most / a->taps ||
            a->move > most / a->count || base > most || w->size[d] > most)
            return false;
        taps *= a->taps;
    }
    return p->all <= most && w->channels <= most / taps && p->rows <= most / w->groups;
}

ts_status ts_cuda_multiply_windows(ts_frame *f, const ts_cuda_window_product *p)
{
    call at = call_of(f);
    if (!at.device)
        return ts_error_code();
    conv_call c = call_of_product(*p, at);
    bool hopper = at.device->hopper && ts_cuda_conv_allowed() < TS_CUDA_CONV_MMA;
    return with_half(f, at, [&]<class T>(cudaStream_t stream) {
        cudaError_t e = hopper ? conv_wgmma<T>(c, stream) : cudaErrorNotSupported;
        bool other = e == cudaErrorNotSupported;
        log_call(c, !other, "image");
        return other ? conv_mma<T>(c, stream) : e;
    });
}

ts_status ts_cuda_multiply_by_windows(ts_frame *f, const ts_cuda_window_product *p)
{
    call at = call_of(f);
    if (!at.device)
        return ts_error_code();
    conv_call c = call_of_product(*p, at);
    ts_device where = ts_kernel_device(f);
    bool hopper = at.device->hopper && ts_cuda_conv_allowed() < TS_CUDA_CONV_MMA, other = false;
    ts_status status;
    do {
        int64_t bytes = hopper ? conv_wgmma_bytes(c) : conv_mma_bytes(c);
        if (bytes && !(c.partial = (float *)ts_scratch_take(where, bytes)))
            return ts_error_code();
        status = with_half(f, at, [&]<class T>(cudaStream_t stream) {
            cudaError_t e = hopper ? conv_wgmma_by<T>(c, stream) : conv_mma_by<T>(c, stream);
            other = hopper && e == cudaErrorNotSupported;
            return other ? cudaSuccess : e;
        });
        if (bytes)
            ts_scratch_give(where, c.partial, bytes);
        if (!other)
            log_call(c, hopper, "weight");
        hopper = false;
    } while (other && status == TS_OK);
    return status;
}
