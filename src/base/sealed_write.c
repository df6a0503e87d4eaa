/* sealed_write.c - encrypts and decrypts whole files, and changes the keys of an encrypted one. */
#include "base/sealed_impl.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_errno(const char *path, struct err *e)
{
    return err_set(e, E_IO, "%s: %s", path, strerror(errno));
}

static int write_at(int fd, const void *p, size_t n, uint64_t at, const char *path, struct err *e)
{
    const char *from = p;

    while (n > 0) {
        ssize_t got = pwrite(fd, from, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(path, e);
        from += got, n -= (size_t)got, at += (uint64_t)got;
    }
    return OK;
}

/* ---- output files ---- */

struct output {
    const char *path;
    struct buf temp; /* its name until it is complete */
    int fd;          /* -1: none */
};

static int open_output(struct output *o, const char *path, struct err *e)
{
    int rc;

    *o = (struct output){ .path = path, .fd = -1 };
    buf_printf(&o->temp, "%s.part-%ld", path, (long)getpid());
    buf_cstr(&o->temp);
    if ((rc = buf_check(&o->temp, e)) == OK) rc = file_create(&o->fd, o->temp.p, path, e);
    if (rc != OK) o->fd = -1;
    return rc;
}

/* The file appears, where rc is OK, or is removed. */
static int close_output(struct output *o, int rc, struct err *e)
{
    bool made = o->fd >= 0;

    if (rc == OK && fsync(o->fd) != 0) rc = fail_errno(o->path, e);
    if (made && close(o->fd) != 0 && rc == OK) rc = fail_errno(o->path, e);
    if (rc == OK) rc = file_rename(o->temp.p, o->path, e);
    if (rc != OK && made) unlink(o->temp.p);
    buf_release(&o->temp);
    return rc;
}

static int open_input(int *fd, uint64_t *bytes, const char *path, int flags, struct err *e)
{
    struct stat st;
    int rc = file_check_input(path, e);

    if (rc != OK) return rc;
    if ((*fd = open(path, flags | O_CLOEXEC)) < 0) return fail_errno(path, e);
    if (fstat(*fd, &st) == 0) {
        *bytes = (uint64_t)st.st_size;
        return OK;
    }
    rc = fail_errno(path, e);
    close(*fd);
    return rc;
}

/* ---- encrypting ---- */

static int make_head(struct sealed_head *h, struct sealed_keys *k, const struct sealed_opt *opt,
                     uint64_t bytes, struct err *e)
{
    const char *name = opt->name ? opt->name : "";
    int rc;

    *h = (struct sealed_head){ .chunk_bytes = opt->chunk_bytes ? opt->chunk_bytes : SEALED_CHUNK,
                               .plain_bytes = bytes,
                               .generation = 1,
                               .n_slots = keyset_n(opt->keys) };
    if (h->n_slots < 1) return err_set(e, E_INVALID, "no key to encrypt with");
    if (strlen(name) >= sizeof h->name)
        return err_set(e, E_INVALID, "'%.100s': expected a name of at most %zu bytes", name,
                       sizeof h->name - 1);
    memcpy(h->name, name, strlen(name));
    if ((rc = crypto_random(h->file_id, sizeof h->file_id, e)) != OK) return rc;
    if ((rc = crypto_random(k->data, sizeof k->data, e)) != OK) return rc;
    if ((rc = sealed_derive(k, e)) != OK) return rc;
    for (int i = 0; i < h->n_slots && rc == OK; i++)
        rc = sealed_wrap(&h->slots[i], h, k->data, keyset_key(opt->keys, i), e);
    return rc;
}

/* Reads exactly n bytes. */
static int read_exactly(int fd, unsigned char *to, size_t n, const char *path, struct err *e)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = read(fd, to + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno(path, e);
        if (got == 0)
            return err_set(e, E_DAMAGED, "%s: the file was truncated while it was read", path);
        done += (size_t)got;
    }
    return OK;
}

