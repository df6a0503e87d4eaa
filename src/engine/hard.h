/* hard.h - hard mode: a build in which everything that is rare happens all the time.
 *
 * `make hard` builds with -DTERN_HARD and runs the engine, API and chaos tests. They expect the
 * same answers as always:
 *   - the KV cache holds one context only, and a running sequence is preempted every few rounds;
 *   - prompts are computed in chunks of 1 to 7 tokens;
 *   - events carry little text each, and the outbox holds two steps and nothing more;
 *   - after every round the engine checks all invariants (engine/check.c) and aborts if one fails.
 *
 * All knobs are here. Code uses them through these names, so that both builds compile the same
 * lines. */
#ifndef TERN_ENGINE_HARD_H
#define TERN_ENGINE_HARD_H

#ifdef TERN_HARD
enum {
    HARD = 1,
    HARD_PREEMPT_EVERY = 5, /* rounds */
    HARD_CHUNK = 7,         /* prefill tokens of a sequence and step: 1 to so many */
    HARD_TEXT = 64,         /* text bytes of an event */
    HARD_SEED = 12345
};
#else
enum { HARD = 0, HARD_PREEMPT_EVERY = 0, HARD_CHUNK = 1, HARD_TEXT = 0, HARD_SEED = 0 };
#endif
#endif
