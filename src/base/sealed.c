/* sealed.c - the header of encrypted files, and reading. Writing is in sealed_write.c. */
#include "base/sealed_impl.h"

#include "base/clock.h"
#include "base/confine.h"
#include "base/cursor.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const unsigned char magic[8] = { 'T', 'E', 'R', 'N', 'S', 'E', 'A', 'L' };

enum { VERSION = 1, MAC_AT = SEALED_HEAD - CRYPTO_SUM };

bool sealed_looks(const void *p, size_t n)
{
    return n >= sizeof magic && memcmp(p, magic, sizeof magic) == 0;
}

/* ---- the header ---- */

static uint64_t count_chunks(const struct sealed_head *h)
{
    return h->plain_bytes / h->chunk_bytes + (h->plain_bytes % h->chunk_bytes != 0);
}

static int check_sizes(const struct sealed_head *h, uint64_t file_bytes, const char *path,
                       struct err *e)
{
    uint64_t want;

    if (h->chunk_bytes < SEALED_CHUNK_MIN || h->chunk_bytes > SEALED_CHUNK_MAX)
        return err_set(e, E_FORMAT, "%s: encrypted in chunks of %u bytes, expected %d to %d", path,
                       h->chunk_bytes, SEALED_CHUNK_MIN, SEALED_CHUNK_MAX);
    if (h->plain_bytes > INT64_MAX / 2)
        return err_set(e, E_FORMAT, "%s: says it has %llu bytes, expected fewer than 2^62", path,
                       (unsigned long long)h->plain_bytes);
    want = SEALED_START + h->plain_bytes + count_chunks(h) * CRYPTO_TAG;
    if (want != file_bytes)
        return err_set(e, E_DAMAGED,
                       "%s: the encrypted file has %llu bytes, expected %llu: it was truncated or "
                       "extended",
                       path, (unsigned long long)file_bytes, (unsigned long long)want);
    return OK;
}

/* A name without control characters that fits, or none. */
static bool read_name(struct sealed_head *h, const char *p, size_t n)
{
    if (n >= SEALED_NAME) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < ' ') return false;
    memcpy(h->name, p, n);
    h->name[n] = 0;
    return true;
}

static void read_slots(struct sealed_head *h, struct cursor *c)
{
    for (int i = 0; i < h->n_slots; i++) {
        struct sealed_slot *s = &h->slots[i];
        memcpy(s->id, cursor_take(c, sizeof s->id), sizeof s->id);
        memcpy(s->nonce, cursor_take(c, sizeof s->nonce), sizeof s->nonce);
        memcpy(s->key, cursor_take(c, sizeof s->key), sizeof s->key);
        memcpy(s->tag, cursor_take(c, sizeof s->tag), sizeof s->tag);
    }
}

int sealed_parse(struct sealed_head *h, const unsigned char head[SEALED_HEAD], uint64_t file_bytes,
                 const char *path, struct err *e)
{
    struct cursor c = cursor_of(head, SEALED_HEAD);
    uint32_t version;
    size_t n_name;
    const char *name;

    *h = (struct sealed_head){ 0 };
    cursor_take(&c, sizeof magic);
    if (!sealed_looks(head, SEALED_HEAD))
        return err_set(e, E_FORMAT, "%s: is not an encrypted file", path);
    version = cursor_u32(&c);
    if (version != VERSION)
        return err_set(e, E_UNSUPPORTED,
                       "%s: is encrypted in version %u of the format, expected %d", path, version,
                       VERSION);
    h->chunk_bytes = cursor_u32(&c);
    h->plain_bytes = cursor_u64(&c);
    memcpy(h->file_id, cursor_take(&c, SEALED_FILE_ID), SEALED_FILE_ID);
    h->generation = cursor_u64(&c);
    n_name = cursor_u16(&c);
    name = cursor_take(&c, SEALED_NAME);
    h->n_slots = cursor_u16(&c);
    if (!read_name(h, name, n_name) || h->n_slots < 1 || h->n_slots > SEALED_SLOTS)
        return err_set(e, E_DAMAGED,
                       "%s: the header of the encrypted file is damaged: its name has %zu bytes, "
                       "and %d keys open it",
                       path, n_name, h->n_slots);
    read_slots(h, &c);
    return check_sizes(h, file_bytes, path, e);
}

static void put(unsigned char **p, const void *from, size_t n)
{
    memcpy(*p, from, n);
    *p += n;
}

