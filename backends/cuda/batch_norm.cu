/** @file batch_norm.cu  Batch norm and group norm, and their gradients: decoding and launches. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/batch_norm.h"
#include "backends/cuda/batch_norm_combine.cuh"
#include "backends/cuda/batch_norm_once.cuh"
#include "backends/cuda/runtime/launch.h"
#include "tessera/ops.h"

#include <initializer_list>

using namespace ts;

namespace {

/** A decoded call. */
struct norm_call {
    shape s;
    bool last; /* channels-last */
    bool relu; /* the forward op applies relu to its result */
    const void *x, *g;
    void *y;
};

int power_of_two(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

/** Block of THREADS threads (columns, rows) for `vectors` vectors of channels. */
dim3 pixel_block(int64_t vectors)
{
    int columns = power_of_two(vectors, 32);
    return dim3((unsigned)columns, (unsigned)(THREADS / columns));
}

norm_call describe(ts_frame *f, int x_arg, int64_t groups, bool batch, bool relu, double eps)
{
    norm_call c = {};
    c.relu = relu;
    const ts_tensor *x = f->args[x_arg].t;
    c.x = ts_kernel_data(x);
    c.g = x_arg ? ts_kernel_data(f->args[0].t) : nullptr;
    c.y = f->rets[0].tag == TS_TAG_TENSOR ? ts_kernel_data(f->rets[0].t) : nullptr;
    shape &s = c.s;
    s.samples = ts_size(x, 0);
    s.channels = ts_size(x, 1);
    s.positions = 1;
    for (int d = 2; d < ts_ndim(x); d++)
        s.positions *= ts_size(x, d);
    s.groups = batch ? s.channels : groups;
    s.eps = eps;
    c.last = s.positions == 1 || all_last({&f->args[0], &f->args[x_arg], &f->rets[0]});
    s.sets = batch ? 1 : s.samples;
    if (c.last && batch)
        s.positions *= s.samples;
    if (c.last || !batch)
        s.samples = 1;
    int64_t wide = 512 / (int64_t)ts_dtype_size(ts_kernel_dtype(f)), /* channels of a block */
        units = s.sets * (c.last ? (s.channels + wide - 1) / wide : s.channels),
        least = c.last ? 64 : 4096, most = s.samples * s.positions / least,
        splits = units ? (PROCESSORS * BLOCKS + units - 1) / units : 1;
    s.splits = splits < most ? splits : most;
    s.splits = s.splits < 1 ? 1 : s.splits > 1024 ? 1024 : s.splits;
    return c;
}

/** Launches a kernel that begins with take_turn(): if the GPU can, its blocks are placed while the
 * kernel in front ends. */
template <class... P, class... A>
cudaError_t start(const call &on, void (*kernel)(P...), dim3 blocks, dim3 threads, const A &...args)
{
    const ts_cuda_grid grid = {blocks, threads, 0, 1};
    return on.device->clusters ? launch_early(kernel, grid, on.stream, args...)
                               : launch(kernel, grid, on.stream, args...);
}

template <class T, int V, int MODE>
cudaError_t sum_pass(const norm_call &c, forward_parameters forward, part *parts, const call &on)
{
    const shape &s = c.s;
    const T *x = (const T *)c.x, *g = (const T *)c.g;
    if (c.last) {
        dim3 block = pixel_block(s.channels / V);
        dim3 grid((unsigned)((s.channels / V + block.x - 1) / block.x * s.sets),
                  (unsigned)s.splits);
        return start(on, pixel_sums<T, V, MODE>, grid, block, x, g, s, forward, parts);
    }
    dim3 grid((unsigned)(s.sets * s.channels), (unsigned)s.splits);
    cudaError_t e = cudaSuccess;
    with_numbers(s.samples * (s.positions / V), [&]<class I>() {
        e = start(on, unit_sums<T, V, MODE, I>, grid, dim3(THREADS), x, g, s, forward,
                  split<I>(s.positions / V), parts);
    });
    return e;
}

template <class T, int V, int MODE>
cudaError_t result_pass(const norm_call &c, coefficients<wide_t<T>> k, const call &on)
{
    const shape &s = c.s;
    const T *x = (const T *)c.x, *g = (const T *)c.g;
    T *y = (T *)c.y;
    wide_t<T> least = c.relu ? 0 : -INFINITY;
    if (c.last) {
        dim3 block = pixel_block(s.channels / V);
        int64_t each = (int64_t)block.y * 8, blocks = (s.positions + each - 1) / each;
        if (blocks > 65535) {
            each *= (blocks + 65534) / 65535;
            blocks = (s.positions + each - 1) / each;
        }
        dim3 grid((unsigned)((s.channels / V + block.x - 1) / block.x * s.sets),
                  (unsigned)blocks);
        return start(on, pixel_results<T, V, MODE>, grid, block, x, g, y, s, k, each, least);
    }
    int64_t units = s.sets * s.channels, row = s.positions / V;
    cudaError_t e = cudaSuccess;
    for_boxes({s.samples, units, row}, [&](const int64_t(&from)[3], const int64_t(&sizes)[3]) {
        int64_t count = sizes[0] * sizes[1] * sizes[2],
                at = ((from[0] * units + from[1]) * row + from[2]) * V;
        unsigned blocks = (unsigned)((count + THREADS * UNROLL - 1) / (THREADS * UNROLL));
        if (e == cudaSuccess)
            e = start(on, unit_results<T, V, MODE>, dim3(blocks), dim3(THREADS), x + at,
                      g ? g + at : g, y + at, k.from(from[1]), split<uint32_t>(sizes[2]),
                      split<uint32_t>(sizes[1]), (uint32_t)count, least);
    });
    return e;
}

/** Calls f.operator()<V>() with the elements of 16-byte vectors if sizes and addresses allow them,
 * else with 1. Pass y = nullptr for sums: the order of additions depends on V and must not depend
 * on the address of the result. */
template <class T, class F> cudaError_t with_vectors(const norm_call &c, const void *y, F &&f)
{
    int64_t run = c.last ? c.s.channels : c.s.positions;
    if (in_vectors<T>(run, {c.x, c.g, y}))
        return f.template operator()<vec16<T>>();
    return f.template operator()<1>();
}

unsigned warps(int64_t n) { return (unsigned)((n * 32 + THREADS - 1) / THREADS); }

/** Calls f.operator()<WARPS>(blocks) for pass 2 with `teams` teams. sums: pass 2 adds up splits; if
 * there are many, a team is a block, which has more loads in flight than a warp. */
template <class F> void with_team(const shape &s, bool sums, int64_t teams, F &&f)
{
    if (sums && s.channels / s.groups * s.splits > 64)
        f.template operator()<THREADS / 32>((unsigned)teams);
    else
        f.template operator()<1>(warps(teams));
}

/** Scratch memory of a call: partial sums, if it needs them, and coefficients. */
struct scratch {
    ts_device where;
    int64_t parts_bytes, bytes;
    void *parts;

    scratch(ts_frame *f, const shape &s, bool sums) : where(ts_kernel_device(f)), parts(nullptr)
    {
        int64_t item = ts_kernel_dtype(f) == TS_F64 ? 8 : 4, units = s.sets * s.channels;
        parts_bytes = sums ? units * s.splits * (int64_t)sizeof(part) : 0;
        bytes = parts_bytes + units * COEFFICIENTS * item;
    }
    bool take() { return !bytes || (parts = ts_scratch_take(where, bytes)); }
    ~scratch()
    {
        if (parts)
            ts_scratch_give(where, parts, bytes);
    }
};

/** Elements of a statistic. */
int64_t count_of(const shape &s) { return s.samples * s.positions * (s.channels / s.groups); }

/** True if norm_once() computes a call: its blocks hold a statistic, and its launch is a large part
 * of the time. A warp's accesses are as wide as a run of adjacent elements, so short runs are for
 * small tensors only. */
bool fits_once(ts_frame *f, const norm_call &c)
{
    const shape &s = c.s;
    int64_t width = s.channels / (s.groups ? s.groups : 1), count = s.groups ? count_of(s) : 0,
            statistics = s.sets * s.groups, run = c.last ? width : width * s.positions;
    bool wide = run * (int64_t)ts_dtype_size(ts_kernel_dtype(f)) >= 32;
    return ts_kernel_dtype(f) != TS_F64 && statistics > 0 && count > 0 &&
           count <= ONCE_THREADS * ONCE_EACH && width <= ONCE_WIDTH &&
           statistics * count <= (wide ? 1 << 23 : 1 << 19) &&
           (wide || !c.last || statistics <= 16 * PROCESSORS);
}

/** True if norm_once() computes the gradient of a group norm: fits_once() and, if `parameters`
 * requests sums of channels, a block can add one. */
bool groups_fit_once(ts_frame *f, const norm_call &c, bool parameters)
{
    return fits_once(f, c) &&
           (!parameters || (c.s.sets * c.s.positions <= ONCE_CHANNEL &&
                            c.s.sets * (c.last ? ONCE_COLUMNS : 1) <= ONCE_WIDTH));
}

/** Launches norm_once(). constant: the statistics are given. */
template <class T, int MODE, bool GROUPS = false>
cudaError_t run_once(const norm_call &c, bool constant, const forward_parameters &given,
                     const parameter &first, const parameter &second, const call &on)
{
    const shape &s = c.s;
    int64_t width = s.channels / s.groups, count = count_of(s);
    /* in the gradient of group norm, these blocks compute the gradient of x only */
    unsigned statistics = GROUPS && !c.y ? 0 : (unsigned)(s.sets * s.groups), blocks = statistics;
    once_call<T> k = {(const T *)c.x,
                      (const T *)c.g,
                      (T *)c.y,
                      s,
                      c.last,
                      split<uint32_t>(c.last ? width : width * s.positions),
                      split<uint32_t>(c.last ? 1 : s.positions),
                      split<uint32_t>(s.positions),
                      (uint32_t)count,
                      (uint32_t)(s.channels * (c.last ? 1 : s.positions)),
                      constant,
                      statistics,
                      given,
                      first,
                      second,
                      c.relu ? 0 : -INFINITY};
    if (GROUPS && (first.data || second.data)) {
        int64_t columns = c.last ? ONCE_COLUMNS : 1, sum = s.sets * s.positions * columns;
        blocks += (unsigned)((s.channels + columns - 1) / columns);
        count = count > sum ? count : sum;
    }
    if (!blocks)
        return cudaSuccess;
    int threads = power_of_two((count + ONCE_EACH - 1) / ONCE_EACH, ONCE_THREADS);
    threads = threads < 32 ? 32 : threads;
    return start(on, norm_once<T, MODE, GROUPS>, dim3(blocks), dim3((unsigned)threads), k);
}

/** Runs the forward op. given: mean and var, or nullptr to compute them. weight_arg: index of the
 * weight; bias and eps follow it. Statistics that are not requested go to temporary tensors. */
ts_status forward(ts_frame *f, int64_t groups, bool batch, bool relu, const ts_value *given,
                  int weight_arg)
{
    ts_device where = ts_kernel_device(f);
    if (!ts_cuda_use(where.index))
        return ts_error_code();
    norm_call c = describe(f, 0, groups, batch, relu, f->args[weight_arg + 2].d);
    TS_SCOPE;
    ts_value mean = f->rets[1], var = f->rets[2], none = ts_value_none();
    ts_dtype dtype = ts_kernel_dtype(f) == TS_F64 ? TS_F64 : TS_F32;
    int64_t statistics = c.s.sets * c.s.groups;
    for (ts_value *v : {&mean, &var})
        if (v->tag != TS_TAG_TENSOR) {
            *v = ts_value_tensor(ts_empty_on(&statistics, 1, dtype, where));
            TS_CUDA_TRY(ts_status_of_pointer(v->t));
        }
    if (fits_once(f, c))
        return with_float(f, [&]<class T>(const call &on) {
            if constexpr (std::is_same_v<T, double>)
                return cudaErrorNotSupported;
            else
                return run_once<T, RESULT>(c, given != nullptr,
                                           {given ? given[0] : none, given ? given[1] : none,
                                            f->args[weight_arg], f->args[weight_arg + 1]},
                                           parameter(mean), parameter(var), on);
        });
    scratch memory(f, c.s, !given);
    if (!memory.take())
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        part *parts = (part *)memory.parts;
        parameter given_mean(given ? given[0] : none), given_var(given ? given[1] : none),
            weight(f->args[weight_arg]), bias(f->args[weight_arg + 1]);
        coefficients<A> k((char *)parts + memory.parts_bytes, c.s.sets * c.s.channels);
        if (!statistics)
            return cudaSuccess;
        cudaError_t e = cudaSuccess;
        bool elements = c.s.samples * c.s.sets * c.s.positions > 0;
        if (!given && elements)
            e = with_vectors<T>(c, nullptr, [&]<int V>() {
                return sum_pass<T, V, RESULT>(c, {none, none, none, none}, parts, on);
            });
        else if (!given && memory.bytes)
            e = cudaMemsetAsync(parts, 0, (size_t)memory.bytes, on.stream);
        if (e != cudaSuccess)
            return e;
        with_team(c.s, !given, statistics, [&]<int WARPS>(unsigned blocks) {
            e = start(on, combine_moments<A, WARPS>, dim3(blocks), dim3(THREADS),
                      (const part *)parts, c.s, parameter(mean), parameter(var), given_mean,
                      given_var, weight, bias, k);
        });
        if (!elements || e != cudaSuccess)
            return e;
        return with_vectors<T>(c, c.y, [&]<int V>() {
            return result_pass<T, V, RESULT>(c, k, on);
        });
    });
}

