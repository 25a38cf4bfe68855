/** @file signals.h  Runs the report of TS_PROF when a signal ends the process. */
// SPDX-License-Identifier: MIT
#ifndef TS_PROFILE_SIGNALS_H
#define TS_PROFILE_SIGNALS_H

#include <stdbool.h>

/** Calls report() in a thread of its own when a signal is about to end the process, and ends the
 *  process by that signal afterwards. Signals: SIGINT, SIGTERM, SIGHUP, and those of a crash
 *  (SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL), except those that the program handles or ignores
 *  when the function is called. A repeated signal ends the process at once. crashed: a thread
 *  crashed, so it may hold locks forever. The crashed thread waits for the report, at most a
 *  minute. */
void ts_profile_watch_signals(void (*report)(bool crashed));
/** At exit(): if a signal came before, waits, at most a minute, until the thread has written the
 *  report and sent the signal, which ends the process. */
void ts_profile_await_signal(void);
/** Removes the handlers of ts_profile_watch_signals(). */
void ts_profile_ignore_signals(void);
/** Called by report(), once: runs fetch() in a thread of its own. False if the thread cannot start,
 *  or if fetch() has not ended after `ms` milliseconds or crashes; the thread then stays in fetch()
 *  until the process ends. */
bool ts_profile_run_within(int ms, void (*fetch)(void));

#endif
