/* cliio.h - what all commands share: reading input, writing output, running out of memory.
 *
 * src/cli is the only part of tern that may end the process. Where a command runs out of memory
 * outside the model (a line of input, a list of arguments), it does so here, with one line on
 * stderr and exit code 1. Everything below src/cli returns E_NOMEM instead. */
#ifndef TERN_CLI_CLIIO_H
#define TERN_CLI_CLIIO_H

#include "base/buf.h"
#include "base/err.h"

#include <stdio.h>

/* "tern: out of memory" on stderr; exits with EXIT_FAILED. */
_Noreturn void cli_nomem(void);
/* p, or cli_nomem for NULL: char *s = cli_need(mem_strdup(text)); */
static inline void *cli_need(void *p)
{
    if (!p) cli_nomem();
    return p;
}
/* The buffer's text, NUL-terminated, or cli_nomem after a failed addition. */
const char *cli_text(struct buf *b);

/* Appends a file, or stdin for NULL and "-", also where it is a pipe. More than max_bytes is
 * E_INVALID. */
int cli_read(struct buf *out, const char *path, size_t max_bytes, struct err *e);
/* Writes the buffer to f, flushes, and clears the buffer. */
int cli_write(FILE *f, struct buf *b, struct err *e);
/* The same to a file that is replaced as a whole, or to stdout for "-". */
int cli_write_file(const char *path, struct buf *b, struct err *e);
#endif