/** (self, mean, var, weight, bias, eps) -> (result, mean, var) */
template <bool R> ts_status batch_norm(ts_frame *f)
{
    return forward(f, 0, true, R, f->args[1].tag == TS_TAG_TENSOR ? &f->args[1] : nullptr, 3);
}
/** group_norm(self, groups, weight, bias, eps) -> (result, mean, var) */
ts_status group_norm(ts_frame *f) { return forward(f, f->args[1].i, false, false, nullptr, 2); }

/** (grad, self, mean, var, weight, ...) -> (dx, dw, db). bias is used with R, for relu. */
template <bool R>
ts_status backward(ts_frame *f, int64_t groups, bool batch, const ts_value &bias, double eps,
                   bool constant)
{
    constexpr int MODE = R ? GRADIENT | RELU : GRADIENT, GIVEN = R ? CONSTANT | RELU : CONSTANT;
    if (!ts_cuda_use(ts_kernel_device(f).index))
        return ts_error_code();
    norm_call c = describe(f, 1, groups, batch, false, eps);
    bool dx = f->rets[0].tag == TS_TAG_TENSOR,
         parameters = f->rets[1].tag == TS_TAG_TENSOR || f->rets[2].tag == TS_TAG_TENSOR,
         sums = parameters || !constant;
    const forward_parameters given = {f->args[2], f->args[3], f->args[4], bias};
    if constexpr (!R)
        if (!batch && groups_fit_once(f, c, parameters))
            return with_float(f, [&]<class T>(const call &on) {
                if constexpr (std::is_same_v<T, double>)
                    return cudaErrorNotSupported;
                else
                    return run_once<T, GRADIENT, true>(c, false, given, parameter(f->rets[1]),
                                                       parameter(f->rets[2]), on);
            });
    if (batch && fits_once(f, c))
        return with_float(f, [&]<class T>(const call &on) {
            if constexpr (std::is_same_v<T, double>)
                return cudaErrorNotSupported;
            else
                return run_once<T, MODE>(c, constant, given, parameter(f->rets[1]),
                                         parameter(f->rets[2]), on);
        });
    scratch memory(f, c.s, sums);
    if (!memory.take())
        return ts_error_code();
    return with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        part *parts = (part *)memory.parts;
        coefficients<A> k((char *)parts + memory.parts_bytes, c.s.sets * c.s.channels);
        cudaError_t e = cudaSuccess;
        bool elements = c.s.samples * c.s.sets * c.s.positions > 0;
        if (!c.s.channels)
            return cudaSuccess;
        if (sums && elements)
            e = with_vectors<T>(c, nullptr, [&]<int V>() {
                return sum_pass<T, V, MODE>(c, given, parts, on);
            });
        else if (sums && memory.bytes)
            e = cudaMemsetAsync(parts, 0, (size_t)memory.bytes, on.stream);
        if (e != cudaSuccess)
            return e;
        with_team(c.s, sums, c.s.sets * c.s.groups + c.s.channels, [&]<int WARPS>(unsigned blocks) {
            e = start(on, combine_sums<A, WARPS>, dim3(blocks), dim3(THREADS), (const part *)parts,
                      c.s, given, constant, k, parameter(f->rets[1]), parameter(f->rets[2]));
        });
        if (!dx || !elements || e != cudaSuccess)
            return e;
        return with_vectors<T>(c, c.y, [&]<int V>() {
            return constant ? result_pass<T, V, GIVEN>(c, k, on)
                            : result_pass<T, V, MODE>(c, k, on);
        });
    });
}