int sealed_format_head(unsigned char out[SEALED_HEAD], const struct sealed_head *h,
                       const unsigned char mac_key[CRYPTO_KEY], struct err *e)
{
    unsigned char *p = out;
    uint32_t version = VERSION;
    uint16_t n_name = (uint16_t)strlen(h->name), n_slots = (uint16_t)h->n_slots;

    memset(out, 0, SEALED_HEAD);
    put(&p, magic, sizeof magic);
    put(&p, &version, sizeof version);
    put(&p, &h->chunk_bytes, sizeof h->chunk_bytes);
    put(&p, &h->plain_bytes, sizeof h->plain_bytes);
    put(&p, h->file_id, sizeof h->file_id);
    put(&p, &h->generation, sizeof h->generation);
    put(&p, &n_name, sizeof n_name);
    memcpy(p, h->name, n_name);
    p += SEALED_NAME;
    put(&p, &n_slots, sizeof n_slots);
    for (int i = 0; i < h->n_slots; i++) {
        const struct sealed_slot *s = &h->slots[i];
        put(&p, s->id, sizeof s->id);
        put(&p, s->nonce, sizeof s->nonce);
        put(&p, s->key, sizeof s->key);
        put(&p, s->tag, sizeof s->tag);
    }
    return crypto_hmac(out + MAC_AT, mac_key, str_of((char *)out, MAC_AT), e);
}

/* ---- keys ---- */

int sealed_derive(struct sealed_keys *k, struct err *e)
{
    int rc = crypto_hmac(k->chunks, k->data, STR("tern sealed chunks"), e);

    return rc == OK ? crypto_hmac(k->mac, k->data, STR("tern sealed header"), e) : rc;
}

/* The text that is authenticated with a wrapped key: it fits into this file and slot only. */
static struct str slot_extra(char out[SEALED_FILE_ID + KEY_ID], const struct sealed_head *h,
                             const struct sealed_slot *s)
{
    memcpy(out, h->file_id, SEALED_FILE_ID);
    memcpy(out + SEALED_FILE_ID, s->id, KEY_ID);
    return str_of(out, SEALED_FILE_ID + KEY_ID);
}

int sealed_wrap(struct sealed_slot *s, const struct sealed_head *h, const unsigned char *data_key,
                const unsigned char *user_key, struct err *e)
{
    char extra[SEALED_FILE_ID + KEY_ID];
    struct crypto_gcm *g = NULL;
    int rc = key_id(s->id, user_key, e);

    if (rc == OK) rc = crypto_random(s->nonce, sizeof s->nonce, e);
    if (rc == OK) rc = crypto_gcm_open(&g, user_key, e);
    if (rc == OK)
        rc = crypto_gcm_seal(g, s->nonce, slot_extra(extra, h, s), data_key, CRYPTO_KEY, s->key,
                             s->tag, e);
    crypto_gcm_close(g);
    return rc;
}

static int unwrap(const struct sealed_slot *s, const struct sealed_head *h,
                  const unsigned char *user_key, unsigned char *data_key, struct err *e)
{
    char extra[SEALED_FILE_ID + KEY_ID];
    struct crypto_gcm *g = NULL;
    int rc = crypto_gcm_open(&g, user_key, e);

    if (rc == OK)
        rc = crypto_gcm_unseal(g, s->nonce, slot_extra(extra, h, s), s->key, CRYPTO_KEY, data_key,
                               s->tag, e);
    crypto_gcm_close(g);
    return rc;
}

static int fail_key(const struct sealed_head *h, const char *path, struct err *e)
{
    struct buf have = { 0 }, want = { 0 };
    char hex[KEY_ID_HEX];

    keyring_describe(&have);
    for (int i = 0; i < h->n_slots; i++) {
        crypto_hex(hex, h->slots[i].id, KEY_ID);
        buf_printf(&want, "%s%s", i ? ", " : "", hex);
    }
    if (have.n)
        err_set(e, E_IO, "%s: wrong key: the file is encrypted for %s, and the key is %s", path,
                buf_cstr(&want), buf_cstr(&have));
    else
        err_set(
            e, E_IO,
            "%s: is encrypted, for the key %s: --model-key-file or --model-key-command gives it",
            path, buf_cstr(&want));
    buf_release(&have);
    buf_release(&want);
    return E_IO;
}

