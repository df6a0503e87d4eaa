/* upload.c - the fields of an upload, and its temporary file. */
#include "jobs/upload.h"

#include "base/mem.h"
#include "jobs/jobstore_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { EXPIRES_MIN = 3600, EXPIRES_MAX = 30 * 86400 }; /* seconds, as OpenAI's */

static int fail(struct upload *u, const char *param, struct err *e, const char *msg)
{
    snprintf(u->param, sizeof u->param, "%s", param);
    return err_set(e, E_INVALID, "%s", msg);
}

/* The name as clients show it: without folders and control characters. */
static void set_name(struct upload *u, const char *name)
{
    const char *slash = strrchr(name, '/'), *back;

    if (slash) name = slash + 1;
    if ((back = strrchr(name, '\\'))) name = back + 1;
    snprintf(u->file.name, sizeof u->file.name, "%s", *name ? name : "upload");
    for (char *p = u->file.name; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127) *p = '_';
}

static int begin_part(void *arg, const struct multipart_part *p, struct err *e)
{
    struct upload *u = arg;

    u->n_value = 0;
    u->in_file = strcmp(p->name, "file") == 0;
    snprintf(u->field, sizeof u->field, "%.31s", p->name);
    if (!u->in_file) return OK;
    if (u->has_file) return fail(u, "file", e, "the form has two parts 'file'");
    if (!p->has_filename) return fail(u, "file", e, "the part 'file' has no filename");
    u->has_file = true;
    set_name(u, p->filename);
    return OK;
}

static int write_bytes(struct upload *u, const char *p, size_t n, struct err *e)
{
    while (n) {
        ssize_t k = write(u->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return jobstore_errno(e, "write", u->path);
        p += k;
        n -= (size_t)k;
    }
    return OK;
}

static int add_data(void *arg, const char *p, size_t n, struct err *e)
{
    struct upload *u = arg;

    if (!u->in_file) {
        if (u->n_value + n >= sizeof u->value)
            return fail(u, u->field, e, "a field of the form is too long");
        memcpy(u->value + u->n_value, p, n);
        u->n_value += n;
        return OK;
    }
    u->file.bytes += (int64_t)n;
    if ((uint64_t)u->file.bytes > u->max_bytes) {
        snprintf(u->param, sizeof u->param, "file");
        return err_set(e, E_BYTES, "the file has more than %llu bytes, the most of this server",
                       (unsigned long long)u->max_bytes);
    }
    return write_bytes(u, p, n, e);
}

static int end_part(void *arg, struct err *e)
{
    struct upload *u = arg;
    struct str v = str_of(u->value, u->n_value);

    if (u->in_file) return OK;
    if (strcmp(u->field, "purpose") == 0) {
        u->has_purpose = true;
        if (!str_is(v, "batch")) return fail(u, "purpose", e, "purpose must be \"batch\"");
        snprintf(u->file.purpose, sizeof u->file.purpose, "batch");
    } else if (strcmp(u->field, "expires_after[anchor]") == 0) {
        if (!str_is(v, "created_at"))
            return fail(u, u->field, e, "expires_after[anchor] must be \"created_at\"");
    } else if (strcmp(u->field, "expires_after[seconds]") == 0) {
        if (!str_to_i64(v, &u->expires_after) || u->expires_after < EXPIRES_MIN ||
            u->expires_after > EXPIRES_MAX)
            return fail(u, u->field, e,
                        "expires_after[seconds] must be a number from 3600 to 2592000");
    }
    return OK;
}

/* http_sink.add */
static void add_bytes(struct http_sink *s, const char *p, size_t n)
{
    struct upload *u = (struct upload *)s;

    if (u->rc == OK) u->rc = multipart_feed(&u->form, p, n, &u->err);
}

static void close_sink(struct http_sink *s) { upload_close((struct upload *)s); }

static int open_file(struct upload *u, const char *dir, struct err *e)
{
    char tmp[3100], own[32];
    int rc;

    snprintf(tmp, sizeof tmp, "%s/tmp", dir);
    if ((rc = jobstore_make_folders(dir, e)) != OK || (rc = jobstore_make_folders(tmp, e)) != OK)
        return rc;
    snprintf(own, sizeof own, STORE_UPLOAD, (int)getpid());
    snprintf(u->path, sizeof u->path, "%s/%s%s", tmp, own, u->file.id);
    u->fd = open(u->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    return u->fd >= 0 ? OK : jobstore_errno(e, "create", u->path);
}

/* Without a name: whatever ends the process, its space is free then. */
static int open_spool(struct upload *u, const char *dir, struct err *e)
{
    u->fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (u->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(u->path, sizeof u->path, "%s/tern-up-%s", dir, u->file.id);
        u->fd = open(u->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (u->fd >= 0) unlink(u->path);
        u->path[0] = 0;
    }
    u->spools = true;
    return u->fd >= 0 ? OK : jobstore_errno(e, "create a file in", dir);
}

static struct upload *begin_upload(const char *dir, struct str type, uint64_t max_bytes,
                                   bool spools)
{
    struct upload *u = mem_new(struct upload);
    struct multipart_out out = { begin_part, add_data, end_part, u };

    if (!u) return NULL;
    u->sink = (struct http_sink){ add_bytes, close_sink };
    u->fd = -1;
    u->max_bytes = max_bytes;
    jobstore_make_id(u->file.id, "file-");
    u->rc = multipart_init(&u->form, type, &out, &u->err);
    if (u->rc == OK) u->rc = spools ? open_spool(u, dir, &u->err) : open_file(u, dir, &u->err);
    return u;
}

struct upload *upload_open(const char *dir, struct str type, uint64_t max_bytes)
{
    return begin_upload(dir, type, max_bytes, false);
}

struct upload *upload_open_spool(const char *dir, struct str type, uint64_t max_bytes)
{
    return begin_upload(dir, type, max_bytes, true);
}

int upload_end(struct upload *u, struct err *e)
{
    if (u->rc == OK) u->rc = multipart_end(&u->form, &u->err);
    if (u->rc == OK && !u->has_file)
        u->rc = fail(u, "file", &u->err, "the form has no part 'file'");
    if (u->rc == OK && !u->has_purpose)
        u->rc = fail(u, "purpose", &u->err, "the form has no part 'purpose'");
    if (u->rc == OK && !u->spools && close(u->fd) != 0)
        u->rc = jobstore_errno(&u->err, "close", u->path);
    if (u->rc == OK) {
        if (!u->spools) u->fd = -1;
        u->file.created = jobstore_now();
        if (u->expires_after) u->file.expires = u->file.created + u->expires_after;
    }
    if (u->rc != OK && e) *e = u->err;
    return u->rc;
}

void upload_close(struct upload *u)
{
    if (!u) return;
    if (u->fd >= 0) close(u->fd);
    if (*u->path) unlink(u->path);
    mem_free(u);
}