/** batch_norm_backward(grad, self, mean, var, weight, eps, constant) -> (dx, dw, db) */
ts_status batch_norm_backward(ts_frame *f)
{
    return backward<false>(f, 0, true, ts_value_none(), f->args[5].d, f->args[6].i);
}
/** batch_norm_relu_backward(grad, self, mean, var, weight, bias, eps, constant) -> (dx, dw, db) */
ts_status batch_norm_relu_backward(ts_frame *f)
{
    return backward<true>(f, 0, true, f->args[5], f->args[6].d, f->args[7].i);
}
/** group_norm_backward(grad, self, mean, var, weight, groups, eps) -> (dx, dw, db) */
ts_status group_norm_backward(ts_frame *f)
{
    return backward<false>(f, f->args[5].i, false, ts_value_none(), f->args[6].d, false);
}

template <class A>
__global__ void update_kernel(parameter running_mean, parameter running_var, parameter mean,
                              parameter var, int64_t n, A rate, A unbiased)
{
    take_turn();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    A old_mean = running_mean.load<A>(i, 0), old_var = running_var.load<A>(i, 0),
      m = mean.load<A>(i, 0), v = var.load<A>(i, 0);
    running_mean.put(i, old_mean * (1 - rate) + rate * m);
    running_var.put(i, old_var * (1 - rate) + rate * unbiased * v);
}

