/* natskv.c - tern-nats.so: the key-value bucket of member/natsapi.h over libnats.
 *
 * The bucket is in the memory of the NATS server: a server that restarts has none, and the next put
 * makes it again. The connection reconnects by itself, for ever. */
#include "member/natsapi.h"

#include "base/mem.h"

#include <nats/nats.h>
#include <stdio.h>

enum { CONNECT_MS = 2000, WAIT_MS = 1500, RECONNECT_MS = 200 };

struct nats_kv {
    natsConnection *nc;
    jsCtx *js;
    kvStore *kv;
    char bucket[64];
    int lease_ms;
};

static void say(char *why, size_t n, const char *what, natsStatus s)
{
    snprintf(why, n, "%s: %s", what, natsStatus_GetText(s));
}

static void kv_close(struct nats_kv *k)
{
    if (!k) return;
    kvStore_Destroy(k->kv);
    jsCtx_Destroy(k->js);
    natsConnection_Destroy(k->nc);
    mem_free(k);
}

/* The bucket, made if there is none. */
static natsStatus open_bucket(struct nats_kv *k)
{
    kvConfig c;
    natsStatus s;

    if (k->kv) return NATS_OK;
    s = js_KeyValue(&k->kv, k->js, k->bucket);
    if (s == NATS_OK) return s;
    kvConfig_Init(&c);
    c.Bucket = k->bucket;
    c.History = 1;
    c.TTL = (int64_t)k->lease_ms * 1000000;
    c.StorageType = js_MemoryStorage;
    c.Description = "workers of tern, each with a lease";
    return js_CreateKeyValue(&k->kv, k->js, &c);
}

/* The bucket may be gone with the memory of the server. */
static void drop_bucket(struct nats_kv *k)
{
    kvStore_Destroy(k->kv);
    k->kv = NULL;
}

static natsStatus connect_to(struct nats_kv *k, const char *url)
{
    natsOptions *o = NULL;
    jsOptions js;
    natsStatus s = natsOptions_Create(&o);

    if (s == NATS_OK) s = natsOptions_SetURL(o, url);
    if (s == NATS_OK) s = natsOptions_SetTimeout(o, CONNECT_MS);
    if (s == NATS_OK) s = natsOptions_SetMaxReconnect(o, -1);
    if (s == NATS_OK) s = natsOptions_SetReconnectWait(o, RECONNECT_MS);
    if (s == NATS_OK) s = natsOptions_SetName(o, "tern");
    if (s == NATS_OK) s = natsConnection_Connect(&k->nc, o);
    natsOptions_Destroy(o);
    if (s != NATS_OK) return s;
    jsOptions_Init(&js);
    js.Wait = WAIT_MS;
    return natsConnection_JetStream(&k->js, k->nc, &js);
}

static struct nats_kv *kv_open(const char *url, const char *bucket, int lease_ms, char *why,
                               size_t n)
{
    struct nats_kv *k = mem_new(struct nats_kv);
    natsStatus s;

    if (!k) {
        snprintf(why, n, "out of memory");
        return NULL;
    }
    snprintf(k->bucket, sizeof k->bucket, "%s", bucket);
    k->lease_ms = lease_ms;
    if ((s = connect_to(k, url)) != NATS_OK) say(why, n, "connecting", s);
    else if ((s = open_bucket(k)) != NATS_OK) say(why, n, "the JetStream bucket", s);
    if (s == NATS_OK) return k;
    kv_close(k);
    return NULL;
}

static int kv_put(struct nats_kv *k, const char *key, const char *value, size_t n, char *why,
                  size_t n_why)
{
    natsStatus s = open_bucket(k);

    if (s == NATS_OK) s = kvStore_Put(NULL, k->kv, key, value, (int)n);
    if (s == NATS_OK) return 1;
    say(why, n_why, "put", s);
    drop_bucket(k);
    return 0;
}

static int kv_remove(struct nats_kv *k, const char *key)
{
    return open_bucket(k) == NATS_OK && kvStore_Purge(k->kv, key, NULL) == NATS_OK;
}

static int kv_list(struct nats_kv *k, void (*each)(void *arg, const char *value, size_t n),
                   void *arg, char *why, size_t n_why)
{
    kvKeysList keys = { 0 };
    kvWatchOptions o;
    natsStatus s = open_bucket(k);

    kvWatchOptions_Init(&o);
    o.Timeout = WAIT_MS;
    o.IgnoreDeletes = true;
    if (s == NATS_OK) s = kvStore_Keys(&keys, k->kv, &o);
    for (int i = 0; s == NATS_OK && i < keys.Count; i++) {
        kvEntry *e = NULL;
        natsStatus got = kvStore_Get(&e, k->kv, keys.Keys[i]);
        if (got == NATS_OK) each(arg, kvEntry_Value(e), (size_t)kvEntry_ValueLen(e));
        else if (got != NATS_NOT_FOUND) s = got;
        kvEntry_Destroy(e);
    }
    kvKeysList_Destroy(&keys);
    if (s == NATS_OK || s == NATS_NOT_FOUND) return 1;
    say(why, n_why, "list", s);
    drop_bucket(k);
    return 0;
}

__attribute__((visibility("default")))
const struct nats_api tern_nats_1 = { kv_open, kv_close, kv_put, kv_remove, kv_list };
