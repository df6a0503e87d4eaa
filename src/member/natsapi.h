/* natsapi.h - what tern-nats.so exports: a key-value bucket of JetStream whose entries expire.
 *
 * The plugin is plain C on libnats alone, so that nothing of the program is called from it. All calls
 * block, for a few seconds at most, and belong to one thread. Errors are texts. */
#ifndef TERN_MEMBER_NATSAPI_H
#define TERN_MEMBER_NATSAPI_H

#include <stddef.h>

#define NATS_LIB "tern-nats.so"
#define NATS_ENV "TERN_NATS_LIB"
#define NATS_SYMBOL "tern_nats_1"
#define NATS_PACKAGE "libnats-dev"
#define NATS_BUCKET "tern-workers"
enum { NATS_LEASE_MS = 5000, NATS_KEY_BYTES = 40 };

struct nats_kv;

struct nats_api {
    /* Connects and makes the bucket where it does not exist. NULL: the text says why. */
    struct nats_kv *(*open)(const char *url, const char *bucket, int lease_ms, char *why, size_t n);
    void (*close)(struct nats_kv *kv);
    /* true: done. key: letters, digits and '-'. */
    int (*put)(struct nats_kv *kv, const char *key, const char *value, size_t n, char *why,
               size_t n_why);
    int (*remove)(struct nats_kv *kv, const char *key);
    /* Calls each for every entry; true: all were listed. */
    int (*list)(struct nats_kv *kv, void (*each)(void *arg, const char *value, size_t n), void *arg,
                char *why, size_t n_why);
};
#endif
