/* transfer_impl.h - shared by the files of the transfer: one file, one connection, the loop. */
#ifndef TERN_PULL_TRANSFER_IMPL_H
#define TERN_PULL_TRANSFER_IMPL_H

#include "pull/part.h"
#include "pull/transfer.h"

#include <openssl/evp.h>

enum { LANES_MOST = 64 };

enum item_state {
    ITEM_WAITS,   /* not begun, or another process has its lock */
    ITEM_RUNS,    /* its part is open */
    ITEM_FINISHED /* the blob has its name */
};

/* One blob to download. */
struct item {
    const struct hub_file *f;
    enum item_state state;
    char *url, *target; /* at the hub; where its redirects led, NULL: not known */
    int lock;           /* of the blob; -1: not held */
    struct part part;
    EVP_MD_CTX *hash;
    uint64_t hashed; /* bytes of the file that are in it */
    int n_lanes;     /* connections that work for it */
    int n_fails;     /* since the last new byte */
    uint64_t most;   /* bytes that have been here, of a server without ranges */
    uint64_t retry_ns;
    bool began_again; /* after a wrong checksum of bytes from an earlier process */
    bool told_wait;
};

/* One connection. */
struct lane {
    struct transfer *t;
    CURL *easy;
    struct item *item; /* NULL: free */
    int range;
    int n_redirects;
    bool checked;   /* the status fits the range */
    bool no_ranges; /* the server sends all of the file */
    struct hub_head head;
    struct err err; /* of writing */
    char text[CURL_ERROR_SIZE];
};

struct transfer {
    struct session *s;
    const struct store *store;
    CURLM *multi;
    struct lane lanes[LANES_MOST];
    int n_lanes;
    struct item *items;
    int n_items;
    uint64_t total, downloaded;
    uint64_t told_ns, polled_ns; /* of the last progress; of the last look at locks */
    const struct item *grew;     /* last; NULL: none yet */
    struct err *e;
};

/* ---- item.c ---- */

/* Begins the item if its lock is free: finished at once if the blob is there. */
int item_begin(struct transfer *t, struct item *x);
/* Hashes some of what has arrived; *more: there is more to hash now. */
int item_hash(struct transfer *t, struct item *x, bool *more);
bool item_is_hashed(const struct item *x); /* all bytes are there and in the hash */
/* Checks the sum and gives the blob its name; or removes it, and begins again if it was resumed. */
int item_finish(struct transfer *t, struct item *x);
int item_restart(struct transfer *t, struct item *x, uint64_t chunk); /* forgets its bytes */
uint64_t item_have(const struct item *x);
void item_release(struct item *x);

/* ---- lane.c ---- */

int lane_start(struct lane *l, struct item *x, int range);
void lane_stop(struct lane *l);
/* The transfer has ended with this code: done, redirected, to be tried again, or an error. */
int lane_end(struct lane *l, CURLcode rc);
#endif
