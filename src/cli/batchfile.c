/* batchfile.c - the lines of a batch and their results on the disk; see batchfile.h. */
#include "cli/batchfile.h"

#include "base/clock.h"
#include "base/jsonpeek.h"
#include "base/jsonr.h"
#include "base/mem.h"
#include "cli/cliio.h"
#include "jobs/batchline.h"

#include <errno.h>
#include <unistd.h>

enum { RETRY_MS = 200, RETRY_MAX_MS = 10000, RESULT_MAX = 1 << 30 };

/* ---- the input ---- */

static int add_line(struct batchfile *b, size_t at, size_t n, int number, struct err *e)
{
    struct batchline l;
    struct str text = str_of((const char *)b->input.p + at, n);
    const char *id;
    uint64_t first;
    int rc;

    if (str_trim(text).n == 0) return OK;
    if ((rc = batchline_read(&l, text, "", NULL, e)) != OK) {
        err_wrap(e, "%s:%d", b->in, number);
        return e->code == E_INVALID ? (e->code = E_FORMAT) : rc;
    }
    if (map_get(&b->by_id, str_c(l.custom_id), &first))
        return err_set(e, E_FORMAT, "%s:%d: the custom_id '%.100s' is that of an earlier line",
                       b->in, number, l.custom_id);
    id = cli_need(arena_cstr(&b->ids, str_c(l.custom_id)));
    if (map_put(&b->by_id, str_c(id), (uint64_t)b->n) < 0) cli_nomem();
    if (!mem_ensure(b->lines, b->cap, b->n + 1)) cli_nomem();
    b->lines[b->n++] = (struct batchfile_line){ .at = at, .n = n, .custom_id = id };
    return OK;
}

static int read_input(struct batchfile *b, struct err *e)
{
    int number = 0, rc = filemap_open(&b->input, b->in, e);

    for (size_t at = 0; rc == OK && at < b->input.n;) {
        const unsigned char *p = b->input.p + at, *end = memchr(p, '\n', b->input.n - at);
        size_t n = end ? (size_t)(end - p) : b->input.n - at;
        rc = add_line(b, at, n, ++number, e);
        at += n + 1;
    }
    if (rc == OK && b->n == 0) rc = err_set(e, E_FORMAT, "%s has no lines", b->in);
    return rc;
}

/* ---- results ---- */

static int note_result(struct batchfile *b, const char *path, int number, struct str text,
                       struct err *e)
{
    struct buf id = { 0 };
    json_t *root = jsonr_load(text, 0, NULL);
    const char *custom = json_string_value(json_object_get(root, "custom_id"));
    const json_t *response = json_object_get(root, "response");
    uint64_t i;
    int rc = OK;

    if (!custom)
        rc = err_set(e, E_FORMAT, "%s:%d is not a result of a batch: name another file", path,
                     number);
    else if (!map_get(&b->by_id, str_c(custom), &i))
        rc = err_set(
            e, E_FORMAT,
            "%s:%d: the custom_id '%.100s' is not in %s: the file has the results of another "
            "input; name another one",
            path, number, custom, b->in);
    else if (b->lines[i].state == LINE_DONE)
        rc = err_set(e, E_FORMAT, "%s:%d: the custom_id '%.100s' has two results", path, number,
                     custom);
    if (rc == OK) {
        b->lines[i].state = LINE_DONE;
        b->n_done++;
        b->n_before++;
        if (json_integer_value(json_object_get(response, "status_code")) == 200) b->n_good++;
        else b->n_bad++;
    }
    json_decref(root);
    buf_release(&id);
    return rc;
}

/* Results that are there are kept; what follows the last line end was being written when the process
 * was killed, and goes. */
static int open_results(struct batchfile *b, const char *path, int *fd, struct err *e)
{
    struct buf text = { 0 };
    size_t at = 0;
    int number = 0, rc = OK;

    if ((rc = file_append(fd, path, e)) != OK) return rc;
    if ((rc = file_read(&text, path, RESULT_MAX, e)) != OK) goto out;
    while (rc == OK && at < text.n) {
        const char *end = memchr(text.p + at, '\n', text.n - at);
        if (!end) break;
        rc = note_result(b, path, ++number, str_of(text.p + at, (size_t)(end - text.p) - at), e);
        at = (size_t)(end - text.p) + 1;
    }
    if (rc == OK && at < text.n && ftruncate(*fd, (off_t)at) != 0)
        rc = err_set(e, E_IO, "%s: cannot be cut: %s", path, strerror(errno));
out:
    buf_release(&text);
    return rc;
}

