#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static int open_regular(int *fd, size_t *size, const char *path, struct err *e)
{
    struct stat st;

    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return err_set(e, errno == ENOENT ? E_NOTFOUND : E_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        return err_set(e, E_IO, "%s: %s", path,
                       S_ISDIR(st.st_mode) ? "is a directory, expected a file"
                                           : "is not a regular file");
    }
    *size = (size_t)st.st_size;
    return OK;
}

int filemap_open(struct filemap *m, const char *path, struct err *e)
{
    void *p = NULL;
    size_t n;
    int fd, rc = open_regular(&fd, &n, path, e);

    if (rc != OK) return rc;
    if (n) {
        p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = err_set(e, errno == ENOMEM ? E_NOMEM : E_IO, "%s: cannot map %zu bytes: %s", path,
                         n, strerror(errno));
    }
    close(fd);
    if (rc == OK) *m = (struct filemap){ p, n };
    return rc;
}

void filemap_release(struct filemap *m)
{
    if (m->p) munmap((void *)m->p, m->n);
    *m = (struct filemap){ 0 };
}

static void advise(const void *p, size_t n, int advice, bool inside)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE) - 1, a = (uintptr_t)p, b = a + n;

    if (inside) a = (a + page) & ~page, b &= ~page;
    else a &= ~page;
    if (b > a) madvise((void *)a, b - a, advice);
}

void filemap_need(const void *p, size_t n) { advise(p, n, MADV_WILLNEED, false); }
void filemap_drop(const void *p, size_t n) { advise(p, n, MADV_DONTNEED, true); }

static int read_all(int fd, struct buf *out, size_t size, const char *path, struct err *e)
{
    buf_reserve(out, size + 1);
    while (out->n < size) {
        ssize_t got = read(fd, out->p + out->n, size - out->n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_set(e, E_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        out->n += (size_t)got;
    }
    return OK;
}

int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *e)
{
    size_t size;
    int fd, rc = open_regular(&fd, &size, path, e);

    if (rc != OK) return rc;
    if (size > max_bytes)
        rc = err_set(e, E_FORMAT, "%s: has %zu bytes, expected at most %zu", path, size, max_bytes);
    else rc = read_all(fd, out, size, path, e);
    close(fd);
    return rc;
}

static int gunzip(struct buf *out, struct str in, size_t max_bytes, const char *path, struct err *e)
{
    z_stream z = { .next_in = (Bytef *)in.p, .avail_in = (uInt)in.n };
    int rc = OK, st = inflateInit2(&z, 16 + MAX_WBITS);

    while (rc == OK && st == Z_OK) {
        buf_reserve(out, 1 << 20);
        z.next_out = (Bytef *)out->p + out->n;
        z.avail_out = (uInt)(out->cap - out->n > (1u << 30) ? 1u << 30 : out->cap - out->n);
        uInt room = z.avail_out;
        st = inflate(&z, Z_NO_FLUSH);
        out->n += room - z.avail_out;
        if (out->n > max_bytes)
            rc = err_set(e, E_FORMAT, "%s: unpacks to more than %zu bytes", path, max_bytes);
        if (st == Z_OK && z.avail_in == 0 && z.avail_out) break;
    }
    if (rc == OK && st != Z_STREAM_END)
        rc = err_set(e, E_FORMAT, "%s: damaged gzip data after %lu bytes", path, z.total_in);
    inflateEnd(&z);
    return rc;
}

int file_read_gz(struct buf *out, const char *path, size_t max_bytes, struct err *e)
{
    struct buf raw = { 0 };
    int rc = file_read(&raw, path, max_bytes, e);

    if (rc == OK && raw.n >= 2 && (unsigned char)raw.p[0] == 0x1f &&
        (unsigned char)raw.p[1] == 0x8b) {
        rc = gunzip(out, buf_str(&raw), max_bytes, path, e);
    } else if (rc == OK) {
        *out = raw;
        raw = (struct buf){ 0 };
    }
    buf_release(&raw);
    return rc;
}

int file_replace(const char *path, struct str data, struct err *e)
{
    struct buf tmp = { 0 };
    FILE *f;
    int rc = OK;

    buf_printf(&tmp, "%s.part-%ld", path, (long)getpid());
    f = fopen(buf_cstr(&tmp), "wbe");
    if (!f) {
        rc = err_set(e, E_IO, "%s: %s", path, strerror(errno));
    } else {
        bool good = fwrite(data.p, 1, data.n, f) == data.n;
        good = fclose(f) == 0 && good;
        if (!good || rename(buf_cstr(&tmp), path) != 0) {
            rc = err_set(e, E_IO, "%s: %s", path, strerror(errno));
            unlink(buf_cstr(&tmp));
        }
    }
    buf_release(&tmp);
    return rc;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

char *path_join(const char *dir, const char *name)
{
    size_t n = strlen(dir);
    struct buf b = { 0 };

    buf_printf(&b, "%s%s%s", dir, n && dir[n - 1] != '/' ? "/" : "", name);
    buf_cstr(&b);
    return b.p;
}

const char *path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

int path_under(char **out, const char *dir, struct str name, struct err *e)
{
    struct buf b = { 0 };
    bool bad = name.n == 0 || name.p[0] == '/' || memchr(name.p, 0, name.n);

    for (size_t i = 0; i < name.n && !bad; i++) {
        bool start = i == 0 || name.p[i - 1] == '/';
        struct str rest = str_skip(name, i);
        bad = start && str_starts(rest, STR("..")) && (rest.n == 2 || rest.p[2] == '/');
    }
    if (bad)
        return err_set(e, E_INVALID,
                       "%s: a file name here must stay inside the folder, found '%.*s'", dir,
                       (int)(name.n > 100 ? 100 : name.n), name.p);
    buf_put_str(&b, name);
    *out = path_join(dir, buf_cstr(&b));
    buf_release(&b);
    return OK;
}
