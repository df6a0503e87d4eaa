#include "pull/part.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[16] = "tern-ranges 1\n";

enum { HEAD = sizeof magic + 16, LEAST_CHUNK = 4096 };

static void put_u64(unsigned char *to, uint64_t v)
{
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(v >> 8 * i);
}

static uint64_t get_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* How many ranges; 0: too many, or none. */
static int count_ranges(uint64_t size, uint64_t chunk)
{
    uint64_t n = chunk ? size / chunk + (size % chunk != 0) : 0;

    if (size == 0) return 1;
    return n <= PART_RANGES_MOST ? (int)n : 0;
}

static uint64_t range_bytes(uint64_t size, uint64_t chunk, int i)
{
    uint64_t left = size - (uint64_t)i * chunk;
    return left < chunk ? left : chunk;
}

bool part_read_record(const void *bytes, size_t n, uint64_t size, uint64_t *chunk, uint64_t *done,
                      int cap, int *n_ranges)
{
    const unsigned char *p = bytes;

    if (n < HEAD || memcmp(p, magic, sizeof magic) != 0) return false;
    *chunk = get_u64(p + sizeof magic + 8);
    if (get_u64(p + sizeof magic) != size || *chunk < LEAST_CHUNK) return false;
    *n_ranges = count_ranges(size, *chunk);
    if (*n_ranges == 0 || *n_ranges > cap || n != HEAD + 8 * (size_t)*n_ranges) return false;
    for (int i = 0; i < *n_ranges; i++) {
        done[i] = get_u64(p + HEAD + 8 * (size_t)i);
        if (done[i] > range_bytes(size, *chunk, i)) return false;
    }
    return true;
}

static int fail_io(const struct part *p, struct err *e)
{
    return err_set(e, E_IO, "%s: %s", p->path, strerror(errno));
}

static int write_at(const struct part *p, int fd, const void *bytes, size_t n, uint64_t at,
                    struct err *e)
{
    const char *from = bytes;

    while (n > 0) {
        ssize_t done = pwrite(fd, from, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return fail_io(p, e);
        from += done, at += (uint64_t)done, n -= (size_t)done;
    }
    return OK;
}

/* ---- open and close ---- */

static int set_ranges(struct part *p, uint64_t chunk, struct err *e)
{
    int n;

    if (chunk < LEAST_CHUNK) chunk = LEAST_CHUNK;
    while ((n = count_ranges(p->size, chunk)) == 0) chunk *= 2;
    mem_free(p->done);
    mem_free(p->taken);
    p->chunk = chunk;
    p->n = n;
    p->done = mem_array((size_t)n, sizeof *p->done);
    p->taken = mem_array((size_t)n, sizeof *p->taken);
    return p->done && p->taken ? OK : err_nomem(e, "the ranges of a download");
}

/* The record is emptied first: then nothing promises bytes that the file does not have. */
int part_restart(struct part *p, uint64_t chunk, struct err *e)
{
    unsigned char head[HEAD];
    int rc = set_ranges(p, chunk, e);

    if (rc != OK) return rc;
    p->resumed = false;
    memcpy(head, magic, sizeof magic);
    put_u64(head + sizeof magic, p->size);
    put_u64(head + sizeof magic + 8, p->chunk);
    if (ftruncate(p->rec, 0) != 0 || ftruncate(p->fd, 0) != 0 ||
        ftruncate(p->fd, (off_t)p->size) != 0)
        return fail_io(p, e);
    if ((rc = write_at(p, p->rec, head, sizeof head, 0, e)) != OK) return rc;
    if (ftruncate(p->rec, (off_t)(HEAD + 8 * (size_t)p->n)) != 0) return fail_io(p, e);
    return OK;
}

/* false: there is no record, or one that does not fit. */
static bool load_record(struct part *p, struct err *e)
{
    struct buf b = { 0 };
    struct stat st;
    uint64_t chunk, *done = mem_array(PART_RANGES_MOST, sizeof *done);
    int n = 0;
    bool ok = done && fstat(p->fd, &st) == 0 && (uint64_t)st.st_size == p->size &&
              file_read(&b, p->record, HEAD + 8 * (size_t)PART_RANGES_MOST, NULL) == OK &&
              part_read_record(b.p, b.n, p->size, &chunk, done, PART_RANGES_MOST, &n);

    if (ok) ok = set_ranges(p, chunk, e) == OK && p->n == n && p->chunk == chunk;
    if (ok) memcpy(p->done, done, (size_t)n * sizeof *done);
    mem_free(done);
    buf_release(&b);
    return ok;
}

int part_open(struct part *p, const char *path, uint64_t size, uint64_t chunk, struct err *e)
{
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    struct buf record = { 0 };

    *p = (struct part){ .fd = -1, .rec = -1, .size = size };
    buf_printf(&record, "%s.ranges", path);
    buf_cstr(&record);
    p->path = mem_strdup(path);
    p->record = record.p;
    if (!p->path || record.failed) return err_nomem(e, "the path of a download");
    p->fd = open(path, flags, 0666);
    p->rec = open(p->record, flags, 0666);
    if (p->fd < 0 || p->rec < 0) return fail_io(p, e);
    if (!load_record(p, e)) return part_restart(p, chunk, e);
    p->resumed = part_have(p) > 0;
    return OK;
}

void part_close(struct part *p)
{
    if (p->path && p->fd >= 0) close(p->fd);
    if (p->path && p->rec >= 0) close(p->rec);
    mem_free(p->path);
    mem_free(p->record);
    mem_free(p->done);
    mem_free(p->taken);
    *p = (struct part){ .fd = -1, .rec = -1 };
}

void part_remove(struct part *p)
{
    if (p->path) unlink(p->path);
    if (p->record) unlink(p->record);
    part_close(p);
}

int part_rename(struct part *p, const char *to, struct err *e)
{
    if (fdatasync(p->fd) != 0) return fail_io(p, e);
    if (rename(p->path, to) != 0) return fail_io(p, e);
    unlink(p->record);
    part_close(p);
    return OK;
}

/* ---- ranges ---- */

uint64_t part_range_bytes(const struct part *p, int i)
{
    return p->size ? range_bytes(p->size, p->chunk, i) : 0;
}

uint64_t part_offset(const struct part *p, int i) { return (uint64_t)i * p->chunk + p->done[i]; }

static int write_record(struct part *p, int i, struct err *e)
{
    unsigned char b[8];

    put_u64(b, p->done[i]);
    return write_at(p, p->rec, b, sizeof b, HEAD + 8 * (uint64_t)i, e);
}

int part_write(struct part *p, int i, const void *bytes, size_t n, struct err *e)
{
    int rc;

    if (n > part_range_bytes(p, i) - p->done[i])
        return err_set(e, E_INVALID, "%s: the server sent more bytes than were asked for", p->path);
    if ((rc = write_at(p, p->fd, bytes, n, part_offset(p, i), e)) != OK) return rc;
    p->done[i] += n;
    return write_record(p, i, e);
}

int part_rewind(struct part *p, int i, struct err *e)
{
    p->done[i] = 0;
    return write_record(p, i, e);
}

uint64_t part_have(const struct part *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->n; i++) sum += p->done[i];
    return sum;
}

uint64_t part_prefix(const struct part *p)
{
    uint64_t sum = 0;

    for (int i = 0; i < p->n; i++) {
        sum += p->done[i];
        if (p->done[i] < part_range_bytes(p, i)) break;
    }
    return sum;
}

int part_next(const struct part *p)
{
    for (int i = 0; i < p->n; i++)
        if (!p->taken[i] && p->done[i] < part_range_bytes(p, i)) return i;
    return -1;
}