int batchfile_open(struct batchfile *b, struct err *e)
{
    int rc;

    b->fd_out = b->fd_errors = -1;
    if ((rc = read_input(b, e)) != OK) return rc;
    if ((rc = open_results(b, b->out, &b->fd_out, e)) != OK) return rc;
    return b->errors ? open_results(b, b->errors, &b->fd_errors, e) : OK;
}

void batchfile_close(struct batchfile *b)
{
    if (b->fd_out >= 0) fsync(b->fd_out), close(b->fd_out);
    if (b->fd_errors >= 0) fsync(b->fd_errors), close(b->fd_errors);
    filemap_release(&b->input);
    map_release(&b->by_id);
    arena_release(&b->ids);
    buf_release(&b->scratch);
    mem_free(b->lines);
}

/* One write, so that a line is there as a whole or not at all. */
static int append_line(int fd, const char *path, const struct buf *text, struct err *e)
{
    ssize_t n = write(fd, text->p, text->n);

    if (n == (ssize_t)text->n) return OK;
    return err_set(e, E_IO, "%s: cannot write: %s", path,
                   n < 0 ? strerror(errno) : "no space left");
}

static void count_tokens(struct batchfile *b, struct str body)
{
    json_t *root = jsonr_load(body, 0, NULL), *usage = json_object_get(root, "usage");

    b->prompt_tokens += json_integer_value(json_object_get(usage, "prompt_tokens"));
    b->output_tokens += json_integer_value(json_object_get(usage, "completion_tokens"));
    json_decref(root);
}

void batchfile_answer(struct batchfile *b, int line, int status, struct str request_id,
                      struct str body)
{
    struct batchfile_line *l = &b->lines[line];
    char id[80];
    struct batchline_result r = { .id = id,
                                  .custom_id = l->custom_id,
                                  .status = status,
                                  .request_id = request_id,
                                  .body = body };
    bool bad = status != 200, apart = bad && b->fd_errors >= 0;
    struct buf text = { 0 };
    int rc;

    snprintf(id, sizeof id, "batch_req_%d", line + 1);
    batchline_write(&text, &r);
    cli_text(&text);
    rc = append_line(apart ? b->fd_errors : b->fd_out, apart ? b->errors : b->out, &text,
                     b->rc == OK ? &b->err : NULL);
    buf_release(&text);
    if (rc != OK && b->rc == OK) b->rc = rc;
    if (!bad) count_tokens(b, body);
    l->state = LINE_DONE;
    b->n_running--;
    b->n_done++;
    if (bad) b->n_bad++;
    else b->n_good++;
    batchfile_show(b);
}

/* ---- what runs next ---- */

int batchfile_next(struct batchfile *b, char path[64], struct str *body, struct err *e)
{
    uint64_t now = clock_ns();
    struct batchline l;

    while (b->from < b->n && b->lines[b->from].state != LINE_WAITS) b->from++;
    for (int i = b->from; i < b->n && b->rc == OK; i++) {
        struct batchfile_line *x = &b->lines[i];
        if (x->state != LINE_WAITS || x->not_before > now) continue;
        buf_clear(&b->scratch);
        if (batchline_read(&l, str_of((const char *)b->input.p + x->at, x->n), "", &b->scratch,
                           e) != OK) {
            b->rc = e->code;
            b->err = *e;
            return -1;
        }
        snprintf(path, 64, "%s", l.url);
        *body = buf_str(&b->scratch);
        x->state = LINE_RUNS;
        b->n_running++;
        return i;
    }
    return -1;
}

void batchfile_retry(struct batchfile *b, int line)
{
    struct batchfile_line *l = &b->lines[line];
    uint64_t ms = (uint64_t)RETRY_MS << (l->tries < 6 ? l->tries : 6);

    l->tries++;
    l->state = LINE_WAITS;
    l->not_before = clock_ns() + (ms < RETRY_MAX_MS ? ms : RETRY_MAX_MS) * 1000000;
    b->n_running--;
    if (line < b->from) b->from = line;
}

bool batchfile_is_over(const struct batchfile *b)
{
    return (b->n_done == b->n || b->rc != OK) && b->n_running == 0;
}

void batchfile_show(struct batchfile *b)
{
    char item[40];

    snprintf(item, sizeof item, "%d of %d, %d failed", b->n_done, b->n, b->n_bad);
    progress_show(&b->bar, (uint64_t)b->n_done, (uint64_t)b->n, item);
}
