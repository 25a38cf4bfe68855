/** @file early.cuh  Programmatic dependent launch: kernels that begin before the previous kernel on
 * the stream has ended (launch_early()). No effect before sm_90. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EARLY_CUH
#define TS_CUDA_EARLY_CUH

namespace ts {

/** A next kernel of launch_early() may begin after all blocks have called this or ended. */
__device__ __forceinline__ void begin_next_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/** Waits until the previous kernel on the stream has ended and its stores are visible. */
__device__ __forceinline__ void wait_for_kernel_in_front()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace ts

#endif