/* The header with all keys derived, from one of its two copies. */
static int open_head(struct sealed_head *h, struct sealed_keys *k, const unsigned char *head,
                     uint64_t file_bytes, const char *path, struct err *e)
{
    unsigned char user[CRYPTO_KEY], mac[CRYPTO_SUM];
    int rc = sealed_parse(h, head, file_bytes, path, e), i;

    if (rc != OK) return rc;
    for (i = 0; i < h->n_slots && !keyring_find(h->slots[i].id, user); i++) {}
    if (i == h->n_slots) return fail_key(h, path, e);
    rc = unwrap(&h->slots[i], h, user, k->data, e);
    explicit_bzero(user, sizeof user);
    if (rc == OK) rc = sealed_derive(k, e);
    if (rc == OK) rc = crypto_hmac(mac, k->mac, str_of((const char *)head, MAC_AT), e);
    if (rc == OK && memcmp(mac, head + MAC_AT, sizeof mac) != 0)
        rc = err_set(e, E_DAMAGED, "its authentication code does not match");
    if (rc == E_DAMAGED)
        rc = err_set(e, E_DAMAGED, "%s: the header of the encrypted file was changed or is damaged",
                     path);
    return rc;
}

/* ---- both copies ---- */

void sealed_make_mark(unsigned char out[SEALED_HEAD], const unsigned char *file_id)
{
    static const char text[] = "TERN REKEY IN PROGRESS";

    memset(out, 0, SEALED_HEAD);
    memcpy(out, text, sizeof text);
    memcpy(out + 64, file_id, SEALED_FILE_ID);
}

/* Is there a mark? E_DAMAGED: neither zeros nor a mark. */
static int read_mark(const unsigned char *mark, const unsigned char *head, bool *there,
                     const char *path, struct err *e)
{
    static const unsigned char zeros[SEALED_HEAD];
    unsigned char want[SEALED_HEAD];

    sealed_make_mark(want, head + 24); /* the file's id, which both copies have at the same place */
    *there = memcmp(mark, want, sizeof want) == 0;
    if (*there || memcmp(mark, zeros, sizeof zeros) == 0) return OK;
    sealed_make_mark(want, head + SEALED_HEAD + 24);
    *there = memcmp(mark, want, sizeof want) == 0;
    if (*there) return OK;
    return err_set(e, E_DAMAGED, "%s: the header of the encrypted file was changed or is damaged",
                   path);
}

int sealed_open_heads(struct sealed_head *h, struct sealed_keys *k,
                      const unsigned char heads[SEALED_START], uint64_t file_bytes,
                      const char *path, struct err *e)
{
    struct err first = { 0 };
    bool marked;
    int rc = read_mark(heads + 2 * SEALED_HEAD, heads, &marked, path, e);

    if (rc != OK) return rc;
    if (!marked && memcmp(heads, heads + SEALED_HEAD, SEALED_HEAD) != 0)
        return err_set(e, E_DAMAGED,
                       "%s: the header of the encrypted file was changed or is damaged: its two "
                       "copies differ",
                       path);
    rc = open_head(h, k, heads, file_bytes, path, &first);
    if (rc != OK && marked) {
        if (open_head(h, k, heads + SEALED_HEAD, file_bytes, path, e) == OK) return OK;
        if (rc == E_IO && e && e->code == E_DAMAGED) first = *e; /* the second was being written */
    }
    if (rc != OK && e) *e = first;
    return rc;
}

/* The lock keeps readers from a header that is being replaced. File systems without locks, and the
 * sandbox of workers, refuse it. */
int sealed_read_heads(int fd, unsigned char heads[SEALED_START], bool lock, const char *path,
                      struct err *e)
{
    size_t n = 0;
    int rc = OK;
    bool locked = lock && flock(fd, LOCK_SH) == 0;

