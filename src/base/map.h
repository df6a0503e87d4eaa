/* map.h - a hash table from bytes to a 64-bit number.
 *
 * Open addressing with linear probing, at most half full; the capacity is a power of two. Keys are
 * borrowed: they must outlive the map. Keys cannot be removed. A zeroed map is a valid empty one.
 * The hash has a random seed per process, so a client cannot construct keys that all collide.
 *
 * Any number of threads may read a map that nobody changes. */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H

#include "base/err.h"
#include "base/str.h"

struct map_slot;
struct map {
    struct map_slot *slots; /* [cap] */
    size_t n, cap;          /* keys and slots */
};

bool map_reserve(struct map *m, size_t n); /* room for n keys in all; false: no memory */
/* false: the key is not there and *value is unchanged. value may be NULL. */
bool map_get(const struct map *m, struct str key, uint64_t *value);
enum { MAP_REPLACED = 0, MAP_ADDED = 1 };
/* MAP_ADDED, MAP_REPLACED (the key was there and its old value is lost), or E_NOMEM (the map is
 * unchanged). */
int map_put(struct map *m, struct str key, uint64_t value);
void map_release(struct map *m);
size_t map_bytes(const struct map *m); /* of the table; the keys are not its own */

uint64_t map_hash(struct str key); /* differs from process to process: never store it */
#endif
