/* snap.h - snapshots of recurrent state, found by the tokens they describe.
 *
 * Recurrent state cannot be shared like a KV block, but it can be copied. A snapshot is a slot with
 * the state behind some whole blocks of tokens; those tokens are stored beside it and compared
 * before it is used, so a sequence never continues from another prompt's state. This table holds
 * tokens and slot ids only; the caller copies the state (runner_copy_state). The least recently
 * used snapshot is replaced. All memory is allocated when the table opens. The engine thread owns
 * it. */
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
int snaps_n(const struct snaps *s); /* snapshots stored now */
#endif
