/* park.c - sets of parked blocks in memory or in files.
 *
 * A file: header, the data of all blocks, then the index, so that blocks can be written one by one;
 * the header is written last. Numbers are little-endian, as the host's are.
 *
 * A file of the folder is written beside its place, renamed, and mapped when it is read. One behind a
 * descriptor is written in place and read block by block: its reader may open and map nothing else. */
#include "kv/park.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARK_VERSION = 1, BLOCKS_MOST = 1 << 24 };
static const char park_magic[8] = "TERN-KV";

struct park_header {
    char magic[8];
    uint32_t version, block_tokens;
    struct park_key key;
    uint64_t n;         /* blocks */
    uint64_t index_sum; /* checksum of the index */
    uint64_t sum;       /* of the header before it */
};

struct park_entry { /* of the index */
    int32_t parent;
    uint32_t zero;
    uint64_t salt;
    int32_t ids[KV_BLOCK];
    uint64_t sum; /* of the block's data */
};

struct park_set {
    struct park *park;
    struct park_key key;
    struct park_entry *entries; /* [n]; of a file: copied from it */
    int n, max;
    const char *data; /* [n][block_bytes] in memory, or in the map */
    char *memory;     /* owned; NULL: in the map, or in the file that is written */
    struct filemap map;
    int fd;     /* being written; -1: none */
    int source; /* blocks are read from this descriptor, which is borrowed; -1: not */
    char *one;  /* room for a block from there */
    char *path, *temp;
    struct park_set *next; /* in memory: used longer ago */
};

struct park {
    uint64_t max_bytes;
    char *dir;
    int fd;                /* of the only set; -1: none */
    uint64_t room;         /* of the next set */
    uint64_t end_ns;       /* park_set_end */
    struct park_set *sets; /* in memory, the one used last first */
};

/* Four chains of multiply and rotate over words; the length and the rest are mixed in at the end. */
static uint64_t sum_bytes(const void *data, size_t n)
{
    const uint64_t m = 0x9e3779b97f4a7c15u;
    uint64_t h[4] = { 1, 2, 3, 4 }, w[4], last = n;
    const char *p = data;
    size_t left = n;

    for (; left >= sizeof w; left -= sizeof w, p += sizeof w) {
        memcpy(w, p, sizeof w);
        for (int i = 0; i < 4; i++) {
            h[i] = (h[i] ^ w[i]) * m;
            h[i] ^= h[i] >> 29;
        }
    }
    memset(w, 0, sizeof w);
    if (left) memcpy(w, p, left);
    for (int i = 0; i < 4; i++) {
        last = (last ^ h[i]) * m;
        last ^= last >> 31;
        last = (last ^ w[i]) * m;
        last ^= last >> 30;
    }
    return last;
}

static uint64_t set_bytes(const struct park_key *k, uint64_t n)
{
    return sizeof(struct park_header) + n * (k->block_bytes + sizeof(struct park_entry));
}

/* Bytes that a set in memory takes, with the room for blocks that was reserved and not used. */
static uint64_t bytes_of(const struct park_set *s) { return set_bytes(&s->key, (uint64_t)s->max); }

/* ---- the park ---- */

int park_open(struct park **out, const struct park_opt *opt, struct err *e)
{
    struct park *p = mem_new(struct park);

    if (!p) return err_nomem(e, "parked KV blocks");
    p->max_bytes = p->room = opt->max_bytes;
    p->fd = opt->has_fd ? opt->fd : -1;
    if (opt->dir && !(p->dir = mem_strdup(opt->dir))) {
        park_close(p);
        return err_nomem(e, "parked KV blocks");
    }
    *out = p;
    return OK;
}

void park_close(struct park *p)
{
    struct park_set *next;

    if (!p) return;
    for (struct park_set *s = p->sets; s; s = next) {
        next = s->next;
        park_set_close(s);
    }
    mem_free(p->dir);
    mem_free(p);
}

bool park_has_files(const struct park *p) { return p->dir || p->fd >= 0; }
void park_set_room(struct park *p, uint64_t bytes) { p->room = bytes; }
void park_set_end(struct park *p, uint64_t end_ns) { p->end_ns = end_ns; }
bool park_is_late(const struct park *p) { return p->end_ns && clock_ns() >= p->end_ns; }

uint64_t park_bytes(const struct park *p)
{
    uint64_t sum = 0;

    for (const struct park_set *s = p->sets; s; s = s->next) sum += bytes_of(s);
    return sum;
}

