/* item.c - one blob: its lock, its bytes, its checksum, its name. */
#include "pull/transfer_impl.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum { HASH_STEP = 1 << 20, HASH_TURN = 16 << 20 }; /* bytes of a read; of one turn of the loop */

/* ---- checksums ---- */

/* Git's SHA-1 is over "blob SIZE", a NUL and the contents. */
static int hash_begin(struct item *x, struct err *e)
{
    bool is_git = strlen(x->f->sum) == 40;
    char head[40];
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)x->f->bytes) + 1;

    x->hashed = 0;
    if (!x->hash && !(x->hash = EVP_MD_CTX_new())) return err_nomem(e, "a checksum");
    if (!EVP_DigestInit_ex(x->hash, is_git ? EVP_sha1() : EVP_sha256(), NULL) ||
        (is_git && !EVP_DigestUpdate(x->hash, head, (size_t)n)))
        return err_set(e, E_INTERNAL, "OpenSSL has no %s", is_git ? "SHA-1" : "SHA-256");
    return OK;
}

int item_hash(struct transfer *t, struct item *x, bool *more)
{
    static char bytes[HASH_STEP];
    uint64_t end = part_prefix(&x->part), stop = x->hashed + HASH_TURN;

    while (x->hashed < end && x->hashed < stop) {
        size_t n = end - x->hashed < HASH_STEP ? (size_t)(end - x->hashed) : HASH_STEP;
        ssize_t got = pread(x->part.fd, bytes, n, (off_t)x->hashed);

        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return err_set(t->e, E_IO, "%s: %s", x->part.path,
                           got ? strerror(errno) : "another program has cut it");
        if (!EVP_DigestUpdate(x->hash, bytes, (size_t)got))
            return err_set(t->e, E_INTERNAL, "OpenSSL could not compute a checksum");
        x->hashed += (uint64_t)got;
    }
    *more |= x->hashed < end;
    return OK;
}

bool item_is_hashed(const struct item *x) { return x->hashed == x->f->bytes; }

static int read_sum(struct item *x, char hex[65], struct err *e)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    if (!EVP_DigestFinal_ex(x->hash, hash, &n) || n > 32)
        return err_set(e, E_INTERNAL, "OpenSSL could not compute a checksum");
    for (unsigned i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    return OK;
}

/* ---- begin and end ---- */

static void unlock(struct item *x)
{
    if (x->lock >= 0) close(x->lock);
    x->lock = -1;
}

static void tell_file(struct transfer *t, const struct item *x)
{
    const struct pull_opt *o = t->s->opt;

    if (o->tell)
        o->tell(o->arg, &(struct pull_event){ PULL_FILE, .file = x->f->name, .sum = x->f->sum,
                                              .total = x->f->bytes });
}

static void tell_wait(struct transfer *t, struct item *x)
{
    char text[300];

    if (x->told_wait) return;
    x->told_wait = true;
    snprintf(text, sizeof text, "%.200s: another program downloads it; waiting", x->f->name);
    session_note(t->s, text);
}

int item_begin(struct transfer *t, struct item *x)
{
    char *path;
    int rc;

    if (store_has_blob(t->store, x->f)) {
        x->state = ITEM_FINISHED;
        tell_file(t, x);
        return OK;
    }
    if ((rc = store_lock_blob(t->store, x->f->sum, &x->lock, t->e)) != OK) return rc;
    if (x->lock < 0) return tell_wait(t, x), OK;
    if (store_has_blob(t->store, x->f)) { /* the other one has just finished */
        unlock(x);
        return item_begin(t, x);
    }
    if (!(path = store_part(t->store, x->f->sum))) return err_nomem(t->e, "the path of a blob");
    rc = part_open(&x->part, path, x->f->bytes, t->s->opt->range_bytes, t->e);
    mem_free(path);
    if (rc == OK) rc = hash_begin(x, t->e);
    if (rc == OK) x->state = ITEM_RUNS;
    return rc;
}

int item_restart(struct transfer *t, struct item *x, uint64_t chunk)
{
    int rc = part_restart(&x->part, chunk, t->e);

    return rc == OK ? hash_begin(x, t->e) : rc;
}

int item_finish(struct transfer *t, struct item *x)
{
    char hex[65] = "", *blob;
    int rc = read_sum(x, hex, t->e);

    if (rc != OK) return rc;
    if (strcmp(hex, x->f->sum) != 0) {
        if (x->part.resumed && !x->began_again) {
            session_note(t->s, "what an earlier download left is damaged; beginning anew");
            x->began_again = true;
            return item_restart(t, x, t->s->opt->range_bytes);
        }
        part_remove(&x->part);
        unlock(x);
        return err_set(t->e, E_DAMAGED,
                       "%s: the %s of the downloaded bytes is %s, and the hub says %s; the bytes "
                       "are removed",
                       x->f->name, strlen(hex) == 40 ? "SHA-1" : "SHA-256", hex, x->f->sum);
    }
    if (!(blob = store_blob(t->store, x->f->sum))) return err_nomem(t->e, "the path of a blob");
    rc = part_rename(&x->part, blob, t->e);
    mem_free(blob);
    if (rc != OK) return rc;
    unlock(x);
    x->state = ITEM_FINISHED;
    tell_file(t, x);
    return OK;
}

uint64_t item_have(const struct item *x)
{
    if (x->state == ITEM_FINISHED) return x->f->bytes;
    return x->state == ITEM_RUNS ? part_have(&x->part) : 0;
}

void item_release(struct item *x)
{
    part_close(&x->part);
    unlock(x);
    EVP_MD_CTX_free(x->hash);
    mem_free(x->url);
    mem_free(x->target);
}
