/** @file early.cuh  Programmatic dependent launch: a kernel that launch_early() (launch.h) queues
 * may begin before the previous kernel on the stream has ended. The previous kernel calls
 * begin_next_kernel(), the early kernel wait_for_kernel_in_front(). Before sm_90, both do
 * nothing. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EARLY_CUH
#define TS_CUDA_EARLY_CUH

namespace ts {

/** Allows the next kernel on the stream, if launch_early() queued it, to begin as soon as all
 * blocks of this kernel have called this function or ended. */
__device__ __forceinline__ void begin_next_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/** Waits until the previous kernel on the stream has ended and its stores are visible. Returns at
 * once in a kernel that was not launched early. */
__device__ __forceinline__ void wait_for_kernel_in_front()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

} // namespace ts

#endif