int park_max_blocks(const struct park *p, const struct park_key *k)
{
    uint64_t room = p->room < p->max_bytes ? p->room : p->max_bytes, n;

    if (k->block_bytes == 0 || room < sizeof(struct park_header)) return 0;
    n = (room - sizeof(struct park_header)) / (k->block_bytes + sizeof(struct park_entry));
    return n < BLOCKS_MOST ? (int)n : BLOCKS_MOST;
}

static bool is_key(const struct park_key *a, const struct park_key *b)
{
    return a->block_bytes == b->block_bytes && memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

/* DIR/0123….kv; NULL: no memory. */
static char *path_of(const struct park *p, const struct park_key *k)
{
    char name[2 * sizeof k->digest + 4];

    for (size_t i = 0; i < sizeof k->digest; i++) snprintf(name + 2 * i, 3, "%02x", k->digest[i]);
    memcpy(name + 2 * sizeof k->digest, ".kv", 4);
    return path_join(p->dir, name);
}

/* ---- building a set ---- */

static char *temp_of(const char *path)
{
    size_t n = strlen(path) + 32;
    char *t = mem_alloc(n);

    if (t) snprintf(t, n, "%s.part-%ld", path, (long)getpid());
    return t;
}

static const char *name_of(const struct park_set *s) { return s->path ? s->path : "the file"; }

static int write_all(struct park_set *s, const void *data, size_t n, struct err *e)
{
    for (const char *p = data; n > 0;) {
        ssize_t done = write(s->fd, p, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return err_set(e, E_IO, "%s: cannot write parked KV blocks: %s", name_of(s),
                           strerror(errno));
        p += done;
        n -= (size_t)done;
    }
    return OK;
}

/* Empties the file: blocks that were parked in it before are lost. */
static int clear_file(struct park_set *s, struct err *e)
{
    s->fd = s->park->fd;
    if (ftruncate(s->fd, 0) == 0 && lseek(s->fd, 0, SEEK_SET) == 0) return OK;
    return err_set(e, E_IO, "the file of parked KV blocks: %s", strerror(errno));
}

/* The header's place is filled with zeros: a file that was not finished is none. */
static int create_file(struct park_set *s, struct err *e)
{
    static const struct park_header none;
    int rc;

    if (s->park->fd >= 0) {
        rc = clear_file(s, e);
        return rc == OK ? write_all(s, &none, sizeof none, e) : rc;
    }

    s->path = path_of(s->park, &s->key);
    if (!s->path || !(s->temp = temp_of(s->path))) return err_nomem(e, "a path");
    if ((rc = file_create(&s->fd, s->temp, s->path, e)) != OK) {
        s->fd = -1;
        return rc;
    }
    if (fchmod(s->fd, 0600) != 0)
        return err_set(e, E_IO, "%s: cannot be made private: %s", s->temp, strerror(errno));
    return write_all(s, &none, sizeof none, e);
}

/* Old sets go before the new one takes its memory: both would be more than is allowed. */
static void make_room(struct park *p, uint64_t bytes)
{
    uint64_t all = park_bytes(p) + bytes;

    if (all > p->max_bytes) park_shrink(p, all - p->max_bytes);
}

int park_begin(struct park_set **out, struct park *p, const struct park_key *k, int n,
               struct err *e)
{
    struct park_set *s = mem_new(struct park_set);
    int rc = OK;

    if (!s) return err_nomem(e, "parked KV blocks");
    *s = (struct park_set){ .park = p, .key = *k, .fd = -1, .source = -1 };
    s->max = n < park_max_blocks(p, k) ? n : park_max_blocks(p, k);
    if (!park_has_files(p)) make_room(p, bytes_of(s));
    s->entries = mem_array((size_t)(s->max > 0 ? s->max : 1), sizeof *s->entries);
    if (!s->entries) rc = err_nomem(e, "the index of parked KV blocks");
    else if (park_has_files(p)) rc = create_file(s, e);
    else if (s->max > 0 && !(s->memory = mem_aligned((size_t)s->max * (size_t)k->block_bytes)))
        rc = err_nomem(e, "parked KV blocks");
    s->data = s->memory;
    if (rc == OK) *out = s;
    else park_set_close(s);
    return rc;
}

int park_add(struct park_set *s, const struct park_block *b, const void *data, struct err *e)
{
    size_t n = (size_t)s->key.block_bytes;
    struct park_entry *x;
    int rc = OK;

    if (s->n == s->max || b->parent < -1 || b->parent >= s->n)
        return err_set(e, E_INVALID, "block %d of %d parked ones with parent %d", s->n, s->max,
                       b->parent);
    x = &s->entries[s->n];
    *x = (struct park_entry){ .parent = b->parent, .salt = b->salt, .sum = sum_bytes(data, n) };
    memcpy(x->ids, b->ids, sizeof x->ids);
    if (s->fd >= 0) rc = write_all(s, data, n, e);
    else memcpy(s->memory + (size_t)s->n * n, data, n);
    if (rc == OK) s->n++;
    return rc;
}

/* ---- dropping old sets ---- */

uint64_t park_shrink(struct park *p, uint64_t bytes)
{
    uint64_t given = 0;

    while (p->sets && given < bytes) {
        struct park_set **last = &p->sets, *s;
        while ((*last)->next) last = &(*last)->next;
        s = *last;
        *last = NULL;
        given += bytes_of(s);
        park_set_close(s);
    }
    return given;
}

struct oldest {
    char name[256];
    struct timespec when;
    uint64_t sum; /* of all files */
    int n;
};

static bool is_before(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

/* The file that was used longest ago, but not `keep`. */
static void find_oldest(struct oldest *o, DIR *d, const char *keep)
{
    struct dirent *x;
    struct stat st;

    *o = (struct oldest){ .n = 0 };
    rewinddir(d);
    while ((x = readdir(d))) {
        if (!str_ends(str_c(x->d_name), STR(".kv")) || strlen(x->d_name) >= sizeof o->name ||
            fstatat(dirfd(d), x->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        o->sum += (uint64_t)st.st_size;
        if (strcmp(x->d_name, keep) == 0 || (o->n++ && !is_before(st.st_mtim, o->when))) continue;
        o->when = st.st_mtim;
        snprintf(o->name, sizeof o->name, "%s", x->d_name);
    }
}

static void drop_files(struct park *p, const char *keep)
{
    DIR *d = p->dir ? opendir(p->dir) : NULL;
    struct oldest o;

    if (!d) return;
    for (find_oldest(&o, d, keep); o.n > 0 && o.sum > p->max_bytes; find_oldest(&o, d, keep))
        if (unlinkat(dirfd(d), o.name, 0) != 0) break;
    closedir(d);
}

void park_drop_files(struct park *p) { drop_files(p, ""); }

/* ---- finishing a set ---- */

static struct park_header header_of(const struct park_set *s)
{
    struct park_header h = { .version = PARK_VERSION,
                             .block_tokens = KV_BLOCK,
                             .key = s->key,
                             .n = (uint64_t)s->n,
                             .index_sum =
                                 sum_bytes(s->entries, (size_t)s->n * sizeof *s->entries) };

    memcpy(h.magic, park_magic, sizeof h.magic);
    h.sum = sum_bytes(&h, offsetof(struct park_header, sum));
    return h;
}

static int finish_file(struct park_set *s, struct err *e)
{
    struct park_header h = header_of(s);
    int rc = write_all(s, s->entries, (size_t)s->n * sizeof *s->entries, e);

    if (rc != OK) return rc;
    if (lseek(s->fd, 0, SEEK_SET) != 0)
        return err_set(e, E_IO, "%s: %s", name_of(s), strerror(errno));
    if ((rc = write_all(s, &h, sizeof h, e)) != OK) return rc;
    if (s->fd == s->park->fd) {
        s->fd = -1;
        return OK;
    }
    rc = close(s->fd);
    s->fd = -1;
    if (rc != 0) return err_set(e, E_IO, "%s: %s", s->temp, strerror(errno));
    if ((rc = file_rename(s->temp, s->path, e)) != OK) return rc;
    mem_free(s->temp);
    s->temp = NULL;
    drop_files(s->park, path_base(s->path));
    return OK;
}

/* Out of the list of those in memory. */
static struct park_set *unlink_set(struct park *p, const struct park_key *k)
{
    for (struct park_set **at = &p->sets; *at; at = &(*at)->next) {
        struct park_set *s = *at;
        if (!is_key(&s->key, k)) continue;
        *at = s->next;
        s->next = NULL;
        return s;
    }
    return NULL;
}

int park_end(struct park_set *s, struct err *e)
{
    struct park *p = s->park;
    int rc = OK;

    if (park_has_files(p)) {
        rc = finish_file(s, e);
        park_set_close(s);
        return rc;
    }
    park_set_close(unlink_set(p, &s->key));
    s->next = p->sets;
    p->sets = s;
    return OK;
}

/* ---- reading ---- */

static int check_header(const struct park_header *h, size_t n, const struct park_key *k,
                        struct err *e)
{
    if (memcmp(h->magic, park_magic, sizeof h->magic) != 0)
        return err_set(e, E_FORMAT, "no file of parked KV blocks");
    if (h->version != PARK_VERSION || h->block_tokens != KV_BLOCK)
        return err_set(e, E_FORMAT, "version %u with blocks of %u tokens; known are %d and %d",
                       h->version, h->block_tokens, PARK_VERSION, KV_BLOCK);
    if (h->sum != sum_bytes(h, offsetof(struct park_header, sum)))
        return err_set(e, E_FORMAT, "the header's checksum is wrong");
    if (k && !is_key(&h->key, k)) return err_set(e, E_FORMAT, "the blocks are of another model");
    if (h->n > BLOCKS_MOST || h->key.block_bytes > SIZE_MAX / 2 / BLOCKS_MOST ||
        set_bytes(&h->key, h->n) != n)
        return err_set(e, E_FORMAT, "%llu blocks of %llu bytes, but the file has %zu bytes",
                       (unsigned long long)h->n, (unsigned long long)h->key.block_bytes, n);
    return OK;
}

static int check_index(const struct park_set *s, const struct park_header *h, struct err *e)
{
    if (h->index_sum != sum_bytes(s->entries, (size_t)s->n * sizeof *s->entries))
        return err_set(e, E_FORMAT, "the checksum of the index is wrong");
    for (int i = 0; i < s->n; i++) {
        const struct park_entry *x = &s->entries[i];
        bool bad = x->parent < -1 || x->parent >= i;
        if (!bad && x->parent >= 0) bad = s->entries[x->parent].salt != x->salt;
        for (int k = 0; k < KV_BLOCK; k++) bad |= x->ids[k] < 0;
        if (bad) return err_set(e, E_FORMAT, "block %d makes no sense", i);
    }
    return OK;
}

int park_parse(struct park_set **out, const void *p, size_t n, const struct park_key *k,
               struct err *e)
{
    struct park_set *s;
    struct park_header h;
    size_t data;
    int rc;

    if (n < sizeof h) return err_set(e, E_FORMAT, "%zu bytes are too few for a header", n);
    memcpy(&h, p, sizeof h);
    if ((rc = check_header(&h, n, k, e)) != OK) return rc;
    if (!(s = mem_new(struct park_set))) return err_nomem(e, "parked KV blocks");
    *s = (struct park_set){ .key = h.key, .n = (int)h.n, .max = (int)h.n, .fd = -1, .source = -1 };
    s->data = (const char *)p + sizeof h;
    data = (size_t)h.n * (size_t)h.key.block_bytes;
    s->entries = mem_array(h.n ? (size_t)h.n : 1, sizeof *s->entries);
    if (!s->entries) rc = err_nomem(e, "the index of parked KV blocks");
    else if (h.n) memcpy(s->entries, s->data + data, (size_t)h.n * sizeof *s->entries);
    if (rc == OK) rc = check_index(s, &h, e);
    if (rc == OK) *out = s;
    else park_set_close(s);
    return rc;
}

/* Marks the file as used. A file of this name that is not as it should be is ignored. */
static int open_file(struct park_set **out, const char *path, const struct park_key *k,
                     struct err *e)
{
    struct filemap map = { 0 };
    int rc = filemap_open(&map, path, e);

    if (rc != OK) return rc == E_NOTFOUND ? rc : err_set(e, E_NOTFOUND, "%s", e->msg);
    if ((rc = park_parse(out, map.p, map.n, k, e)) == OK) {
        (*out)->map = map;
        utimensat(AT_FDCWD, path, NULL, 0);
        return OK;
    }
    filemap_release(&map);
    if (rc != E_FORMAT) return rc;
    log_warn("%s: %s; the parked KV blocks are ignored", path, e->msg);
    return err_set(e, E_NOTFOUND, "%s is damaged", path);
}

/* All n bytes at an offset of the file. */
static int read_at(int fd, void *out, size_t n, uint64_t at, struct err *e)
{
    for (char *p = out; n > 0;) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, E_FORMAT, "cannot be read: %s", strerror(errno));
        if (got == 0)
            return err_set(e, E_FORMAT, "the file ends at byte %llu", (unsigned long long)at);
        p += got, n -= (size_t)got, at += (uint64_t)got;
    }
    return OK;
}

/* The index of a set whose blocks stay in the file. */
static int read_index(struct park_set *s, const struct park_header *h, struct err *e)
{
    uint64_t at = sizeof *h + h->n * h->key.block_bytes;
    int rc;

    s->entries = mem_array(h->n ? (size_t)h->n : 1, sizeof *s->entries);
    s->one = mem_alloc(h->key.block_bytes ? (size_t)h->key.block_bytes : 1);
    if (!s->entries || !s->one) return err_nomem(e, "the index of parked KV blocks");
    rc = read_at(s->source, s->entries, (size_t)h->n * sizeof *s->entries, at, e);
    return rc == OK ? check_index(s, h, e) : rc;
}

static int read_set(struct park_set **out, int fd, const struct park_key *k, struct err *e)
{
    struct park_header h;
    struct park_set *s;
    struct stat st;
    int rc;

    if (fstat(fd, &st) != 0 || st.st_size == 0)
        return err_set(e, E_NOTFOUND, "no KV blocks of this model are parked");
    if ((rc = read_at(fd, &h, sizeof h, 0, e)) != OK) return rc;
    if ((rc = check_header(&h, (size_t)st.st_size, k, e)) != OK) return rc;
    if (!(s = mem_new(struct park_set))) return err_nomem(e, "parked KV blocks");
    *s = (struct park_set){ .key = h.key, .n = (int)h.n, .max = (int)h.n, .fd = -1, .source = fd };
    if ((rc = read_index(s, &h, e)) == OK) *out = s;
    else park_set_close(s);
    return rc;
}

/* As open_file, of the one that was opened by somebody else. */
static int take_from_fd(struct park_set **out, int fd, const struct park_key *k, struct err *e)
{
    int rc = read_set(out, fd, k, e);

    if (rc != E_FORMAT) return rc;
    log_warn("the file of parked KV blocks: %s; they are ignored", e->msg);
    return err_set(e, E_NOTFOUND, "the file of parked KV blocks is damaged");
}

int park_take(struct park_set **out, struct park *p, const struct park_key *k, struct err *e)
{
    struct err local = { 0 };
    char *path;
    int rc;

    if (!e) e = &local;
    if (p->fd >= 0) return take_from_fd(out, p->fd, k, e);
    if (!p->dir) {
        *out = unlink_set(p, k);
        return *out ? OK : err_set(e, E_NOTFOUND, "no KV blocks of this model are parked");
    }
    if (!(path = path_of(p, k))) return err_nomem(e, "a path");
    rc = open_file(out, path, k, e);
    mem_free(path);
    return rc;
}

void park_set_close(struct park_set *s)
{
    if (!s) return;
    if (s->fd >= 0 && s->fd == s->park->fd) {
        if (ftruncate(s->fd, 0) != 0) log_debug("an unfinished file of parked KV blocks stays");
    } else if (s->fd >= 0) {
        close(s->fd);
    }
    if (s->temp) unlink(s->temp);
    filemap_release(&s->map);
    if (s->memory) mem_free_aligned(s->memory, (size_t)s->max * (size_t)s->key.block_bytes);
    mem_free(s->entries);
    mem_free(s->one);
    mem_free(s->path);
    mem_free(s->temp);
    mem_free(s);
}

int park_set_n(const struct park_set *s) { return s->n; }

void park_set_at(const struct park_set *s, int i, struct park_block *out)
{
    const struct park_entry *x = &s->entries[i];

    *out = (struct park_block){ .parent = x->parent, .salt = x->salt };
    memcpy(out->ids, x->ids, sizeof out->ids);
}

const void *park_set_data(const struct park_set *s, int i)
{
    uint64_t at = (uint64_t)i * s->key.block_bytes;
    const char *p = s->source >= 0 ? s->one : s->data + (size_t)at;

    if (s->source >= 0 && read_at(s->source, s->one, (size_t)s->key.block_bytes,
                                  sizeof(struct park_header) + at, NULL) != OK)
        return NULL;
    return sum_bytes(p, (size_t)s->key.block_bytes) == s->entries[i].sum ? p : NULL;
}

void park_seal(void *p, size_t n)
{
    struct park_header h;
    size_t at, index;

    if (n < sizeof h) return;
    memcpy(&h, p, sizeof h);
    if (h.n <= BLOCKS_MOST && h.key.block_bytes <= SIZE_MAX / 2 / BLOCKS_MOST &&
        set_bytes(&h.key, h.n) <= n) {
        at = sizeof h + (size_t)h.n * (size_t)h.key.block_bytes;
        index = (size_t)h.n * sizeof(struct park_entry);
        h.index_sum = sum_bytes((char *)p + at, index);
    }
    h.sum = sum_bytes(&h, offsetof(struct park_header, sum));
    memcpy(p, &h, sizeof h);
}
