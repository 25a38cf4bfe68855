/** @file testing.h  Hooks for tests of compile/. The library does not set them; a test sets them
 * while no compiled function runs. */
// SPDX-License-Identifier: MIT
#ifndef TS_COMPILE_TESTING_H
#define TS_COMPILE_TESTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Mask of the bits that hashes of recordings keep. With few bits, different recordings get equal
 *  hashes. */
extern uint64_t ts_plan_hash_mask;
/** Elements of a tile of a group on the CPU, in groups that run for the first time; 0: the library
 *  chooses them (tile_state.c). */
extern int64_t ts_tile_elements;
/** Switches machine code of groups on the CPU. */
void ts_emit_switch(bool on);
/** The variant of the CPU's kernels, taken from the recipe of `add`; 0 without that recipe. */
int ts_emit_variant(void);
/** Makes memory executable; a test replaces it by a function that fails. */
extern int (*ts_emit_protect)(void *at, size_t bytes, int protection);
/** Switches poisoning: runs overwrite the bytes of a storage in the arena before its first use and
 *  after its last, so that a read outside of its life changes results. */
void ts_arena_poison(bool on);

#endif
