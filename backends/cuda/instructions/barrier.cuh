/**
 * @file barrier.cuh  Barriers in shared memory that count arrivals and bytes, bulk copies that
 * report to them, and accesses to the shared memory of other blocks of a cluster (PTX ISA:
 * mbarrier, cp.async.bulk, mapa, st.async). For sm_90 and later.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BARRIER_CUH
#define TS_CUDA_BARRIER_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/* A barrier is 8 bytes of shared memory at an address of 32 bits. Its phases have the parities 0,
 * 1, 0, ... A phase ends after `count` arrivals and the bytes that barrier_expect() announced. */

/** Initialises a barrier; `count` arrivals end a phase. One thread calls. */
__device__ __forceinline__ void barrier_init(uint32_t barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/** Makes initialised barriers visible to the cluster and the copy engine. The thread that called
 * barrier_init() calls it after the last one; __syncthreads() or cluster_sync() must follow before
 * other threads use the barriers. */
__device__ __forceinline__ void barriers_ready()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/** Arrives at the current phase, without waiting. */
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/** Arrives, and makes the current phase wait until copies have transferred `bytes` more bytes. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/** Waits for the end of the current phase if it has this parity; else the phase of this parity has
 * ended and the call returns at once. On a new barrier, a wait for parity 1 thus returns at
 * once. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{\n\t.reg .pred done;\n\t"
                 "wait_again:\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra wait_again;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
/** Starts an asynchronous copy of `bytes` bytes from global memory to this block's shared memory.
 * The copy reports its bytes to `barrier`. Addresses and size must be multiples of 16. */
__device__ __forceinline__ void bulk_load(uint32_t to, const void *from, int bytes,
                                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/** bulk_load() with an L2 cache policy (read_once::policy). */
__device__ __forceinline__ void bulk_load(uint32_t to, const void *from, int bytes,
                                          uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}
/** Orders this thread's stores to shared memory before later bulk copies to it. Each thread that
 * stored calls it, before a barrier with the thread that starts the copies. */
__device__ __forceinline__ void before_bulk_loads()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* ------------------------------------------------------------------------------ clusters ---- */

/** Number of blocks of the cluster. */
__device__ __forceinline__ uint32_t cluster_blocks()
{
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

/** Index of this block in its cluster. */
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/** Maps a shared-memory address of this block to the same address in block `rank` of the
 * cluster. */
__device__ __forceinline__ uint32_t peer_address(uint32_t mine, uint32_t rank)
{
    uint32_t a;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(mine), "r"(rank));
    return a;
}
/** Barrier over all threads of all blocks of the cluster. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/** Stores x in another block's shared memory, asynchronously, and reports 8 bytes to that block's
 * barrier. `to` and `barrier` are from peer_address(). */
__device__ __forceinline__ void peer_store(uint32_t to, float2 x, uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "r"(barrier)
                 : "memory");
}
/** Like barrier_wait(), for data that other blocks of the cluster wrote. */
__device__ __forceinline__ void barrier_wait_peers(uint32_t barrier, int parity)
{
    asm volatile("{\n\t.reg .pred done;\n\t"
                 "wait_again:\n\t"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
                 "@!done bra wait_again;\n\t}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

} // namespace ts

#endif