static int encrypt_chunks(int from, const char *path, const struct output *to,
                          const struct sealed_head *h, struct crypto_gcm *g,
                          const struct sealed_opt *opt, struct err *e)
{
    unsigned char nonce[CRYPTO_NONCE], *chunk = mem_alloc(h->chunk_bytes + CRYPTO_TAG);
    char extra[SEALED_EXTRA];
    uint64_t done = 0, at = SEALED_START;
    int rc = chunk ? OK : err_nomem(e, "a chunk of an encrypted file");

    for (uint64_t i = 0; rc == OK && done < h->plain_bytes; i++) {
        size_t n = sealed_chunk_size(h, i);
        struct str bound = sealed_chunk_extra(extra, nonce, h, i);

        rc = read_exactly(from, chunk, n, path, e);
        if (i == 0 && rc == OK && sealed_looks(chunk, n))
            rc = err_set(e, E_INVALID, "%s: is encrypted already; tern rekey changes its keys",
                         path);
        if (rc == OK) rc = crypto_gcm_seal(g, nonce, bound, chunk, n, chunk, chunk + n, e);
        if (rc == OK) rc = write_at(to->fd, chunk, n + CRYPTO_TAG, at, to->path, e);
        at += n + CRYPTO_TAG, done += n;
        if (rc == OK && opt->progress) opt->progress(opt->arg, done, h->plain_bytes);
    }
    mem_free(chunk);
    return rc;
}

static int write_heads(const struct output *to, const struct sealed_head *h,
                       const struct sealed_keys *k, struct err *e)
{
    unsigned char *heads = mem_alloc(SEALED_START); /* the mark is zeros */
    int rc = heads ? sealed_format_head(heads, h, k->mac, e) : err_nomem(e, "a header");

    if (rc == OK) memcpy(heads + SEALED_HEAD, heads, SEALED_HEAD);
    if (rc == OK) rc = write_at(to->fd, heads, SEALED_START, 0, to->path, e);
    mem_free(heads);
    return rc;
}

int sealed_encrypt(const char *from, const char *to, const struct sealed_opt *opt, struct err *e)
{
    struct sealed_keys *k = crypto_secret(sizeof *k);
    struct crypto_gcm *g = NULL;
    struct sealed_head h;
    struct output out = { .fd = -1 };
    uint64_t bytes;
    int fd = -1, rc = k ? open_input(&fd, &bytes, from, O_RDONLY, e) : err_nomem(e, "keys");

    if (rc != OK) fd = -1;
    if (rc == OK) rc = make_head(&h, k, opt, bytes, e);
    if (rc == OK) rc = crypto_gcm_open(&g, k->chunks, e);
    if (rc == OK) rc = open_output(&out, to, e);
    if (rc == OK) rc = encrypt_chunks(fd, from, &out, &h, g, opt, e);
    if (rc == OK) rc = write_heads(&out, &h, k, e);
    rc = close_output(&out, rc, e);
    crypto_gcm_close(g);
    crypto_secret_free(k, sizeof *k);
    if (fd >= 0) close(fd);
    return rc;
}

/* ---- decrypting ---- */

static int decrypt_chunks(struct sealed *s, const struct output *to, const struct sealed_opt *opt,
                          struct err *e)
{
    unsigned char *chunk = mem_alloc(sealed_head(s)->chunk_bytes);
    uint64_t at = 0;
    size_t n = 0;
    int rc = chunk ? OK : err_nomem(e, "a chunk of an encrypted file");

    for (uint64_t i = 0; rc == OK && i < sealed_n_chunks(s); i++, at += n) {
        rc = sealed_read(s, i, chunk, &n, e);
        if (rc == OK) rc = write_at(to->fd, chunk, n, at, to->path, e);
        if (rc == OK && opt && opt->progress) opt->progress(opt->arg, at + n, sealed_bytes(s));
    }
    mem_free(chunk);
    return rc;
}

int sealed_decrypt(const char *from, const char *to, const struct sealed_opt *opt, struct err *e)
{
    struct sealed *s = NULL;
    struct output out = { .fd = -1 };
    uint64_t bytes;
    int fd = -1, rc = open_input(&fd, &bytes, from, O_RDONLY, e);

    if (rc != OK) return rc;
    rc = sealed_open(&s, fd, bytes, from, e);
    if (rc == OK) rc = open_output(&out, to, e);
    if (rc == OK) rc = decrypt_chunks(s, &out, opt, e);
    rc = close_output(&out, rc, e);
    sealed_close(s);
    close(fd);
    return rc;
}

/* ---- other keys ---- */

static int write_synced(int fd, const void *p, uint64_t at, const char *path, struct err *e)
{
    int rc = write_at(fd, p, SEALED_HEAD, at, path, e);

    if (rc == OK && fsync(fd) != 0) rc = fail_errno(path, e);
    return rc;
}

