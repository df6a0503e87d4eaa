/* respstore.h - answers of /v1/responses that were asked to be stored, by id.
 *
 * Bounded by bytes and by number: the one that was not used for longest is dropped first. An entry is
 * seen by its tenant only. Nothing is written to disk. Any thread may call; texts are copied. */
#ifndef TERN_API_RESPSTORE_H
#define TERN_API_RESPSTORE_H

#include "base/buf.h"

struct respstore;

enum {
    RESPSTORE_MAX = 4096,   /* entries */
    RESPSTORE_ITEM_ID = 96, /* bytes of the id of an item, with the NUL */
};

struct respstore_entry {
    const char *id;
    uint32_t tenant;
    struct str response; /* the response object */
    struct str items;    /* the input of the request: an array of items */
    struct str history;  /* the conversation with the answer, without instructions: an array of
                          * messages */
    const char (*item_ids)[RESPSTORE_ITEM_ID]; /* [n_items] of the output */
    size_t n_items;
};

enum respstore_part { RESPSTORE_RESPONSE, RESPSTORE_ITEMS, RESPSTORE_HISTORY };

struct respstore *respstore_open(size_t max_bytes); /* 0: nothing is stored; NULL: no memory */
void respstore_close(struct respstore *s);          /* NULL is allowed */
/* false: the entry is larger than the store, or there is no memory. */
bool respstore_put(struct respstore *s, const struct respstore_entry *entry);
/* Appends a part of the entry to out; false: there is no such entry. */
bool respstore_get(struct respstore *s, struct str id, uint32_t tenant, enum respstore_part part,
                   struct buf *out);
/* The response whose output has an item with this id. */
bool respstore_get_by_item(struct respstore *s, struct str item, uint32_t tenant, struct buf *out);
bool respstore_delete(struct respstore *s, struct str id, uint32_t tenant);
int respstore_count(struct respstore *s);
#endif