/** batch_norm_update(running_mean, running_var, mean, var, count, momentum) */
ts_status batch_norm_update(ts_frame *f)
{
    int64_t n = ts_numel(f->args[0].t);
    double count = (double)f->args[4].i;
    if (!n)
        return TS_OK;
    return with_float(f, [&]<class T>(const call &on) {
        using A = wide_t<T>;
        return start(on, update_kernel<A>, dim3((unsigned)((n + THREADS - 1) / THREADS)),
                     dim3(THREADS), parameter(f->args[0]), parameter(f->args[1]),
                     parameter(f->args[2]), parameter(f->args[3]), n, (A)f->args[5].d,
                     (A)(count / (count - 1)));
    });
}

} // namespace

TS_CUDA_FAMILY(batch_norm,
    {"batch_norm", batch_norm<false>, floats, false, false, true},
    {"batch_norm_backward", batch_norm_backward, floats, false, false, true},
    {"batch_norm_relu", batch_norm<true>, floats, false, false, true},
    {"batch_norm_relu_backward", batch_norm_relu_backward, floats, false, false, true},
    {"batch_norm_update", batch_norm_update, floats, false, false, true},
    {"group_norm", group_norm, floats, false, false, true},
    {"group_norm_backward", group_norm_backward, floats, false, false, true},
)

ts_status ts_cuda_batch_norm_factors(ts_frame *f, float *factors)
{
    norm_call c = describe(f, 0, 0, true, false, f->args[5].d);
    return on_device(f, [&](const call &on) {
        parameter none{ts_value_none()};
        return start(on, combine_moments<float, 1>, dim3(warps(c.s.channels)), dim3(THREADS),
                     (const part *)nullptr, c.s, none, none, parameter(f->args[1]),
                     parameter(f->args[2]), parameter(f->args[3]), parameter(f->args[4]),
                     coefficients<float>(factors, c.s.channels));
    });
}