/* See sealed.h: mark, first header, second header, no mark. */
static int replace_heads(int fd, const struct sealed_head *h, const struct sealed_keys *k,
                         const char *path, struct err *e)
{
    unsigned char *block = mem_alloc(SEALED_HEAD);
    int rc = block ? OK : err_nomem(e, "a header");

    if (rc == OK) {
        sealed_make_mark(block, h->file_id);
        rc = write_synced(fd, block, 2 * SEALED_HEAD, path, e);
    }
    if (rc == OK) rc = sealed_format_head(block, h, k->mac, e);
    if (rc == OK) rc = write_synced(fd, block, 0, path, e);
    if (rc == OK) rc = write_synced(fd, block, SEALED_HEAD, path, e);
    if (rc == OK) {
        memset(block, 0, SEALED_HEAD);
        rc = write_synced(fd, block, 2 * SEALED_HEAD, path, e);
    }
    mem_free(block);
    return rc;
}

static int find_slot(const struct sealed_head *h, const unsigned char *id)
{
    for (int i = 0; i < h->n_slots; i++)
        if (memcmp(h->slots[i].id, id, KEY_ID) == 0) return i;
    return -1;
}

struct key_change {
    const struct keyset *add;
    bool keep;
    const unsigned char *drop; /* NULL: none */
};

static int drop_slot(struct sealed_head *h, const unsigned char *id, const char *path,
                     struct err *e)
{
    int i = find_slot(h, id);

    if (i < 0) return err_set(e, E_NOTFOUND, "%s: no key of this id opens the file", path);
    if (h->n_slots == 1)
        return err_set(e, E_INVALID, "%s: the last key that opens the file cannot be removed",
                       path);
    memmove(&h->slots[i], &h->slots[i + 1], (size_t)(h->n_slots - i - 1) * sizeof h->slots[0]);
    h->n_slots--;
    return OK;
}

static int change_slots(struct sealed_head *h, const struct sealed_keys *k,
                        const struct key_change *c, const char *path, struct err *e)
{
    int rc = OK;

    if (!c->keep) h->n_slots = 0;
    for (int i = 0; i < keyset_n(c->add) && rc == OK; i++) {
        if (find_slot(h, keyset_id(c->add, i)) >= 0) continue;
        if (h->n_slots == SEALED_SLOTS)
            return err_set(e, E_INVALID, "%s: at most %d keys can open a file", path, SEALED_SLOTS);
        rc = sealed_wrap(&h->slots[h->n_slots], h, k->data, keyset_key(c->add, i), e);
        if (rc == OK) h->n_slots++;
    }
    return rc == OK && c->drop ? drop_slot(h, c->drop, path, e) : rc;
}

static int change_keys(const char *path, const struct key_change *c, struct err *e)
{
    struct sealed_keys *k = crypto_secret(sizeof *k);
    unsigned char *heads = mem_alloc(SEALED_START);
    struct sealed_head h;
    uint64_t bytes;
    int fd = -1, rc = k && heads ? open_input(&fd, &bytes, path, O_RDWR, e) : err_nomem(e, "keys");

    if (rc != OK) fd = -1;
    if (rc == OK && flock(fd, LOCK_EX) != 0) rc = fail_errno(path, e);
    if (rc == OK) rc = sealed_read_heads(fd, heads, false, path, e);
    if (rc == OK) rc = sealed_open_heads(&h, k, heads, bytes, path, e);
    if (rc == OK) {
        h.generation++;
        rc = change_slots(&h, k, c, path, e);
    }
    if (rc == OK) rc = replace_heads(fd, &h, k, path, e);
    if (fd >= 0) close(fd); /* ends the lock */
    mem_free(heads);
    crypto_secret_free(k, sizeof *k);
    return rc;
}

int sealed_rekey(const char *path, const struct keyset *add, bool keep, struct err *e)
{
    if (keyset_n(add) < 1) return err_set(e, E_INVALID, "no key to encrypt with");
    return change_keys(path, &(struct key_change){ .add = add, .keep = keep }, e);
}

int sealed_drop_key(const char *path, const unsigned char id[KEY_ID], struct err *e)
{
    return change_keys(path, &(struct key_change){ .keep = true, .drop = id }, e);
}

int sealed_peek(struct sealed_head *h, const char *path, struct err *e)
{
    unsigned char *heads = mem_alloc(SEALED_START);
    uint64_t bytes;
    int fd = -1, rc = heads ? open_input(&fd, &bytes, path, O_RDONLY, e) : err_nomem(e, "a header");

    if (rc == OK) {
        ssize_t n = pread(fd, heads, 8, 0);
        if (!sealed_looks(heads, n > 0 ? (size_t)n : 0))
            rc = err_set(e, E_FORMAT, "%s: is not an encrypted file", path);
        if (rc == OK) rc = sealed_read_heads(fd, heads, true, path, e);
        if (rc == OK) rc = sealed_parse(h, heads, bytes, path, e);
        close(fd);
    }
    mem_free(heads);
    return rc;
}
