/* map.h - a hash table from bytes to a 64-bit number.
 *
 * Keys are borrowed: they must outlive the map. A zeroed map is a valid empty one.
 * The hash is seeded per process, so hostile keys do not pile up in one place. */
#ifndef TERN_BASE_MAP_H
#define TERN_BASE_MAP_H

#include "base/err.h"
#include "base/str.h"

struct map_slot;
struct map {
    struct map_slot *slots;
    size_t n, cap;
};

bool map_reserve(struct map *m, size_t n); /* room for n keys in all; false: no memory */
bool map_get(const struct map *m, struct str key, uint64_t *value);
enum { MAP_REPLACED = 0, MAP_ADDED = 1 };
/* MAP_ADDED, MAP_REPLACED (the key was there, its value is now this one), or E_NOMEM. */
int map_put(struct map *m, struct str key, uint64_t value);
void map_release(struct map *m);

uint64_t map_hash(struct str key);
#endif
