/* snap.h - snapshots of recurrent state, found by the tokens they describe.
 *
 * Recurrent state cannot be shared like a KV block, but it can be copied. A snapshot is a slot with
 * the state behind some whole blocks of tokens; those tokens are stored beside it and compared
 * before it is used, so a sequence never continues from another prompt's state. This table holds
 * tokens and slot ids only; the caller copies the state (runner_copy_state).
 *
 * A full table replaces the snapshot of the least worth, by GreedyDual (Young, 1994): the worth is
 * the number of tokens that would be computed again without it, those behind the next shorter
 * snapshot of the same text, plus the age of the table when it was used last. So a snapshot that a
 * neighbour nearly replaces is given up before the only one of another conversation, and one that is
 * never used again goes in the end, however long it is.
 *
 * All memory is allocated when the table opens. The engine thread owns it. */
#ifndef TERN_KV_SNAP_H
#define TERN_KV_SNAP_H

#include "base/err.h"

#include <stdint.h>

struct snaps;

/* n snapshots in the slots first_slot to first_slot + n - 1, of texts of up to max_tokens. */
int snaps_open(struct snaps **out, int first_slot, int n, int max_tokens, struct err *e);
void snaps_close(struct snaps *s); /* NULL is allowed */

/* Length of the longest snapshot that is a prefix of the n ids; 0: there is none. Changes nothing.
 * salt: only snapshots stored with the same one match. */
int snaps_find(const struct snaps *s, uint64_t salt, const int32_t *ids, int n);
/* The slot of the snapshot of exactly these n ids (which snaps_find found), marked as used now. */
int snaps_use(struct snaps *s, uint64_t salt, const int32_t *ids, int n);
/* Records a snapshot of these n ids and returns the slot into which the caller must copy the state.
 * -1: there is one already, or n is out of range; nothing is to be copied. */
int snaps_add(struct snaps *s, uint64_t salt, const int32_t *ids, int n);
/* Puts the state of a running sequence, which has one snapshot that moves on with it: the
 * one of the first `from` ids that an earlier call recorded becomes one of n ids. It is a new one if
 * from is 0, or the earlier one was replaced meanwhile, or another sequence took it for its own.
 * from < n. */
int snaps_move(struct snaps *s, uint64_t salt, const int32_t *ids, int from, int n);
int snaps_n(const struct snaps *s);   /* snapshots stored now */
int snaps_max(const struct snaps *s); /* snapshots that there is room for */
#endif
