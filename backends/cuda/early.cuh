/** @file early.cuh  Kernels that begin before the kernel in front has ended (launch_early()). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EARLY_CUH
#define TS_CUDA_EARLY_CUH

namespace ts {

/** Lets the next kernel begin, if its launch is early. */
__device__ __forceinline__ void begin_next_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/** Waits for the results of the kernel in front. */
__device__ __forceinline__ void wait_for_kernel_in_front()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace ts

#endif
