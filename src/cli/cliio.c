#include "cli/cliio.h"

#include "base/file.h"
#include "cli/cmd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void cli_nomem(void)
{
    fputs("tern: out of memory\n", stderr);
    exit(EXIT_FAILED);
}

const char *cli_text(struct buf *b)
{
    const char *text = buf_cstr(b);

    if (b->failed) cli_nomem();
    return text;
}

static bool is_stdio(const char *path) { return !path || strcmp(path, "-") == 0; }

/* Reads until the end of file: a pipe has no size to ask for. */
int cli_read(struct buf *out, const char *path, size_t max_bytes, struct err *e)
{
    const char *name = is_stdio(path) ? "stdin" : path;
    FILE *f = is_stdio(path) ? stdin : fopen(path, "rb");
    size_t got = 1;
    int rc = OK;

    while (f && got > 0 && out->n <= max_bytes && rc == OK) {
        if (!buf_reserve(out, 1 << 16)) rc = buf_check(out, e);
        else out->n += got = fread(out->p + out->n, 1, out->cap - out->n, f);
    }
    if (!f || ferror(f)) rc = err_set(e, E_IO, "cannot read %s: %s", name, strerror(errno));
    else if (rc == OK && out->n > max_bytes)
        rc = err_set(e, E_INVALID, "%s is larger than %zu bytes", name, max_bytes);
    if (f && f != stdin) fclose(f);
    return rc;
}

int cli_write(FILE *f, struct buf *b, struct err *e)
{
    int rc = buf_check(b, e);

    if (rc == OK && ((b->n && fwrite(b->p, 1, b->n, f) != b->n) || fflush(f) != 0))
        rc = err_set(e, E_IO, "cannot write to %s: %s", f == stderr ? "stderr" : "stdout",
                     strerror(errno));
    buf_clear(b);
    return rc;
}

int cli_write_file(const char *path, struct buf *b, struct err *e)
{
    int rc;

    if (is_stdio(path)) return cli_write(stdout, b, e);
    if ((rc = buf_check(b, e)) == OK) rc = file_replace(path, buf_str(b), e);
    buf_clear(b);
    return rc;
}