    while (n < SEALED_START && rc == OK) {
        ssize_t got = pread(fd, heads + n, SEALED_START - n, (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) rc = err_set(e, E_IO, "%s: %s", path, strerror(errno));
        else if (got == 0)
            rc = err_set(e, E_DAMAGED,
                         "%s: the encrypted file ends within its header, at byte %zu of %d", path,
                         n, SEALED_START);
        n += got > 0 ? (size_t)got : 0;
    }
    if (locked) flock(fd, LOCK_UN);
    return rc;
}

/* Does the path end in the name, as a whole component? */
static bool has_name(const char *path, const char *name)
{
    size_t n = strlen(path), m = strlen(name);

    return n >= m && strcmp(path + n - m, name) == 0 && (n == m || path[n - m - 1] == '/');
}

/* ---- reading ---- */

struct sealed {
    int fd;
    char *path;
    struct sealed_head head;
    struct crypto_gcm *gcm;
    unsigned char *chunk; /* encrypted, with its tag */
};

static int check_name(const struct sealed_head *h, const char *path, struct err *e)
{
    if (!h->name[0] || has_name(path, h->name)) return OK;
    return err_set(e, E_DAMAGED,
                   "%s: was encrypted as '%s' of a folder, expected a file of that name", path,
                   h->name);
}

int sealed_open(struct sealed **out, int fd, uint64_t file_bytes, const char *path, struct err *e)
{
    struct sealed *s = mem_new(struct sealed);
    unsigned char *heads = mem_alloc(SEALED_START);
    struct sealed_keys *k = crypto_secret(sizeof *k);
    int rc = OK;

    if (s) s->fd = fd;
    if (!s || !heads || !k || !(s->path = mem_strdup(path))) rc = err_nomem(e, "an encrypted file");
    if (rc == OK) rc = sealed_read_heads(fd, heads, true, path, e);
    if (rc == OK) rc = sealed_open_heads(&s->head, k, heads, file_bytes, path, e);
    if (rc == OK) rc = check_name(&s->head, path, e);
    if (rc == OK) rc = crypto_gcm_open(&s->gcm, k->chunks, e);
    if (rc == OK && !(s->chunk = mem_alloc(s->head.chunk_bytes + CRYPTO_TAG)))
        rc = err_nomem(e, "a chunk of an encrypted file");
    crypto_secret_free(k, sizeof *k);
    mem_free(heads);
    if (rc == OK) *out = s;
    else sealed_close(s);
    return rc;
}

void sealed_close(struct sealed *s)
{
    if (!s) return;
    crypto_gcm_close(s->gcm);
    mem_free(s->chunk);
    mem_free(s->path);
    mem_free(s);
}

uint64_t sealed_bytes(const struct sealed *s) { return s->head.plain_bytes; }
const struct sealed_head *sealed_head(const struct sealed *s) { return &s->head; }
uint64_t sealed_n_chunks(const struct sealed *s) { return count_chunks(&s->head); }

size_t sealed_chunk_size(const struct sealed_head *h, uint64_t i)
{
    uint64_t left = h->plain_bytes - i * h->chunk_bytes;

    return left < h->chunk_bytes ? (size_t)left : h->chunk_bytes;
}

struct str sealed_chunk_extra(char out[SEALED_EXTRA], unsigned char nonce[CRYPTO_NONCE],
                              const struct sealed_head *h, uint64_t i)
{
    uint64_t n = count_chunks(h);
    unsigned char *p = (unsigned char *)out;

    memset(nonce, 0, CRYPTO_NONCE);
    memcpy(nonce, &i, sizeof i);
    put(&p, h->file_id, SEALED_FILE_ID);
    put(&p, &i, sizeof i);
    put(&p, &n, sizeof n);
    put(&p, &h->plain_bytes, sizeof h->plain_bytes);
    put(&p, &h->chunk_bytes, sizeof h->chunk_bytes);
    return str_of(out, SEALED_EXTRA);
}

static int read_bytes(const struct sealed *s, size_t n, uint64_t at, struct err *e)
{
    size_t done = 0;

    while (done < n) {
        ssize_t got = pread(s->fd, s->chunk + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, E_IO, "%s: %s", s->path, strerror(errno));
        if (got == 0)
            return err_set(e, E_DAMAGED, "%s: the encrypted file was truncated to %llu bytes",
                           s->path, (unsigned long long)(at + done));
        done += (size_t)got;
    }
    return OK;
}

int sealed_read(struct sealed *s, uint64_t i, void *to, size_t *n, struct err *e)
{
    const struct sealed_head *h = &s->head;
    unsigned char nonce[CRYPTO_NONCE];
    char extra[SEALED_EXTRA];
    uint64_t at = SEALED_START + i * ((uint64_t)h->chunk_bytes + CRYPTO_TAG);
    int rc;

    *n = sealed_chunk_size(h, i);
    if ((rc = read_bytes(s, *n + CRYPTO_TAG, at, e)) != OK) return rc;
    rc = crypto_gcm_unseal(s->gcm, nonce, sealed_chunk_extra(extra, nonce, h, i), s->chunk, *n, to,
                           s->chunk + *n, e);
    if (rc == E_DAMAGED)
        err_set(e, rc,
                "%s: chunk %llu of %llu (bytes %llu to %llu) does not match its authentication "
                "tag: the encrypted file was changed or is damaged",
                s->path, (unsigned long long)i + 1, (unsigned long long)count_chunks(h),
                (unsigned long long)at, (unsigned long long)(at + *n + CRYPTO_TAG - 1));
    return rc;
}
